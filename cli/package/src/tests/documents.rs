//! One document at a time: what a function gets to see of it, and what comes back.

use std::fmt::Write;
use std::path::Path;

use super::{package, returned, returned_texts, sent_items, tree, try_package};
use crate::file::DocumentError;
use crate::write::rebuilt;
use crate::yaml::Body;

/// The annotations of the first document of `a.yaml`.
const ANNOTATIONS: [&str; 5] = [
    "config.kubernetes.io/index: \"0\"",
    "config.kubernetes.io/path: a.yaml",
    "internal.config.kubernetes.io/index: \"0\"",
    "internal.config.kubernetes.io/path: a.yaml",
    "internal.config.kubernetes.io/seqindent: compact",
];

/// `item` is the expected text; a line ANNOTATIONS in it stands for all of them.
#[track_caller]
fn assert_item(document: &str, item: &str) {
    let mut expected = String::from("apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems:\n");
    for line in item.lines() {
        let lines = if line.contains("ANNOTATIONS") { &ANNOTATIONS[..] } else { &[""] };
        expected.extend(lines.iter().map(|each| line.replace("ANNOTATIONS", each) + "\n"));
    }
    assert_eq!(package(document).to_resource_list(None), expected);
}

#[track_caller]
fn assert_bad(document: &str, error: &str) {
    assert_eq!(try_package(document).unwrap_err().to_string(), error);
}

const HEAD: &str = "apiVersion: v1 # c\nkind: A\n";
const ITEM: &str = "- apiVersion: v1 # c\n  kind: A\n";

#[test]
fn annotations_go_behind_those_that_are_there_and_come_off_again() {
    for (document, item) in [
        (
            "metadata: # kpt-merge: b/c\n  annotations:\n    a: b\n    # foot\n  name: web\n",
            "  metadata: # kpt-merge: b/c\n    annotations:\n      a: b\n      ANNOTATIONS\n      # foot\n    name: web\n",
        ),
        (
            "metadata:\n    name: |\n        n\n\n    # foot\n\nspec: 1\n",
            "  metadata:\n      name: |\n          n\n\n      annotations:\n        ANNOTATIONS\n      # foot\n\n  spec: 1\n",
        ),
        ("# foot\n", "  metadata:\n    annotations:\n      ANNOTATIONS\n  # foot\n"),
        // Values in flow style and aliases are written out, for the function alone.
        (
            "metadata: {annotations: {a: b,}, name: web}\nx: {y: [z, ]}\n",
            "  metadata:\n    annotations:\n      a: b\n      ANNOTATIONS\n    name: web\n  x: {y: [z, ]}\n",
        ),
        (
            "x: &m {name: '1', n: 0644}\nmetadata: *m\n",
            "  x: &m {name: '1', n: 0644}\n  metadata:\n    name: \"1\"\n    n: 0644\n    annotations:\n      ANNOTATIONS\n",
        ),
    ] {
        let document = format!("{HEAD}{document}");
        assert_item(&document, &format!("{ITEM}{item}"));
        let package = package(&document);
        let items = returned(&package).files.remove(Path::new("a.yaml")).unwrap();
        assert_eq!(rebuilt(&package.files[0], &items), document);
    }
    let json = r#"{"apiVersion": "v1", "kind": "A", "metadata": {"name": "web"}}"#;
    let item = ITEM.replace(" # c", "") + "  metadata:\n    name: web\n    annotations:\n      ANNOTATIONS\n";
    assert_item(json, &item);
}

#[test]
fn empty_annotations_and_those_of_an_earlier_call_go_like_in_kyaml() {
    for (annotations, kept) in [
        ("  annotations: {}\n", ""),
        ("  annotations:\n", ""),
        ("  annotations: ~\n", ""),
        ("  annotations: null # none\n", ""),
        (
            "  annotations:\n    config.kubernetes.io/path: 'old'\n    a: b # c\n    internal.config.kubernetes.io/index: '7'\n",
            "  annotations:\n    a: b # c\n",
        ),
    ] {
        let document = format!("{HEAD}metadata:\n  name: web # n\n{annotations}");
        assert_eq!(returned_texts(&document), [format!("{HEAD}metadata:\n  name: web # n\n{kept}")]);
    }
    assert_eq!(returned_texts(&format!("{HEAD}metadata:\nspec: 1\n")), [format!("{HEAD}spec: 1\n")]);
}

#[test]
fn block_scalars_keep_their_content() {
    let document = "apiVersion: v1\nkind: A\ndata:\n  a: |2\n      x\n    \n     y\n  b: >-\n    x\n\n    y\n  c: |+\n    \
                    z\n\n\n";
    let item = &sent_items(&package(document))[0];
    let data = |key| item.get("data").and_then(|data| data.get(key)).and_then(|node| node.text()).unwrap();
    assert_eq!((data("a"), data("b"), data("c")), ("  x\n\n y\n", "x\ny", "z\n\n\n"));
    assert_eq!(returned_texts(document), [document]);
}

#[test]
fn a_block_at_the_end_of_a_file_gains_no_newline() {
    for (document, header) in [("|", "|-"), (">2", ">-2"), ("|+ # a|b", "|- # a|b"), ("|-", "|-")]
        .map(|(header, sent)| (format!("apiVersion: v1\nkind: A\ndata: {header}\n  x"), sent))
    {
        let list = package(&document).to_resource_list(None);
        assert!(list.contains(&format!("data: {header}\n    x\n")), "{list}");
        assert_eq!(sent_items(&package(&document))[0].get("data").and_then(|data| data.text()), Some("x"));
    }
}

#[test]
fn empty_documents_do_not_count() {
    let file = "---\n# licence\n---\napiVersion: v1\nkind: A\n---\n\n--- # none\n~\n---\nkind: B\napiVersion: v1\n...\n";
    let items = sent_items(&package(file));
    let index =
        |item: &super::Node| crate::annotations::get(item, "config.kubernetes.io/index").map(str::to_owned);
    assert_eq!(items.iter().map(index).collect::<Vec<_>>(), [Some("0".to_owned()), Some("1".to_owned())]);
    assert_eq!(returned_texts(file), ["apiVersion: v1\nkind: A\n", "kind: B\napiVersion: v1\n"]);
}

#[test]
fn the_sequence_style_is_sent_like_kyaml_does() {
    let style = |sequence: &str| {
        let list = package(&format!("apiVersion: v1\nkind: A\n{sequence}")).to_resource_list(None);
        list.lines().last().unwrap().rsplit(' ').next().unwrap().to_owned()
    };
    assert_eq!(style("a:\n- b\n"), "compact");
    assert_eq!(style("a: # c\n# d\n  - b\n"), "wide");
    assert_eq!(style("a: |\n  x:\n  - b\nc:\n  - d\n"), "wide");
    assert_eq!(style("a:\n   - b\n"), "compact");
}

#[test]
fn what_is_no_resource_is_refused_with_its_place() {
    let not_krm = |field| {
        format!("it has no {field}, so it is not a KRM resource; complete it, or list the file in .krmignore")
    };
    assert_bad("a: b\n", &not_krm("apiVersion"));
    assert_bad("apiVersion: v1\n", &not_krm("kind"));
    assert_bad("- a\n", &not_krm("apiVersion"));
    assert_bad(
        "apiVersion: v1\nkind: A\nmetadata: []\n",
        "metadata is not a mapping, so no annotation can be added; correct it",
    );
    let syntax = try_package("apiVersion: v1\nkind: A\n---\n# two\na: [\n").unwrap_err();
    assert!(matches!(syntax, DocumentError::Syntax { line: 5, .. }), "{syntax}");
    assert_bad(
        "---\napiVersion: v1\nkind: A\nx: a\rb\n",
        "line 4: a carriage return without a newline; correct the YAML",
    );
    assert_bad(
        "apiVersion: v1\nkind: A\n? {a: b}\n: c\nmetadata: {}\n",
        &DocumentError::Unsupported.to_string(),
    );
}

#[test]
fn aliases_that_explode_are_refused() {
    let mut document = String::from("apiVersion: v1\nkind: A\nx0: &x0 [a, a, a, a, a, a, a, a]\n");
    for level in 1..12 {
        let aliases = vec![format!("*x{}", level - 1); 8].join(", ");
        writeln!(document, "x{level}: &x{level} [{aliases}]").unwrap();
    }
    let endless = "apiVersion: v1\nkind: A\nx: &x [*x]\n";
    for document in [document.as_str(), endless] {
        let error = try_package(document).unwrap_err().to_string();
        assert!(error.ends_with("an alias contains itself or grows too large; correct the YAML"), "{error}");
    }
}

#[test]
fn windows_lines_are_sent_as_unix_lines() {
    let document = "apiVersion: v1\r\nkind: A\r\ndata: |\r\n  x\r\n";
    let list = package(document).to_resource_list(None);
    assert!(!list.contains('\r'));
    assert_eq!(returned_texts(document), ["apiVersion: v1\nkind: A\ndata: |\n  x\n"]);
}

#[test]
fn an_empty_package_is_an_empty_list() {
    let list = package("# nothing\n").to_resource_list(None);
    assert_eq!(list, "apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems: []\n");
    assert!(
        matches!(&tree(&list).get("items").unwrap().body, Body::Sequence { items, .. } if items.is_empty())
    );
}

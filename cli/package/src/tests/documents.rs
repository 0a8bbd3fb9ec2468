//! One document at a time: what a function gets to see of it, and what comes back.

use std::fmt::Write;

use super::{package, returned_texts, sent_items, tree, try_package};
use crate::file::DocumentError;
use crate::yaml::Body;

/// The annotations of the first document of `a.yaml`.
const ANNOTATIONS: [&str; 5] = [
    "config.kubernetes.io/index: '0'",
    "config.kubernetes.io/path: 'a.yaml'",
    "internal.config.kubernetes.io/index: '0'",
    "internal.config.kubernetes.io/path: 'a.yaml'",
    "internal.config.kubernetes.io/seqindent: 'compact'",
];

/// The same on one line.
const INLINE: &str = "\"config.kubernetes.io/index\": \"0\", \"config.kubernetes.io/path\": \"a.yaml\", \
    \"internal.config.kubernetes.io/index\": \"0\", \"internal.config.kubernetes.io/path\": \"a.yaml\", \
    \"internal.config.kubernetes.io/seqindent\": \"compact\"";

/// `item` stands for itself, but a line ANNOTATIONS for all of them, and INLINE for the line.
#[track_caller]
fn assert_item(document: &str, item: &str) {
    let mut expected = String::from("apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems:\n");
    for line in item.replace("INLINE", INLINE).lines() {
        let lines = if line.contains("ANNOTATIONS") { &ANNOTATIONS[..] } else { &[""] };
        expected.extend(lines.iter().map(|each| line.replace("ANNOTATIONS", each) + "\n"));
    }
    assert_eq!(package(document).to_resource_list(None), expected);
}

#[track_caller]
fn assert_returned(document: &str, text: &str) {
    assert_eq!(returned_texts(document), [text]);
}

#[track_caller]
fn assert_bad(document: &str, error: &str) {
    assert_eq!(try_package(document).unwrap_err().to_string(), error);
}

#[test]
fn annotations_go_behind_those_that_are_there() {
    let document = "# head\napiVersion: v1 # line\nkind: A\nmetadata: # kpt-merge: b/c\n  annotations:\n    \
                    a: b\n    # foot\n  name: n\n";
    assert_item(
        document,
        "- # head\n  apiVersion: v1 # line\n  kind: A\n  metadata: # kpt-merge: b/c\n    annotations:\n      \
         a: b\n      ANNOTATIONS\n      # foot\n    name: n\n",
    );
    assert_returned(document, document);
}

#[test]
fn annotations_go_to_the_end_of_metadata() {
    let document = "apiVersion: v1\nkind: A\nmetadata:\n    name: |\n        n\n\n    # foot\n\nspec: 1\n";
    assert_item(
        document,
        "- apiVersion: v1\n  kind: A\n  metadata:\n      name: |\n          n\n\n      annotations:\n        \
         ANNOTATIONS\n      # foot\n\n  spec: 1\n",
    );
    assert_returned(document, document);
}

#[test]
fn metadata_is_made_where_there_is_none() {
    let document = "apiVersion: v1\nkind: A\n# foot\n";
    assert_item(
        document,
        "- apiVersion: v1\n  kind: A\n  metadata:\n    annotations:\n      ANNOTATIONS\n  # foot\n",
    );
    assert_returned(document, document);
}

#[test]
fn flow_style_and_json_stay_on_their_lines() {
    let json = r#"{"apiVersion": "v1", "kind": "A", "metadata": {"name": "n"}}"#.to_owned() + "\n";
    assert_item(
        &json,
        "- {\"apiVersion\": \"v1\", \"kind\": \"A\", \"metadata\": {\"name\": \"n\", \"annotations\": {INLINE}}}\n",
    );
    assert_returned(&json, &json);
    let flow = "apiVersion: v1\nkind: A\nmetadata: {annotations: {a: b,}, name: n}\n";
    assert_item(flow, "- apiVersion: v1\n  kind: A\n  metadata: {annotations: {a: b, INLINE,}, name: n}\n");
    assert_returned(flow, flow);
}

#[test]
fn empty_and_null_annotations_are_filled_and_then_go_as_in_kyaml() {
    for value in [" {}", "", " ~", " null # none"] {
        let document = format!("apiVersion: v1\nkind: A\nmetadata:\n  name: n\n  annotations:{value}\n");
        let comment = if value.ends_with('e') { " # none" } else { "" };
        assert_item(
            &document,
            &format!(
                "- apiVersion: v1\n  kind: A\n  metadata:\n    name: n\n    annotations: {{INLINE}}{comment}\n"
            ),
        );
        assert_returned(&document, "apiVersion: v1\nkind: A\nmetadata:\n  name: n\n");
    }
    assert_returned("apiVersion: v1\nkind: A\nmetadata:\nspec: 1\n", "apiVersion: v1\nkind: A\nspec: 1\n");
}

#[test]
fn annotations_left_over_in_a_file_are_replaced() {
    let document = "apiVersion: v1\nkind: A\nmetadata:\n  annotations:\n    config.kubernetes.io/path: 'old'\n    \
                    a: b # c\n    internal.config.kubernetes.io/index: '7'\n";
    assert_item(
        document,
        "- apiVersion: v1\n  kind: A\n  metadata:\n    annotations:\n      a: b # c\n      ANNOTATIONS\n",
    );
    assert_returned(document, "apiVersion: v1\nkind: A\nmetadata:\n  annotations:\n    a: b # c\n");
}

#[test]
fn an_alias_is_written_out_before_it_gets_annotations() {
    let document = "# head\napiVersion: v1\nkind: A\nx: &m {name: '1', n: 0644}\nmetadata: *m\n";
    assert_item(
        document,
        "- apiVersion: v1\n  kind: A\n  x:\n    name: '1'\n    n: 0644\n  metadata:\n    name: '1'\n    n: 0644\n    \
         annotations:\n      ANNOTATIONS\n",
    );
}

#[test]
fn block_scalars_keep_their_content() {
    let document = "apiVersion: v1\nkind: A\ndata:\n  a: |2\n      x\n    \n     y\n  b: >-\n    x\n\n    y\n  c: |+\n    \
                    z\n\n\n";
    let item = &sent_items(&package(document))[0];
    let data = |key| item.get("data").and_then(|data| data.get(key)).and_then(|node| node.text()).unwrap();
    assert_eq!((data("a"), data("b"), data("c")), ("  x\n\n y\n", "x\ny", "z\n\n\n"));
    assert_returned(document, document);
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
fn tags_that_need_a_directive_are_written_in_full() {
    let document =
        "%TAG !e! tag:e.org,2000:\n---\napiVersion: v1\nkind: A\nmetadata: {name: n}\nx: !e!y {a: 'b: c'}\n";
    let items = sent_items(&package(document));
    assert_eq!(items[0].get("x").and_then(|x| x.tag.as_deref()), Some("tag:e.org,2000:y"));
    assert_eq!(items[0].get("x").and_then(|x| x.get("a")).and_then(|a| a.text()), Some("b: c"));
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
fn the_sequence_style_is_told_as_kyaml_derives_it() {
    let style = |sequence: &str| {
        let list = package(&format!("apiVersion: v1\nkind: A\n{sequence}")).to_resource_list(None);
        list.lines().last().unwrap().rsplit(' ').next().unwrap().to_owned()
    };
    assert_eq!(style("a:\n- b\n"), "'compact'");
    assert_eq!(style("a: # c\n# d\n  - b\n"), "'wide'");
    assert_eq!(style("a: |\n  x: y:\n    - b\nc:\n  - d\n"), "'wide'");
    assert_eq!(style("a:\n   - b\n"), "'compact'");
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
    assert!(matches!(syntax, DocumentError::Syntax { line: 6, .. }), "{syntax}");
    assert_bad(
        "---\napiVersion: v1\nkind: A\nx: a\rb\n",
        "line 4: a carriage return without a newline; correct the YAML",
    );
    assert_bad(
        "apiVersion: v1\nkind: A\nx: &x [*x]\nmetadata: *x\n",
        &DocumentError::Unsupported.to_string(),
    );
}

#[test]
fn deep_nesting_is_refused() {
    let nested = |depth| format!("apiVersion: v1\nkind: A\nx:\n{}a\n", "- ".repeat(depth));
    assert!(try_package(&nested(200)).is_ok());
    assert!(matches!(try_package(&nested(100_000)), Err(DocumentError::Syntax { .. })));
}

#[test]
fn aliases_that_explode_are_refused() {
    let mut document = String::from("apiVersion: v1\nkind: A\nx0: &x0 [a, a, a, a, a, a, a, a]\n");
    for level in 1..12 {
        let aliases = vec![format!("*x{}", level - 1); 8].join(", ");
        writeln!(document, "x{level}: &x{level} [{aliases}]").unwrap();
    }
    assert!(try_package(&document).is_ok(), "as text they are small");
    document += "y: &y {}\nmetadata: *y\n";
    assert_eq!(try_package(&document).unwrap_err(), DocumentError::Unsupported);
}

#[test]
fn windows_lines_are_sent_as_unix_lines() {
    let document = "apiVersion: v1\r\nkind: A\r\ndata: |\r\n  x\r\n";
    let list = package(document).to_resource_list(None);
    assert!(!list.contains('\r'));
    assert_returned(document, "apiVersion: v1\nkind: A\ndata: |\n  x\n");
}

#[test]
fn an_empty_package_is_an_empty_list() {
    let list = package("# nothing\n").to_resource_list(None);
    assert_eq!(list, "apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems: []\n");
    assert!(
        matches!(&tree(&list).get("items").unwrap().body, Body::Sequence { items, .. } if items.is_empty())
    );
}

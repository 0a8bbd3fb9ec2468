//! Answers as real functions write them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::{Item, Output, SplitError, split};

const HEAD: &str = "apiVersion: config.kubernetes.io/v1\nkind: ResourceList\n";

fn split_items(items: &str) -> Result<Output, SplitError> {
    split(format!("{HEAD}{items}").as_bytes())
}

/// Each item as (path, index, text).
#[track_caller]
fn assert_items(items: &str, expected: &[(&str, usize, &str)]) {
    let mut files: BTreeMap<PathBuf, Vec<Item>> = BTreeMap::new();
    for (path, index, text) in expected {
        files.entry(PathBuf::from(path)).or_default().push(Item { index: *index, text: (*text).to_owned() });
    }
    assert_eq!(split_items(items).unwrap().files, files);
}

#[track_caller]
fn assert_refused(output: &str, error: &SplitError) {
    assert_eq!(&split(output.as_bytes()).unwrap_err(), error);
}

#[test]
fn comments_stay_with_their_items() {
    assert_items(
        "items: # all\n# one\n\n# more\n- # inside\n  apiVersion: v1 # line\n  kind: A\n  metadata:\n    name: a\n  \
         # foot of a\n\n# two\n- apiVersion: v1\n  kind: B\n  metadata: {name: b}\n  # foot of b\n# config's\n\
         functionConfig:\n  a: b\n",
        &[
            (
                "a_a.yaml",
                0,
                "# one\n\n# more\n# inside\napiVersion: v1 # line\nkind: A\nmetadata:\n  name: a\n# foot of a\n\n",
            ),
            ("b_b.yaml", 0, "# two\napiVersion: v1\nkind: B\nmetadata: {name: b}\n# foot of b\n"),
        ],
    );
}

#[test]
fn any_indentation_of_the_list_will_do() {
    assert_items(
        "items:\n    -   kind: A\n        apiVersion: v1\n        metadata:\n            name: a\n    -\n      kind: B\n\
         \n      apiVersion: v1\n      metadata:\n        name: |-\n          b\n",
        &[
            ("a_a.yaml", 0, "kind: A\napiVersion: v1\nmetadata:\n    name: a\n"),
            ("b_b.yaml", 0, "kind: B\n\napiVersion: v1\nmetadata:\n  name: |-\n    b\n"),
        ],
    );
}

#[test]
fn json_becomes_yaml() {
    let list = r#"{"kind": "ResourceList", "items": [{"apiVersion": "v1", "kind": "A", "metadata": {"name": "a",
        "annotations": {"internal.config.kubernetes.io/path": "x.yaml", "config.kubernetes.io/index": "3"}},
        "data": {"f": 1.50, "s": "1.50", "t": "true", "e": {}, "l": [1, [2], {"a": "b: c", "b": null}], "m": "x\n  y\n",
        "u": "é\u2028"}}]}"#;
    let text = "apiVersion: v1\nkind: A\nmetadata:\n  name: a\ndata:\n  f: 1.50\n  s: \"1.50\"\n  t: \"true\"\n  e: {}\n  l:\n  \
                - 1\n  - - 2\n  - a: \"b: c\"\n    b: null\n  m: |\n    x\n      y\n  u: \"é\\L\"\n";
    let files = split(list.as_bytes()).unwrap().files;
    assert_eq!(files[&PathBuf::from("x.yaml")], [Item { index: 3, text: text.to_owned() }]);
}

#[test]
fn aliases_across_items_are_written_out() {
    // As PyYAML writes an object that two items share.
    assert_items(
        "items:\n- apiVersion: v1\n  kind: A\n  metadata: {name: a}\n  labels: &id001 {x: '1'}\n- apiVersion: v1\n  \
         kind: B\n  metadata: {name: b}\n  labels: *id001\n",
        &[
            ("a_a.yaml", 0, "apiVersion: v1\nkind: A\nmetadata: {name: a}\nlabels: &id001 {x: '1'}\n"),
            ("b_b.yaml", 0, "apiVersion: v1\nkind: B\nmetadata:\n  name: b\nlabels:\n  x: \"1\"\n"),
        ],
    );
}

#[test]
fn line_breaks_that_files_must_not_have_are_taken_out() {
    assert_items(
        "items:\r\n- apiVersion: v1\r\n  kind: A\r\n  x: 'a\r    b'\r\n",
        &[("a_.yaml", 0, "apiVersion: v1\nkind: A\nx: a b\n")],
    );
}

#[test]
fn items_are_placed_by_their_annotations() {
    let mut list = String::from("items:\n");
    let item = |name: &str| format!("- apiVersion: v1\n  kind: A\n  metadata:\n    name: {name}\n");
    for (name, annotations) in [
        (
            "second",
            &[
                ("internal.config.kubernetes.io/path", "./d//f.yaml"),
                ("internal.config.kubernetes.io/index", "'10'"),
            ][..],
        ),
        ("none", &[("config.kubernetes.io/path", "'d/f.yaml'")]),
        (
            "first",
            &[("config.kubernetes.io/path", "\"d/e/../f.yaml\""), ("config.kubernetes.io/index", "\"9\"")],
        ),
        (
            "new-name-wins",
            &[("config.kubernetes.io/path", "old.yaml"), ("internal.config.kubernetes.io/path", "new.yaml")],
        ),
    ] {
        list.push_str(&item(name));
        list.push_str("    annotations:\n");
        list.extend(annotations.iter().map(|(key, value)| format!("      {key}: {value}\n")));
    }
    let text = |name: &str| format!("apiVersion: v1\nkind: A\nmetadata:\n  name: {name}\n");
    assert_items(
        &list,
        &[
            ("d/f.yaml", 9, &text("first")),
            ("d/f.yaml", 10, &text("second")),
            ("d/f.yaml", 11, &text("none")),
            ("new.yaml", 0, &text("new-name-wins")),
        ],
    );
}

#[test]
fn new_items_get_kyamls_path() {
    assert_items(
        "items:\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: n}}\n- {apiVersion: v1, kind: \
         ConfigMap, metadata: {name: a, namespace: n}}\n- {apiVersion: v1, kind: A}\n",
        &[
            ("a_.yaml", 0, "{apiVersion: v1, kind: A}\n"),
            (
                "n/configmap_a.yaml",
                0,
                "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: n}}\n",
            ),
            (
                "n/configmap_a.yaml",
                1,
                "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: n}}\n",
            ),
        ],
    );
}

#[test]
fn own_annotations_survive() {
    assert_items(
        "items:\n- apiVersion: v1\n  kind: A\n  metadata:\n    annotations:\n      # why\n      a: b\n      \
         config.kubernetes.io/index: '0'\n      config.kubernetes.io/path: 'x.yaml'\n      c: |\n        d\n    name: a\n\
         - apiVersion: v1\n  kind: A\n  metadata: {annotations: {config.kubernetes.io/path: 'y.yaml', a: b, \
         config.kubernetes.io/index: '0'}}\n",
        &[
            (
                "x.yaml",
                0,
                "apiVersion: v1\nkind: A\nmetadata:\n  annotations:\n    # why\n    a: b\n    c: |\n      d\n  name: a\n",
            ),
            ("y.yaml", 0, "apiVersion: v1\nkind: A\nmetadata:\n  annotations:\n    a: b\n"),
        ],
    );
}

#[test]
fn sequences_are_indented_again_where_the_user_had_them_so() {
    let item = |style: &str, sequences: &str| {
        format!(
            "items:\n- apiVersion: v1\n  kind: A\n  metadata:\n    name: a\n    annotations:\n      \
             internal.config.kubernetes.io/seqindent: '{style}'\n{sequences}"
        )
    };
    let compact = "  a:\n  # c\n  - b:\n    - |\n      x\n\n      y\n    c: d\n  e: []\n";
    let wide = "  a:\n    # c\n    - b:\n        - |\n          x\n\n          y\n      c: d\n  e: []\n";
    let mixed = "  a:\n  - b\n  c:\n    - d\n";
    let text = |sequences: &str| {
        let sequences = sequences.replace("\n  ", "\n");
        format!("apiVersion: v1\nkind: A\nmetadata:\n  name: a\n{}", sequences.trim_start())
    };
    for (style, sent, expected) in
        [("wide", compact, wide), ("compact", compact, compact), ("wide", wide, wide), ("wide", mixed, mixed)]
    {
        assert_items(&item(style, sent), &[("a_a.yaml", 0, &text(expected))]);
    }
}

#[test]
fn results_are_read_leniently() {
    let results = |results: &str| split_items(&format!("results:\n{results}")).unwrap().results;
    let found = results(
        "- message: no image\n  severity: warning\n  resourceRef: {apiVersion: apps/v1, kind: Deployment, name: d, \
         namespace: n}\n  field: {path: 'spec.x[0]', currentValue: 1, proposedValue: {a: b}}\n- message: |\n    \
         two\n    lines\n- {severity: info, message: ok, resourceRef: {}}\n- odd\n",
    );
    assert_eq!(
        found,
        [
            "[warning] apps/v1/Deployment/n/d spec.x[0]: no image",
            "[error]: two\nlines\n",
            "[info]: ok",
            "[error]: "
        ]
    );
    assert_eq!(results("  items:\n  - message: m\n    severity: info\n"), ["[info]: m"]);
}

#[test]
fn lists_without_items_are_empty() {
    for items in ["", "items:\n", "items: []\n", "items: null\n"] {
        assert_eq!(split_items(items), Ok(Output::default()), "{items}");
    }
}

#[test]
fn what_is_no_resource_list_is_refused() {
    assert_eq!(split(b"\xff"), Err(SplitError::NotUtf8));
    for output in ["", "\n# nothing\n", "hello\n", "kind: List\nitems: []\n", "- a\n"] {
        assert_refused(output, &SplitError::NotAResourceList);
    }
    assert_refused(&format!("{HEAD}items: {{}}\n"), &SplitError::NotAList);
    let two = split(format!("{HEAD}---\n{HEAD}").as_bytes()).unwrap_err().to_string();
    assert_eq!(
        two,
        "the function's output is not one YAML document: line 3: there is more than one document; look at its stderr"
    );
    assert!(matches!(split(b"kind: ResourceList\nitems: [\n"), Err(SplitError::Syntax { line: 2, .. })));
}

#[test]
fn bad_items_are_refused() {
    let list = |items: &str| format!("{HEAD}items:\n- {{apiVersion: v1, kind: A}}\n{items}");
    assert_refused(&list("- {kind: A}\n"), &SplitError::NotKrm { item: 1, missing: "apiVersion" });
    assert_refused(&list("-\n"), &SplitError::NotKrm { item: 1, missing: "apiVersion" });
    let at = |index: &str| {
        format!(
            "- {{apiVersion: v1, kind: B, metadata: {{annotations: {{config.kubernetes.io/path: a//b.yaml, \
             config.kubernetes.io/index: '{index}'}}}}}}\n"
        )
    };
    assert_refused(&list(&at("-1")), &SplitError::BadIndex { item: 1, index: "-1".to_owned() });
    assert_refused(
        &list(&(at("4") + &at("4"))),
        &SplitError::SamePlace { path: "a/b.yaml".to_owned(), index: 4 },
    );
    // kustomization.yaml is no resource, and kpt lets it pass.
    let path = "{annotations: {config.kubernetes.io/path: d/kustomization.yaml}}";
    assert!(split(list(&format!("- {{resources: [], metadata: {path}}}\n")).as_bytes()).is_ok());
}

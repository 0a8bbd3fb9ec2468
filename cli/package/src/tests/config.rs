//! Tests of the functionConfig, and of ResourceLists from standard input.

use super::{tree, try_package};
use crate::{FunctionConfig, Package};

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(found: Result<T, String>, part: &str) {
    let error = found.unwrap_err();
    assert!(error.contains(part), "{error}");
}

#[test]
fn pairs_become_a_config_map_with_string_values() {
    let pairs =
        ["namespace=foo", "n=1", "t=true", "url=http://a/b=c#d", "empty=", "a b= x ", "m=x\n y", "n=2"];
    let config = FunctionConfig::from_pairs(&pairs).unwrap();
    assert_eq!(
        config.field(),
        "functionConfig:\n  apiVersion: v1\n  kind: ConfigMap\n  metadata:\n    name: function-input\n  data:\n    \
         namespace: foo\n    t: \"true\"\n    url: http://a/b=c#d\n    empty: \"\"\n    a b: \" x \"\n    m: |-\n      x\n\
         \x20      y\n    \"n\": \"2\"\n"
    );
    let list = try_package("apiVersion: v1\nkind: A\n").unwrap().to_resource_list(Some(&config));
    let data = tree(&list).get("functionConfig").and_then(|config| config.get("data").cloned()).unwrap();
    assert_eq!(data.get("m").and_then(|m| m.text()), Some("x\n y"));
    let none: [&str; 0] = [];
    assert!(FunctionConfig::from_pairs(&none).unwrap().field().ends_with("data: {}\n"));
    for pair in ["x", "=x", ""] {
        assert_refused(FunctionConfig::from_pairs(&[pair]), &format!("{pair:?} is not key=value; write"));
    }
}

#[test]
fn a_config_file_must_hold_one_resource() {
    let text = "# licence\r\n---\r\n# head\r\napiVersion: v1\r\nkind: A\r\ndata: |\r\n  x";
    let list = Package::default().to_resource_list(Some(&FunctionConfig::parse(text).unwrap()));
    let field = "functionConfig:\n  # head\n  apiVersion: v1\n  kind: A\n  data: |-\n    x\n";
    assert!(list.ends_with(&format!("items: []\n{field}")), "{list}");
    for (text, part) in [
        ("# none\n", "holds 0 documents"),
        ("apiVersion: v1\nkind: A\n---\na: b\n", "holds 2 documents"),
        ("kind: A\n", "has no apiVersion"),
        ("a: [\n", "is not YAML: line 1: "),
    ] {
        assert_refused(FunctionConfig::parse(text), part);
    }
    let dir = tempfile::tempdir().unwrap();
    assert_refused(FunctionConfig::from_file(dir.path()), "cannot read the function config");
}

#[test]
fn the_config_is_set_in_a_given_resource_list() {
    let config = FunctionConfig::from_pairs(&["a=1"]).unwrap();
    let field = config.field();
    let set = |list: &str| config.set_in(list.as_bytes());
    let list = "kind: ResourceList # l\nitems:\n- a: |\n    b\n\n";
    assert_eq!(set(list).unwrap(), format!("{list}{field}"));
    let old = "kind: ResourceList\nfunctionConfig:\n  # old\n  a: b\nitems: [] # none\n";
    assert_eq!(set(old).unwrap(), format!("kind: ResourceList\n{field}items: [] # none\n"));
    let json = r#"{"kind": "ResourceList", "items": [{"b": 1.50}]}"#;
    assert_eq!(set(json).unwrap(), format!("kind: ResourceList\nitems:\n- b: 1.50\n{field}"));
    assert_refused(set("kind: List\n"), "is not a ResourceList");
    assert_refused(set(""), "is not a ResourceList");
    assert_refused(set("a: [\n"), "is not one YAML document: line 1: ");
    assert_refused(config.set_in(b"\xff"), "is not UTF-8");
}

//! The functionConfig and lists that come from elsewhere.

use super::{package, tree};
use crate::{FunctionConfig, FunctionConfigError, Package, ResourceListError, set_function_config};

#[test]
fn pairs_become_a_config_map_of_strings() {
    let pairs =
        ["namespace=foo", "n=1", "t=true", "url=http://a/b=c#d", "empty=", "a b= x ", "m=x\n y", "n=2"];
    let config = FunctionConfig::from_pairs(&pairs).unwrap();
    assert_eq!(
        config.as_str(),
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: function-input\ndata:\n  namespace: foo\n  t: \"true\"\n  \
         url: http://a/b=c#d\n  empty: \"\"\n  a b: \" x \"\n  m: |-\n    x\n     y\n  \"n\": \"2\"\n"
    );
    let list = package("apiVersion: v1\nkind: A\n").to_resource_list(Some(&config));
    let data = tree(&list).get("functionConfig").and_then(|config| config.get("data").cloned()).unwrap();
    assert_eq!(data.get("m").and_then(|m| m.text()), Some("x\n y"));
    let none: [&str; 0] = [];
    assert!(FunctionConfig::from_pairs(&none).unwrap().as_str().ends_with("data: {}\n"));
}

#[test]
fn a_pair_needs_a_key_and_a_sign() {
    for pair in ["x", "=x", ""] {
        let error = FunctionConfig::from_pairs(&[pair]).unwrap_err().to_string();
        assert_eq!(
            error,
            format!("{pair:?} is not key=value; write the function's arguments as key=value after --")
        );
    }
}

#[test]
fn a_file_holds_one_resource() {
    let text = "# licence\r\n---\r\n# head\r\napiVersion: v1\r\nkind: A\r\ndata: |\r\n  x";
    let config = FunctionConfig::parse(text).unwrap();
    assert_eq!(config.as_str(), "# head\napiVersion: v1\nkind: A\ndata: |-\n  x\n");
    let list = Package::default().to_resource_list(Some(&config));
    assert!(
        list.ends_with(
            "items: []\nfunctionConfig:\n  # head\n  apiVersion: v1\n  kind: A\n  data: |-\n    x\n"
        ),
        "{list}"
    );

    let error = |text: &str| FunctionConfig::parse(text).unwrap_err();
    assert!(matches!(error("# none\n"), FunctionConfigError::NotOneDocument(0)));
    assert!(matches!(error("apiVersion: v1\nkind: A\n---\na: b\n"), FunctionConfigError::NotOneDocument(2)));
    assert!(matches!(error("kind: A\n"), FunctionConfigError::NotKrm("apiVersion")));
    assert!(matches!(error("a: [\n"), FunctionConfigError::Syntax { line: 1, .. }));
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(FunctionConfig::from_file(dir.path()), Err(FunctionConfigError::Read { .. })));
}

#[test]
fn a_list_from_elsewhere_gets_the_config() {
    let config = FunctionConfig::from_pairs(&["a=1"]).unwrap();
    let field = format!("functionConfig:\n  {}\n", config.as_str().trim_end().replace('\n', "\n  "));
    let set = |list: &str| set_function_config(list.as_bytes(), &config);
    let list = "kind: ResourceList # l\nitems:\n- a: |\n    b\n\n";
    assert_eq!(set(list).unwrap(), format!("{list}{field}"));
    let old = "kind: ResourceList\nfunctionConfig:\n  # old\n  a: b\nitems: [] # none\n";
    assert_eq!(set(old).unwrap(), format!("kind: ResourceList\n{field}items: [] # none\n"));
    let json = r#"{"kind": "ResourceList", "items": [{"b": 1.50}]}"#;
    assert_eq!(set(json).unwrap(), format!("kind: ResourceList\nitems:\n- b: 1.50\n{field}"));
    assert_eq!(set("kind: List\n"), Err(ResourceListError::NotAResourceList));
    assert_eq!(set(""), Err(ResourceListError::NotAResourceList));
    assert!(matches!(set("a: [\n"), Err(ResourceListError::Syntax { line: 1, .. })));
    assert_eq!(set_function_config(b"\xff", &config), Err(ResourceListError::NotUtf8));
}

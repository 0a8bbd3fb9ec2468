//! Tests of selected resources, of documents from standard input, and of new directories.

use std::fs;
use std::path::Path;

use super::{directory, returned};
use crate::{Selector, documents, is_resource_list, read, results_yaml, split, split_with, write_new};

const A: &str = "# why\napiVersion: v1\nkind: A\nmetadata:\n  name: a\n  namespace: x\n";
const B: &str = "apiVersion: apps/v1\nkind: B\nmetadata:\n  name: b\n";

#[test]
fn a_function_gets_the_selected_resources_and_the_others_stay() {
    let dir = directory(&[("a.yaml", &format!("{A}---\n{B}---\n{A}")), ("b.yaml", B)]);
    let package = read(dir.path(), 1 << 20).unwrap();
    let name = |name: &str| Some(name.to_owned());
    for (selector, count) in [
        (Selector::default(), 4),
        (Selector { kind: name("B"), ..Selector::default() }, 2),
        (Selector { name: name("a"), namespace: name("x"), ..Selector::default() }, 2),
        (Selector { namespace: name("y"), ..Selector::default() }, 0),
        (Selector { api_version: name("apps/v1"), name: name("a"), ..Selector::default() }, 0),
    ] {
        let (selected, unselected) = package.select(&selector);
        assert_eq!(selected.item_count(), count, "{selector:?}");
        let output = split_with(selected.to_resource_list(None).as_bytes(), unselected).unwrap();
        assert_eq!(output, returned(&package), "{selector:?}");
        let all = output.package().unwrap().to_resource_list(None);
        assert_eq!(split(all.as_bytes()).unwrap(), output);
    }
}

#[test]
fn documents_become_a_package_and_documents_again() {
    let text = format!("{A}---\n---\n{B}");
    assert_eq!(returned(&documents(text).unwrap()).documents(), format!("{A}---\n{B}"));
    for (text, error) in [
        ("\n", "there is no YAML document; pass a ResourceList or KRM resources"),
        (
            "kind: A\n",
            "stdin.yaml, document 1: it has no apiVersion, so it is not a KRM resource; complete it",
        ),
    ] {
        assert_eq!(documents(text.to_owned()).unwrap_err(), error);
    }
    assert!(
        is_resource_list("# c\r\nkind: ResourceList\r\n") && is_resource_list("{\"kind\": \"ResourceList\"}")
    );
    for other in [A, "", "kind: ResourceList\n---\nkind: B\n", "{"] {
        assert!(!is_resource_list(other), "{other}");
    }
}

#[test]
fn results_are_copied_as_a_list() {
    let list = |results: &str| format!("kind: ResourceList\nitems: []\nresults:{results}\n");
    for results in ["\n- message: a", "\n  items:\n  - message: a"] {
        assert_eq!(results_yaml(list(results).as_bytes()).as_deref(), Some("- message: a\n"));
    }
    assert_eq!(results_yaml(b"kind: ResourceList\n"), None);
}

#[test]
fn a_new_directory_gets_the_files_with_their_comments() {
    let dir = directory(&[("a.yaml", &format!("# head\n\n---\n{A}")), ("sub/b.yaml", B)]);
    let package = read(dir.path(), 1 << 20).unwrap();
    let target = dir.path().join("new/one");
    let written = write_new(&target, &package, &returned(&package)).unwrap();
    assert_eq!(written.lines().count(), 2);
    for path in ["a.yaml", "sub/b.yaml"] {
        let read = |dir: &Path| fs::read_to_string(dir.join(path)).unwrap();
        assert_eq!(read(&target), read(dir.path()));
    }
    let refused = write_new(&target, &package, &returned(&package)).unwrap_err();
    assert!(refused.contains("is not empty"), "{refused}");
    let outside = returned(&package).files.into_values().next().unwrap();
    let outside = crate::Output { files: [("../x.yaml".into(), outside)].into(), ..Default::default() };
    assert!(write_new(&dir.path().join("other"), &package, &outside).unwrap_err().contains("outside"));
    assert!(!dir.path().join("other").exists());
}

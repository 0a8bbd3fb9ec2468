//! End-to-end tests: files to a ResourceList and back to files. Texts are in `tests/cases`.

mod config;
mod packages;
mod properties;
mod reading;
mod selecting;
mod writing;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use tempfile::TempDir;

use crate::file::{File, Package};
use crate::write::rebuilt;
use crate::yaml::{Body, Node, Yaml};
use crate::{Output, split};

/// The documents of one file by their indices.
type Documents = BTreeMap<usize, String>;

fn cases<T: DeserializeOwned>(name: &str) -> T {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/tests/cases").join(name);
    serde_saphyr::from_str(&fs::read_to_string(file).unwrap()).unwrap()
}

/// Creates a directory with these files.
fn directory(files: &[(&str, &str)]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    dir
}

/// Creates a package of one file `a.yaml`.
fn try_package(text: &str) -> Result<Package, String> {
    Ok(Package { files: vec![File::parse("a.yaml", text.to_owned())?] })
}

/// Returns the output of a function that changes nothing.
fn returned(package: &Package) -> Output {
    split(package.to_resource_list(None).as_bytes()).unwrap()
}

/// Returns the documents of `a.yaml` in the output of a function that changes nothing.
fn documents(package: &Package) -> Documents {
    returned(package).files.remove(Path::new("a.yaml")).unwrap_or_default()
}

fn tree(text: &str) -> Node {
    Yaml::parse(text).unwrap().unwrap().root
}

/// Returns the trees of the items that a function receives.
fn sent_items(package: &Package) -> Vec<Node> {
    let list = tree(&package.to_resource_list(None));
    match list.get("items").map(|items| items.body.clone()) {
        Some(Body::Sequence { items, .. }) => items,
        _ => panic!("items is not a list"),
    }
}

#[test]
fn annotations_are_added_for_functions_and_removed_again() {
    #[derive(Deserialize)]
    struct Case {
        document: String,
        items: Option<String>,
        returned: Option<Vec<String>>,
        error: Option<String>,
    }
    for case in cases::<Vec<Case>>("documents.yaml") {
        let document = &case.document;
        let package = match (try_package(document), case.error) {
            (Ok(package), None) => package,
            (package, error) => {
                assert_eq!(package.err(), error, "{document}");
                continue;
            }
        };
        let found = documents(&package);
        assert_eq!(rebuilt(&package.files[0], &found), *document);
        if let Some(items) = case.items {
            let head = "apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems:\n";
            assert_eq!(package.to_resource_list(None), format!("{head}{items}"));
        }
        if let Some(returned) = case.returned {
            assert_eq!(found.into_values().collect::<Vec<_>>(), returned, "{document}");
        }
    }
    let list = try_package("# nothing\n").unwrap().to_resource_list(None);
    assert_eq!(list, "apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems: []\n");
}

#[test]
fn aliases_that_grow_too_large_are_refused() {
    let mut document = String::from("apiVersion: v1\nkind: A\nx0: &x0 [a, a, a, a, a, a, a, a]\n");
    for level in 1..12 {
        let aliases = vec![format!("*x{}", level - 1); 8].join(", ");
        writeln!(document, "x{level}: &x{level} [{aliases}]").unwrap();
    }
    let error = try_package(&document).unwrap_err();
    assert!(
        error.ends_with("an alias contains itself, or aliases copy more than 100000 nodes; correct the YAML"),
        "{error}"
    );
}

#[test]
fn output_is_split_by_file() {
    #[derive(Deserialize)]
    struct Case {
        list: String,
        #[serde(default)]
        files: BTreeMap<String, Documents>,
        #[serde(default)]
        results: Vec<String>,
        error: Option<String>,
    }
    for Case { list, files, results, error } in cases::<Vec<Case>>("output.yaml") {
        let head = "apiVersion: config.kubernetes.io/v1\nkind: ResourceList\n";
        let found = split(format!("{head}{list}").as_bytes());
        let files = files.into_iter().map(|(path, documents)| (path.into(), documents)).collect();
        assert_eq!(found, error.map_or(Ok(Output { files, results }), Err), "{list}");
    }
    let is_none = "the function's output is not a ResourceList; check that the image is a KRM function";
    for output in ["", "\n# nothing\n", "hello\n", "kind: List\nitems: []\n", "- a\n"] {
        assert_eq!(split(output.as_bytes()).unwrap_err(), is_none, "{output}");
    }
    assert!(split(b"\xff").unwrap_err().contains("is not UTF-8"));
}

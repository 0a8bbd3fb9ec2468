//! The six real packages.

use std::fs;
use std::path::{Path, PathBuf};

use example_functions::{ResourceList, annotate};

use super::properties::bare;
use super::{assert_same, returned, sent_items, tree};
use crate::{Changes, FunctionConfig, read, split, write};

const PACKAGES: [(&str, usize); 6] = [
    ("ghost", 18),
    ("guestbook", 8),
    ("ingress-nginx", 21),
    ("nginx", 3),
    ("porch/1.6", 54),
    ("wordpress", 8),
];

fn packages() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/packages")
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

#[test]
fn every_document_comes_back_as_it_was_written() {
    for (name, items) in PACKAGES {
        let package = read(&packages().join(name), u64::MAX).unwrap();
        assert_eq!(package.item_count(), items, "{name}");
        let output = returned(&package);
        for file in &package.files {
            for (document, item) in file.documents.iter().zip(&output.files[&file.path]) {
                let text = &file.text[document.range.clone()];
                assert_eq!(
                    item.text.trim_end_matches('\n'),
                    text.trim_end_matches('\n'),
                    "{}",
                    file.path.display()
                );
            }
        }
    }
}

#[test]
fn items_equal_their_documents_but_for_the_annotations() {
    for (name, _) in PACKAGES {
        let package = read(&packages().join(name), u64::MAX).unwrap();
        let documents = package
            .files
            .iter()
            .flat_map(|file| file.documents.iter().map(|document| tree(&file.text[document.range.clone()])));
        for (sent, document) in sent_items(&package).iter().zip(documents) {
            assert_same(&bare(sent), &bare(&document));
        }
    }
}

#[test]
fn an_identity_function_changes_no_file() {
    for (name, _) in PACKAGES {
        let dir = tempfile::tempdir().unwrap();
        copy(&packages().join(name), dir.path());
        let package = read(dir.path(), u64::MAX).unwrap();
        let before: Vec<_> =
            package.paths().map(|path| fs::metadata(dir.path().join(path)).unwrap()).collect();
        let changes = write(dir.path(), &package, &returned(&package)).unwrap();
        assert_eq!(changes, Changes::default(), "{name}");
        for (path, before) in package.paths().zip(before) {
            let after = fs::metadata(dir.path().join(path)).unwrap();
            assert_eq!(after.modified().unwrap(), before.modified().unwrap());
            assert_eq!(
                fs::read(dir.path().join(path)).unwrap(),
                fs::read(packages().join(name).join(path)).unwrap()
            );
        }
    }
}

#[test]
fn the_example_keeps_its_comments_though_the_function_drops_them() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/package");
    let dir = tempfile::tempdir().unwrap();
    copy(&example, dir.path());
    let package = read(dir.path(), u64::MAX).unwrap();
    assert_eq!(
        package.paths().collect::<Vec<_>>(),
        ["Kptfile", "deployment.yaml", "service.yaml"].map(Path::new)
    );

    let config = FunctionConfig::from_pairs(&["owner=me"]).unwrap();
    let mut list = ResourceList::parse(&package.to_resource_list(Some(&config))).unwrap();
    assert!(annotate(&mut list).unwrap());
    let changes = write(dir.path(), &package, &split(list.to_yaml().unwrap().as_bytes()).unwrap()).unwrap();

    assert_eq!(changes.updated, ["deployment.yaml", "service.yaml"].map(PathBuf::from));
    let text = |dir: &Path| fs::read_to_string(dir.join("deployment.yaml")).unwrap();
    let annotated = "metadata:\n  name: web\n  annotations:\n    owner: me\n";
    assert_eq!(text(dir.path()), text(&example).replacen("metadata:\n  name: web\n", annotated, 1));
    assert!(text(dir.path()).contains('#'));
}

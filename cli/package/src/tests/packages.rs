//! Tests with six real packages.

use std::fs;
use std::path::{Path, PathBuf};

use example_functions::{ResourceList, annotate};

use super::{returned, sent_items, tree};
use crate::annotations::bare;
use crate::write::rebuilt;
use crate::yaml::same;
use crate::{FunctionConfig, read, split, write};

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
fn items_equal_the_files_and_a_changed_value_changes_one_line() {
    for (name, items) in PACKAGES {
        let dir = tempfile::tempdir().unwrap();
        copy(&packages().join(name), dir.path());
        let package = read(dir.path(), u64::MAX).unwrap();
        assert_eq!(package.item_count(), items, "{name}");
        let documents =
            package.files.iter().flat_map(|file| file.documents.iter().map(move |one| (file, one)));
        for (sent, (file, document)) in sent_items(&package).iter().zip(documents) {
            let text = &file.text[document.range.clone()];
            assert!(same(&bare(sent), &bare(&tree(text))), "{text}");
        }
        let mut output = returned(&package);
        assert_eq!(write(dir.path(), &package, &output).unwrap(), "nothing changed", "{name}");

        for file in &package.files {
            let items = output.files.get_mut(&file.path).unwrap();
            let expected = items.values().filter(|text| text.contains("\nkind: ")).count();
            for text in items.values_mut() {
                *text = text.replacen("\nkind: ", "\nkind: New", 1);
            }
            let changed = rebuilt(file, items);
            let lines = file.text.lines().zip(changed.lines()).filter(|(old, new)| old != new);
            assert_eq!(file.text.lines().count(), changed.lines().count(), "{}", file.path.display());
            let changed = lines.inspect(|(old, new)| assert_eq!(old.replace("kind: ", "kind: New"), *new));
            assert_eq!(changed.count(), expected, "{}", file.path.display());
        }
    }
}

#[test]
fn the_example_package_keeps_comments_that_the_function_drops() {
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

    assert_eq!(changes, "updated deployment.yaml\nupdated service.yaml");
    let text = |dir: &Path| fs::read_to_string(dir.join("deployment.yaml")).unwrap();
    let annotated = "metadata:\n  name: web\n  annotations:\n    owner: me\n";
    assert_eq!(text(dir.path()), text(&example).replacen("metadata:\n  name: web\n", annotated, 1));
    assert!(text(dir.path()).contains('#'));
}

//! Tests of writing files.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tempfile::TempDir;

use super::{Documents, cases, directory, returned};
use crate::file::File;
use crate::write::rebuilt;
use crate::{Output, Package, read, split, write};

const A: &str = "apiVersion: v1\nkind: A # why\nmetadata: {name: a}\n";
const B: &str = "kind: B\napiVersion: v1\nmetadata: {name: b}\n";
const C: &str = "apiVersion: v1\nkind: C\nmetadata: {name: c}\n";

struct Fixture {
    dir: TempDir,
    package: Package,
}

impl Fixture {
    fn new(files: &[(&str, &str)]) -> Self {
        let dir = directory(files);
        let package = read(dir.path(), 1 << 20).unwrap();
        Self { dir, package }
    }

    /// Applies `change` to the unchanged output and writes it.
    fn write(&self, change: impl FnOnce(&mut Output)) -> Result<String, String> {
        let mut output = returned(&self.package);
        change(&mut output);
        write(self.dir.path(), &self.package, &output)
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn text(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap()
    }
}

fn put(output: &mut Output, path: &str, text: &str) {
    output.files.entry(PathBuf::from(path)).or_default().insert(0, text.to_owned());
}

#[test]
fn unchanged_parts_of_files_are_kept() {
    #[derive(Deserialize)]
    struct Case {
        path: Option<String>,
        before: String,
        returned: Documents,
        after: String,
    }
    for Case { path, before, returned, after } in cases::<Vec<Case>>("writing.yaml") {
        let file = File::parse(path.as_deref().unwrap_or("a.yaml"), before).unwrap();
        assert_eq!(rebuilt(&file, &returned), after);
    }
}

#[test]
fn changed_values_are_edited_in_the_users_text() {
    #[derive(Deserialize)]
    struct Change {
        returned: [String; 2],
        written: [String; 2],
    }
    #[derive(Deserialize)]
    struct Edits {
        written: String,
        rewritten: String,
        changes: Vec<Change>,
    }
    let edits: Edits = cases("edits.yaml");
    let file = File::parse("a.yaml", edits.written.clone()).unwrap();
    let changed = |text: String| rebuilt(&file, &Documents::from([(0, text)]));
    assert_eq!(changed(edits.rewritten.clone()), edits.written);
    for Change { returned: [from, to], written: [written_from, written_to] } in edits.changes {
        assert!(edits.rewritten.contains(&from) && edits.written.contains(&written_from), "{from}");
        let found = changed(edits.rewritten.replace(&from, &to));
        assert_eq!(found, edits.written.replace(&written_from, &written_to));
    }
}

#[test]
fn only_changed_files_are_written() {
    let fixture = Fixture::new(&[("a.yaml", A), ("b.yaml", B), ("d/c.yaml", C)]);
    let before = fs::metadata(fixture.path("b.yaml")).unwrap();
    let why_not = A.replace("why", "why not");
    let changes = fixture.write(|output| {
        put(output, "a.yaml", &why_not);
        output.files.remove(Path::new("d/c.yaml"));
        put(output, "new/c.yaml", C);
    });
    assert_eq!(changes.unwrap(), "updated a.yaml\ncreated new/c.yaml\ndeleted d/c.yaml");
    assert_eq!((fixture.text("a.yaml"), fixture.text("new/c.yaml")), (why_not, C.to_owned()));
    assert!(!fixture.path("d/c.yaml").exists());
    let after = fs::metadata(fixture.path("b.yaml")).unwrap();
    assert_eq!(after.modified().unwrap(), before.modified().unwrap());
    let left: Vec<_> = fs::read_dir(fixture.dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 4, "no temporary file stays: {left:?}");
}

#[test]
fn file_modes_are_kept() {
    let fixture = Fixture::new(&[("a.yaml", A)]);
    fs::set_permissions(fixture.path("a.yaml"), fs::Permissions::from_mode(0o640)).unwrap();
    fixture
        .write(|output| {
            put(output, "a.yaml", B);
            put(output, "new.yaml", C);
        })
        .unwrap();
    let mode = |path| fs::metadata(fixture.path(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode("a.yaml"), 0o640);
    // The umask determines the mode of a new file.
    fs::write(fixture.path("plain"), "").unwrap();
    assert_eq!(mode("new.yaml"), mode("plain"));
}

#[test]
fn bad_paths_are_refused_before_anything_is_written() {
    let outside = tempfile::tempdir().unwrap();
    let fixture = Fixture::new(&[("a.yaml", A), ("d/README.md", "# no")]);
    symlink(outside.path(), fixture.path("link")).unwrap();
    symlink("/nowhere", fixture.path("dangling.yaml")).unwrap();
    let is_outside = ["../x.yaml", "/tmp/x.yaml", "d/../../x.yaml", "", ".git/config", "d/.git/x.yaml"];
    let bad_parent = ["link/x.yaml", "link/y/x.yaml", "d/README.md/x.yaml", "a.yaml/x.yaml"];
    let not_read = ["d/README.md", "d", "dangling.yaml"];
    for (paths, part) in [
        (&is_outside[..], "is outside the package; nothing was written"),
        (&bad_parent, "is not a plain directory; nothing was written"),
        (&not_read, "was not read as part of the package; move it away, nothing was written"),
    ] {
        for path in paths {
            let error = fixture.write(|output| {
                put(output, "a.yaml", B);
                put(output, path, C);
            });
            assert_eq!(fixture.text("a.yaml"), A, "{path}");
            let error = error.unwrap_err();
            assert!(error.contains(part), "{path}: {error}");
        }
    }
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    let error = fixture.write(|output| {
        put(output, "new", A);
        put(output, "new/x.yaml", B);
    });
    assert!(error.unwrap_err().contains("is not a plain directory"));
    // The same through the public function `split`.
    let list =
        "kind: ResourceList\nitems:\n- {apiVersion: v1, kind: A, metadata: {name: x, namespace: ..}}\n";
    let error = write(fixture.dir.path(), &fixture.package, &split(list.as_bytes()).unwrap()).unwrap_err();
    assert!(error.contains("is outside the package"));
}

#[test]
fn files_that_somebody_changed_are_not_overwritten() {
    let fixture = Fixture::new(&[("a.yaml", A), ("b.yaml", B)]);
    fs::write(fixture.path("a.yaml"), C).unwrap();
    let text = "a.yaml has changed since it was read; run the function again, nothing was written";
    let changed = fixture.write(|output| put(output, "a.yaml", B)).unwrap_err();
    assert_eq!(changed, text);
    let gone = fixture.write(|output| drop(output.files.remove(Path::new("a.yaml")))).unwrap_err();
    assert_eq!(gone, text);
    assert_eq!(fixture.text("a.yaml"), C);
    // A change of another file is written.
    fixture.write(|output| put(output, "b.yaml", A)).unwrap();
}

#[test]
fn a_file_without_documents_is_kept() {
    let fixture = Fixture::new(&[("a.yaml", "# nothing yet\n"), ("b.yaml", B)]);
    assert_eq!(fixture.write(|output| output.files.clear()).unwrap(), "deleted b.yaml");
    assert_eq!(fixture.text("a.yaml"), "# nothing yet\n");
}

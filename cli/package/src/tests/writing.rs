//! What happens to the files.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::{directory, returned};
use crate::{Changes, Item, Output, Package, WriteError, read, split, write};

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

    /// What a function returns that puts these items, and no others, into the package.
    fn output(&self, change: impl FnOnce(&mut Output)) -> Output {
        let mut output = returned(&self.package);
        change(&mut output);
        output
    }

    fn write(&self, change: impl FnOnce(&mut Output)) -> Result<Changes, WriteError> {
        write(self.dir.path(), &self.package, &self.output(change))
    }

    fn text(&self, path: &str) -> String {
        fs::read_to_string(self.dir.path().join(path)).unwrap()
    }
}

fn item(index: usize, text: &str) -> Item {
    Item { index, text: text.to_owned() }
}

fn file<'a>(output: &'a mut Output, path: &str) -> &'a mut Vec<Item> {
    output.files.entry(PathBuf::from(path)).or_default()
}

fn paths(paths: &[&str]) -> Vec<PathBuf> {
    paths.iter().map(PathBuf::from).collect()
}

#[test]
fn only_what_changes_is_written() {
    let fixture = Fixture::new(&[("a.yaml", A), ("b.yaml", B), ("d/c.yaml", C)]);
    let before = fs::metadata(fixture.dir.path().join("b.yaml")).unwrap();
    let changes = fixture.write(|output| {
        file(output, "a.yaml")[0].text = A.replace("why", "why not");
        output.files.remove(Path::new("d/c.yaml"));
        file(output, "new/c.yaml").push(item(0, C));
    });
    let expected = Changes {
        created: paths(&["new/c.yaml"]),
        updated: paths(&["a.yaml"]),
        deleted: paths(&["d/c.yaml"]),
    };
    let changes = changes.unwrap();
    assert_eq!(changes, expected);
    assert_eq!(changes.to_string(), "created new/c.yaml\nupdated a.yaml\ndeleted d/c.yaml");
    assert_eq!(Changes::default().to_string(), "nothing changed");
    assert_eq!(
        (fixture.text("a.yaml"), fixture.text("new/c.yaml")),
        (A.replace("why", "why not"), C.to_owned())
    );
    assert!(!fixture.dir.path().join("d/c.yaml").exists());
    let after = fs::metadata(fixture.dir.path().join("b.yaml")).unwrap();
    assert_eq!(after.modified().unwrap(), before.modified().unwrap());
    let left: Vec<_> = fs::read_dir(fixture.dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 4, "no temporary file stays: {left:?}");
}

#[test]
fn what_stands_between_documents_stays() {
    let text = format!("\u{feff}# licence\n--- # one\n\n{A}---\n---\n# two\n{B}...\n---\n{C}---\n# end\n");
    let fixture = Fixture::new(&[("a.yaml", &text)]);
    fixture.write(|output| file(output, "a.yaml")[1].text = B.replace("b}", "x}")).unwrap();
    assert_eq!(fixture.text("a.yaml"), text.replace("b}", "x}"));
}

#[test]
fn items_come_and_go_within_a_file() {
    let text = format!("# licence\n---\n{A}--- # b\n{B}---\n{C}");
    let first_gone = Fixture::new(&[("a.yaml", &text)]);
    first_gone.write(|output| drop(file(output, "a.yaml").remove(0))).unwrap();
    assert_eq!(first_gone.text("a.yaml"), format!("# licence\n---\n{B}---\n{C}"));
    let middle_gone = Fixture::new(&[("a.yaml", &text)]);
    middle_gone.write(|output| drop(file(output, "a.yaml").remove(1))).unwrap();
    assert_eq!(middle_gone.text("a.yaml"), format!("# licence\n---\n{A}---\n{C}"));
    let added = Fixture::new(&[("a.yaml", text.trim_end())]);
    added.write(|output| file(output, "a.yaml").push(item(3, A))).unwrap();
    assert_eq!(added.text("a.yaml"), format!("{text}---\n{A}"));
    let two = Fixture::new(&[]);
    two.write(|output| file(output, "x.yaml").extend([item(0, A), item(7, B)])).unwrap();
    assert_eq!(two.text("x.yaml"), format!("{A}---\n{B}"));
}

#[test]
fn windows_lines_stay() {
    let text = format!("{A}---\n{B}").replace('\n', "\r\n");
    let fixture = Fixture::new(&[("a.yaml", &text)]);
    fixture
        .write(|output| {
            file(output, "a.yaml")[0].text = A.replace("why", "x");
            file(output, "a.yaml").push(item(2, C));
        })
        .unwrap();
    assert_eq!(fixture.text("a.yaml"), text.replace("why", "x") + &format!("---\n{C}").replace('\n', "\r\n"));
}

#[test]
fn a_document_on_the_line_of_its_separator_gets_one_of_its_own() {
    let fixture = Fixture::new(&[("a.yaml", "--- {apiVersion: v1, kind: A}\n")]);
    fixture.write(|output| file(output, "a.yaml")[0].text = A.to_owned()).unwrap();
    assert_eq!(fixture.text("a.yaml"), format!("---\n{A}"));
}

#[test]
fn other_formatting_is_no_change() {
    let text = "# head\napiVersion: v1 # v\nkind: A\nx: &x\n    - \"b\"   # c\n\nz: *x\ns: \"a\\nb\\n\"\n";
    let returned = "apiVersion: v1\nkind: A # v\nx:\n- b # c\n'z': [b]\ns: |\n  a\n  b\n";
    let fixture = Fixture::new(&[("a.yaml", text)]);
    assert!(fixture.write(|output| file(output, "a.yaml")[0].text = returned.to_owned()).unwrap().is_empty());
}

/// A document as a person writes it.
const WRITTEN: &str = r#"# head
apiVersion: v1
kind: A # why

metadata:
  name: "a" # n
  # foot
spec:
    # list
    list:
      - name: x # x
        n: 1
      - name: z
        args: [a, "b"] # args

    none: # nothing
    map: {a: b , }
    text: |
        a

        b
    # end
"#;

/// The same as a library without a sense of comments writes it.
const REWRITTEN: &str = r#"apiVersion: v1
kind: A
metadata:
  name: a
spec:
  list:
  - name: x
    n: 1
  - name: z
    args:
    - a
    - b
  none: null
  map:
    a: b
  text: "a\n\nb\n"
"#;

/// A function returns REWRITTEN with a change; the file becomes WRITTEN with one.
#[track_caller]
fn assert_edited((from, to): (&str, &str), (written_from, written_to): (&str, &str)) {
    assert!(REWRITTEN.contains(from) && WRITTEN.contains(written_from), "{from} {written_from}");
    let fixture = Fixture::new(&[("a.yaml", WRITTEN)]);
    fixture.write(|output| file(output, "a.yaml")[0].text = REWRITTEN.replace(from, to)).unwrap();
    assert_eq!(fixture.text("a.yaml"), WRITTEN.replace(written_from, written_to));
}

#[test]
fn changed_values_are_edited_in_the_users_text() {
    assert_edited(("", ""), ("", ""));
    assert_edited(("name: a\n", "name: '1-b'\n"), ("\"a\" # n", "\"1-b\" # n"));
    assert_edited(("n: 1", "n: '1'"), ("n: 1", "n: '1'"));
    assert_edited(("kind: A", "kind: \"it's\""), ("kind: A", "kind: \"it's\""));
    assert_edited(("    - b\n", "    - 2\n"), ("\"b\"] # args", "2] # args"));
    assert_edited(("null", "1"), ("none: # nothing", "none: 1"));
    assert_edited(
        ("- b\n", "- |\n      b\n      c\n"),
        ("args: [a, \"b\"] # args\n", "args:\n        - a\n        - |\n          b\n          c\n"),
    );
}

#[test]
fn fields_come_and_go_in_the_users_text() {
    assert_edited(("spec", "  namespace: n\nspec"), ("# n\n", "# n\n  namespace: n\n"));
    assert_edited(
        ("  text", "  a: 1\n  b: {c: [d]}\n  text"),
        (" , }\n", " , }\n    a: 1\n    b: {c: [d]}\n"),
    );
    assert_edited(("b\\n\"\n", "b\\n\"\n  new: ''\n"), ("    # end", "    new: ''\n    # end"));
    assert_edited(("a: b\n", "a: b\n    c: 'd'\n"), ("map: {a: b , }", "map:\n      a: b\n      c: 'd'"));
    assert_edited(("  map:\n    a: b\n", ""), ("    map: {a: b , }\n", ""));
    assert_edited(("    n: 1\n", ""), ("        n: 1\n", ""));
    assert_edited(("map:\n    a: b\n", "map: {}\n"), ("map: {a: b , }", "map: {}"));
    assert_edited(("  name: a\n", "  b: c\n"), ("metadata:\n  name: \"a\" # n\n", "metadata:\n  b: c\n"));
}

#[test]
fn lists_are_written_anew_when_their_length_or_the_order_in_them_changes() {
    assert_edited(
        ("- name: x\n    n: 1\n", "- n: 1\n    name: x\n"),
        (
            "list:\n      - name: x # x\n        n: 1\n      - name: z\n        args: [a, \"b\"] # args\n",
            "list:\n    - n: 1\n      name: x\n    - name: z\n      args:\n      - a\n      - b\n",
        ),
    );
    assert_edited(
        ("  - name: x\n    n: 1\n", ""),
        (
            "    list:\n      - name: x # x\n        n: 1\n      - name: z\n        args: [a, \"b\"] # args\n\n",
            "    list:\n    - name: z\n      args:\n      - a\n      - b\n\n",
        ),
    );
}

#[test]
fn new_lines_are_the_functions_own() {
    // Comments and quotes of a list that a function has changed come from the function.
    assert_edited(
        ("  - name: x\n    n: 1\n  - name: z\n", "  - name: z # x\n"),
        (
            "    list:\n      - name: x # x\n        n: 1\n      - name: z\n        args: [a, \"b\"] # args\n",
            "    list:\n    - name: z # x\n      args:\n      - a\n      - b\n",
        ),
    );
    assert_edited(
        ("  map:\n", "  new: 'x'   # why\n  map:\n"),
        ("none: # nothing\n", "none: # nothing\n    new: 'x'   # why\n"),
    );
}

#[test]
fn a_function_has_its_way_with_comments_and_order() {
    for returned in [
        REWRITTEN.replace("kind: A", "kind: A # because"),
        REWRITTEN.replace("kind: A\n", "").replace("apiVersion", "kind: A\napiVersion"),
    ] {
        let fixture = Fixture::new(&[("a.yaml", WRITTEN)]);
        fixture.write(|output| file(output, "a.yaml")[0].text = returned.clone()).unwrap();
        assert_eq!(fixture.text("a.yaml"), returned);
    }
}

#[test]
fn json_files_stay_json() {
    let json = "{\"apiVersion\":\"v1\",\"kind\":\"A\",\"n\":[1,2.5,null,true,\"1\"]}\n";
    let fixture = Fixture::new(&[("a.json", json), ("b.json", json)]);
    fixture
        .write(|output| {
            file(output, "a.json")[0].text =
                "apiVersion: v1\nkind: B # c\nn: [1, 2.5, ~, true, '1', a]\n".to_owned();
        })
        .unwrap();
    let pretty = "{\n  \"apiVersion\": \"v1\",\n  \"kind\": \"B\",\n  \"n\": [\n    1,\n    2.5,\n    null,\n    true,\n    \
                  \"1\",\n    \"a\"\n  ]\n}\n";
    assert_eq!((fixture.text("a.json").as_str(), fixture.text("b.json").as_str()), (pretty, json));
}

#[test]
fn modes_are_kept() {
    let fixture = Fixture::new(&[("a.yaml", A)]);
    let path = fixture.dir.path().join("a.yaml");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    fixture
        .write(|output| {
            file(output, "a.yaml")[0].text = B.to_owned();
            file(output, "new.yaml").push(item(0, C));
        })
        .unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o640);
    // As any program creates a file: the umask decides.
    let plain = fixture.dir.path().join("plain");
    fs::write(&plain, "").unwrap();
    assert_eq!(mode(&fixture.dir.path().join("new.yaml")), mode(&plain));
}

#[test]
fn bad_paths_are_refused_before_anything_is_written() {
    let outside = tempfile::tempdir().unwrap();
    let fixture = Fixture::new(&[("a.yaml", A), ("d/README.md", "# no")]);
    symlink(outside.path(), fixture.dir.path().join("link")).unwrap();
    symlink("/nowhere", fixture.dir.path().join("dangling.yaml")).unwrap();
    let refused = |path: &str| {
        let error = fixture.write(|output| {
            file(output, "a.yaml")[0].text = B.to_owned();
            file(output, path).push(item(0, C));
        });
        assert_eq!(fixture.text("a.yaml"), A, "{path}");
        error.unwrap_err()
    };
    for path in ["../x.yaml", "/tmp/x.yaml", "d/../../x.yaml", "", ".git/config", "d/.git/x.yaml"] {
        assert!(matches!(refused(path), WriteError::Outside { .. }), "{path}");
    }
    for path in ["link/x.yaml", "link/y/x.yaml", "d/README.md/x.yaml", "a.yaml/x.yaml"] {
        assert!(matches!(refused(path), WriteError::BadParent { .. }), "{path}");
    }
    for path in ["d/README.md", "d", "dangling.yaml"] {
        assert!(matches!(refused(path), WriteError::NotRead { .. }), "{path}");
    }
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    let error = fixture.write(|output| {
        file(output, "new").push(item(0, A));
        file(output, "new/x.yaml").push(item(0, B));
    });
    assert!(matches!(error, Err(WriteError::BadParent { .. })));
    // The same through the front door.
    let list =
        "kind: ResourceList\nitems:\n- {apiVersion: v1, kind: A, metadata: {name: x, namespace: ..}}\n";
    let output = split(list.as_bytes()).unwrap();
    assert!(matches!(write(fixture.dir.path(), &fixture.package, &output), Err(WriteError::Outside { .. })));
}

#[test]
fn files_changed_meanwhile_are_not_overwritten() {
    let fixture = Fixture::new(&[("a.yaml", A), ("b.yaml", B)]);
    fs::write(fixture.dir.path().join("a.yaml"), C).unwrap();
    let error = fixture.write(|output| file(output, "a.yaml")[0].text = B.to_owned()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a.yaml has changed since it was read; run the function again, nothing was written"
    );
    let gone = fixture.write(|output| drop(output.files.remove(Path::new("a.yaml"))));
    assert!(matches!(gone, Err(WriteError::ChangedMeanwhile { .. })));
    assert_eq!(fixture.text("a.yaml"), C);
    // A change that does not touch it goes through.
    fixture.write(|output| file(output, "b.yaml")[0].text = A.to_owned()).unwrap();
}

#[test]
fn a_file_without_documents_stays() {
    let fixture = Fixture::new(&[("a.yaml", "# nothing yet\n"), ("b.yaml", B)]);
    let changes = fixture.write(|output| output.files.clear()).unwrap();
    assert_eq!(changes.deleted, paths(&["b.yaml"]));
    assert_eq!(fixture.text("a.yaml"), "# nothing yet\n");
}

//! Tests of which files belong to a package.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::directory;
use crate::read;

const RESOURCE: &str = "apiVersion: v1\nkind: A\n";

fn paths(dir: &Path) -> Vec<String> {
    let package = read(dir, 1 << 20).unwrap();
    package.paths().map(|path| path.to_str().unwrap().to_owned()).collect()
}

#[track_caller]
fn assert_error(dir: &Path, limit: u64, part: &str) {
    let error = read(dir, limit).unwrap_err();
    assert!(error.contains(part), "{error}");
}

#[test]
fn all_yaml_files_are_read_in_kyamls_order() {
    let names = ["Kptfile", "a/b.yml", "a.yaml", "a/.hidden/c.yaml", "sub/Kptfile", "z.json", "é.yaml"];
    let mut files: Vec<_> = names.iter().map(|name| (*name, RESOURCE)).collect();
    files.extend([
        ("README.md", "# no"),
        (".git/x.yaml", "not: krm"),
        ("sub/.git", "gitdir: x"),
        ("a.yaml.bak", ""),
    ]);
    let dir = directory(&files);
    assert_eq!(
        paths(dir.path()),
        ["Kptfile", "a/.hidden/c.yaml", "a/b.yml", "a.yaml", "sub/Kptfile", "z.json", "é.yaml"]
    );
    // A trailing slash and a link to the package itself change nothing.
    let link = tempfile::tempdir().unwrap();
    symlink(dir.path(), link.path().join("link")).unwrap();
    assert_eq!(paths(&link.path().join("link/")), paths(dir.path()));
}

#[test]
fn krmignore_applies_only_to_its_own_package() {
    let dir = directory(&[
        (".krmignore", "# comment\n*.tmp.yaml\n/only-top.yaml\nskipped/\n!kept.tmp.yaml\n"),
        ("Kptfile", RESOURCE),
        ("a.tmp.yaml", "not: krm"),
        ("kept.tmp.yaml", RESOURCE),
        ("only-top.yaml", "not: krm"),
        ("d/only-top.yaml", RESOURCE),
        ("d/x.tmp.yaml", "not: krm"),
        ("d/.krmignore", "*.yaml"),
        ("skipped/x.yaml", "not: krm"),
        ("sub/Kptfile", RESOURCE),
        ("sub/.krmignore", "s.yaml"),
        ("sub/s.yaml", "not: krm"),
        ("sub/x.tmp.yaml", RESOURCE),
    ]);
    assert_eq!(
        paths(dir.path()),
        ["Kptfile", "d/only-top.yaml", "kept.tmp.yaml", "sub/Kptfile", "sub/x.tmp.yaml"]
    );
}

#[test]
fn symbolic_links_are_not_followed() {
    let dir = directory(&[("a.yaml", RESOURCE)]);
    let other = directory(&[("secret.yaml", RESOURCE)]);
    symlink(other.path(), dir.path().join("dir")).unwrap();
    symlink(other.path().join("secret.yaml"), dir.path().join("link.yaml")).unwrap();
    symlink("/dev/zero", dir.path().join("zero.txt")).unwrap();
    let package = read(dir.path(), 1 << 20).unwrap();
    assert_eq!(package.paths().collect::<Vec<_>>(), [Path::new("a.yaml")]);
}

#[test]
fn the_total_size_is_limited() {
    let dir = directory(&[("a.yaml", RESOURCE), ("b.yaml", RESOURCE)]);
    let size = 2 * RESOURCE.len() as u64;
    assert_eq!(read(dir.path(), size).unwrap().item_count(), 2);
    assert_error(dir.path(), size - 1, "the package is larger than 45 bytes; raise --max-request-body-size");
}

#[test]
fn errors_name_the_file_and_the_fix() {
    let dir = directory(&[("d/a.yaml", "---\napiVersion: v1\nkind: A\n---\n# two\na: [\n")]);
    assert_error(dir.path(), 1 << 20, "d/a.yaml, document 2: line 6: ");
    fs::write(dir.path().join("d/a.yaml"), b"a: \xff\n").unwrap();
    assert_error(dir.path(), 1 << 20, "d/a.yaml is not UTF-8; convert it, or list it in .krmignore");
    fs::write(dir.path().join(".krmignore"), "a{b").unwrap();
    assert_error(dir.path(), 1 << 20, "cannot use .krmignore: ");
    assert_error(&dir.path().join("missing"), 1 << 20, "missing: No such file or directory");
    assert_error(&dir.path().join(".krmignore"), 1 << 20, "cannot list ");
}

#[test]
fn kustomizations_may_lack_kind_and_api_version() {
    let dir = directory(&[("k/kustomization.yaml", "resources: [a.yaml]\n")]);
    assert_eq!(read(dir.path(), 1 << 20).unwrap().item_count(), 1);
}

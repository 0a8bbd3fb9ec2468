//! The cp that init containers of Porch's templates call does what they expect of it.

use std::os::unix::fs::MetadataExt;

use tempfile::TempDir;

use super::*;

fn order(args: &[&str]) -> Result<Order, String> {
    Order::parse(args.iter().map(OsString::from))
}

/// Runs `cp` with `args`, where `@` stands for the directory.
fn cp(directory: &TempDir, args: &[&str]) -> Result<(), CopyError> {
    let root = directory.path().to_str().unwrap();
    let args: Vec<_> = args.iter().map(|arg| arg.replace('@', root)).collect();
    order(&args.iter().map(String::as_str).collect::<Vec<_>>()).unwrap().carry_out()
}

/// A directory `src` with a program, a link to it, and a directory.
fn tree() -> TempDir {
    let directory = TempDir::new().unwrap();
    let src = directory.path().join("src");
    fs::create_dir_all(src.join("sub")).unwrap();
    fs::write(src.join("program"), "first").unwrap();
    fs::set_permissions(src.join("program"), Permissions::from_mode(0o751)).unwrap();
    symlink("program", src.join("link")).unwrap();
    fs::write(src.join("sub/data"), "data").unwrap();
    fs::set_permissions(src.join("sub"), Permissions::from_mode(0o711)).unwrap();
    directory
}

fn mode(path: &Path) -> u32 {
    path.symlink_metadata().unwrap().mode() & 0o7777
}

/// That `copy` is like `src` of [`tree`], and holds nothing else.
fn assert_copied(copy: &Path) {
    assert_eq!(fs::read_to_string(copy.join("program")).unwrap(), "first");
    assert_eq!(mode(&copy.join("program")), 0o751);
    assert_eq!(fs::read_link(copy.join("link")).unwrap(), Path::new("program"));
    assert_eq!(fs::read_to_string(copy.join("sub/data")).unwrap(), "data");
    assert_eq!(mode(&copy.join("sub")), 0o711);
    let mut names: Vec<_> = fs::read_dir(copy).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["link", "program", "sub"]);
}

#[test]
fn options_and_paths_are_told_apart() {
    let expected = |recursive, sources: &[&str], destination: &str| Order {
        recursive,
        sources: sources.iter().map(PathBuf::from).collect(),
        destination: PathBuf::from(destination),
    };
    for option in ["-a", "-r", "-R", "-rp", "-pR"] {
        assert_eq!(order(&[option, "a", "b"]).unwrap(), expected(true, &["a"], "b"), "{option}");
    }
    assert_eq!(order(&["-p", "a", "b", "c"]).unwrap(), expected(false, &["a", "b"], "c"));
    assert_eq!(order(&["a", "b", "-a"]).unwrap(), expected(true, &["a"], "b"));
    assert_eq!(order(&["--", "-a", "-"]).unwrap(), expected(false, &["-a"], "-"));
    for wrong in
        [&["-x", "a", "b"][..], &["--archive", "a", "b"], &["-av", "a", "b"], &["-a", "a"], &[], &["", "a"]]
    {
        order(wrong).unwrap_err();
    }
}

#[test]
fn contents_go_into_the_destination() {
    let directory = tree();
    let existing = directory.path().join("existing");
    fs::create_dir(&existing).unwrap();
    fs::set_permissions(&existing, Permissions::from_mode(0o777)).unwrap();
    for destination in ["@/existing", "@/new", "@/slash/"] {
        cp(&directory, &["-a", "@/src/.", destination]).unwrap();
    }
    for copy in ["existing", "new", "slash"] {
        assert_copied(&directory.path().join(copy));
    }
    assert_eq!(mode(&existing), 0o777, "a directory that is there stays as it is");

    symlink("existing", directory.path().join("to-existing")).unwrap();
    cp(&directory, &["-a", "@/src/./program", "@/to-existing"]).unwrap();
    cp(&directory, &["-a", "@/src/.", "@/to-existing"]).unwrap();
    assert!(directory.path().join("to-existing").is_symlink());
    assert_copied(&existing);
}

#[test]
fn a_directory_goes_under_its_name_or_the_new_one() {
    let directory = tree();
    fs::create_dir(directory.path().join("existing")).unwrap();
    cp(&directory, &["-r", "@/src", "@/existing"]).unwrap();
    assert_copied(&directory.path().join("existing/src"));
    cp(&directory, &["-R", "@/src/", "@/new"]).unwrap();
    assert_copied(&directory.path().join("new"));
}

#[test]
fn copying_again_replaces() {
    let directory = tree();
    let target = directory.path().join("target");
    fs::create_dir(&target).unwrap();
    fs::write(target.join("program"), "an old and longer one").unwrap();
    fs::set_permissions(target.join("program"), Permissions::from_mode(0o400)).unwrap();
    symlink("elsewhere", target.join("link")).unwrap();
    // As a container that was killed leaves it.
    fs::write(target.join(format!(".wrapper-server-{}.tmp", process::id())), "half").unwrap();
    cp(&directory, &["-a", "@/src/.", "@/target"]).unwrap();
    assert_copied(&target);
}

#[test]
fn files_are_copied_and_links_followed_without_recursion() {
    let directory = tree();
    cp(&directory, &["-p", "@/src/link", "@/copy"]).unwrap();
    assert_eq!(
        (
            fs::read_to_string(directory.path().join("copy")).unwrap().as_str(),
            mode(&directory.path().join("copy"))
        ),
        ("first", 0o751)
    );
    cp(&directory, &["-a", "@/src/link", "@/copied-link"]).unwrap();
    assert!(directory.path().join("copied-link").is_symlink());
    fs::create_dir(directory.path().join("many")).unwrap();
    cp(&directory, &["@/src/program", "@/copy", "@/many"]).unwrap();
    assert!(directory.path().join("many/program").is_file() && directory.path().join("many/copy").is_file());
    // Onto itself is no loss.
    cp(&directory, &["@/copy", "@/copy"]).unwrap();
    assert_eq!(fs::read_to_string(directory.path().join("copy")).unwrap(), "first");
}

#[test]
fn what_cannot_be_copied_is_named() {
    let directory = tree();
    let error = |args: &[&str]| cp(&directory, args).unwrap_err();
    assert!(matches!(error(&["@/src", "@/new"]), CopyError::Directory(path) if path.ends_with("src")));
    assert!(
        matches!(error(&["-a", "@/src", "@/src", "@/new"]), CopyError::NotADirectory(path) if path.ends_with("new"))
    );
    assert!(
        matches!(error(&["-a", "@/missing", "@/new"]), CopyError::Io { path, .. } if path.ends_with("missing"))
    );
    assert!(
        matches!(error(&["-a", "@/src", "@/no/such"]), CopyError::Io { path, .. } if path.ends_with("no/such"))
    );
    assert!(matches!(error(&["-a", "@/src", "@/src/program"]), CopyError::Itself { .. }));
    fs::write(directory.path().join("file"), "").unwrap();
    assert!(
        matches!(error(&["-a", "@/src", "@/file"]), CopyError::Io { path, .. } if path.ends_with("file"))
    );
    let _socket = std::os::unix::net::UnixListener::bind(directory.path().join("socket")).unwrap();
    assert!(matches!(error(&["-a", "@/socket", "@/new"]), CopyError::Kind(path) if path.ends_with("socket")));
}

#[test]
fn a_directory_is_not_copied_into_itself() {
    let directory = tree();
    fs::create_dir(directory.path().join("src/inner")).unwrap();
    symlink("src/inner", directory.path().join("around")).unwrap();
    for destination in ["@/src", "@/src/inner", "@/src/inner/deeper", "@/src/../src/new", "@/around"] {
        for source in ["@/src", "@/src/."] {
            let error = cp(&directory, &["-a", source, destination]).unwrap_err();
            assert!(matches!(error, CopyError::Itself { .. }), "{destination}: {error}");
        }
    }
    assert_eq!(fs::read_dir(directory.path().join("src/inner")).unwrap().count(), 0);
}

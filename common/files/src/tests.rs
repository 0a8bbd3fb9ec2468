//! Tests with a real file, which is changed in the ways of a user and of a kubelet. Each change is
//! reported exactly once.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use tempfile::{TempDir, tempdir};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::*;

const INTERVAL: Duration = Duration::from_secs(10);

/// A number in a file. Two numbers are equivalent if they differ only in the last digit.
struct Number<const TOLERATED: u32> {
    path: PathBuf,
    parsed: Arc<AtomicUsize>,
}

impl<const TOLERATED: u32> FileSource for Number<TOLERATED> {
    type Content = bytes::Bytes;
    type Value = u32;
    type Error = String;

    const TOLERATED_FAILURES: u32 = TOLERATED;

    fn name(&self) -> String {
        "numbers".to_owned()
    }

    fn read(&self, _: Option<&bytes::Bytes>) -> Result<bytes::Bytes, String> {
        read(&self.path, 100).map_err(|error| error.to_string())
    }

    fn parse(&self, content: &bytes::Bytes) -> Result<u32, String> {
        self.parsed.fetch_add(1, Ordering::Relaxed);
        let text = String::from_utf8_lossy(content);
        text.parse().map_err(|_| format!("{text} is no number"))
    }

    fn is_same(&self, last: &u32, new: &u32) -> bool {
        last / 10 == new / 10
    }
}

/// A directory, the path of a missing file in it, its source, and the number of parses.
fn number<const TOLERATED: u32>() -> (TempDir, PathBuf, Number<TOLERATED>, Arc<AtomicUsize>) {
    let directory = tempdir().unwrap();
    let (path, parsed) = (directory.path().join("number"), Arc::<AtomicUsize>::default());
    (directory, path.clone(), Number { path, parsed: Arc::clone(&parsed) }, parsed)
}

#[tokio::test]
async fn only_a_different_value_notifies_and_a_broken_file_changes_nothing() {
    let (_directory, path, source, parsed) = number::<0>();
    fs::write(&path, "10").unwrap();
    let files = WatchedFiles::read(source).unwrap();
    let mut values = files.subscribe();
    // The file's new content, and whether it notifies receivers. Then the value, the last error and
    // the number of parses after it.
    for (text, is_news, value, error, parses) in [
        ("10", false, 10, None, 1),
        ("12", false, 10, None, 2),
        ("20", true, 20, None, 3),
        ("20", false, 20, None, 3),
        ("x", false, 20, Some("x is no number"), 4),
        ("y", false, 20, Some("y is no number"), 5),
        ("20", false, 20, None, 5),
        ("z", false, 20, Some("z is no number"), 6),
        ("30", true, 30, None, 7),
    ] {
        fs::write(&path, text).unwrap();
        files.reload().await;
        assert_eq!(values.has_changed().unwrap(), is_news, "{text}");
        assert_eq!((*values.borrow_and_update(), files.last_error().as_deref()), (value, error), "{text}");
        assert_eq!(parsed.load(Ordering::Relaxed), parses, "{text}");
    }
    fs::remove_file(&path).unwrap();
    files.reload().await;
    assert_eq!((files.value(), files.last_error().is_some()), (30, true), "a removed file keeps the value");
}

#[tokio::test]
async fn a_single_failure_may_be_tolerated() {
    let (_directory, path, source, _) = number::<1>();
    fs::write(&path, "10").unwrap();
    let files = WatchedFiles::read(source).unwrap();
    for (text, is_error) in
        [("x", false), ("20", false), ("x", false), ("y", true), ("y", true), ("20", false)]
    {
        fs::write(&path, text).unwrap();
        files.reload().await;
        assert_eq!(files.last_error().is_some(), is_error, "{text}");
    }
}

#[tokio::test]
async fn files_are_read_when_they_are_first_needed() {
    let (_directory, path, source, parsed) = number::<0>();
    let files = WatchedFiles::unread(source, 0);
    let value = || files.value_or_reload(|&number| number > 0);
    assert_eq!((value().await, files.last_error().is_some()), (0, true));
    fs::write(&path, "10").unwrap();
    assert_eq!((tokio::join!(value(), value()), files.last_error()), ((10, 10), None));
    fs::write(&path, "20").unwrap();
    assert_eq!((value().await, parsed.load(Ordering::Relaxed)), (10, 1));
}

#[tokio::test(start_paused = true)]
async fn a_config_maps_mount_is_followed() {
    // Like a kubelet: the name links to `..data`, and `..data` links to the version.
    let (directory, path, source, _) = number::<0>();
    let version = |name: &str, text: &str| {
        let version = directory.path().join(name);
        fs::create_dir(&version).unwrap();
        fs::write(version.join("number"), text).unwrap();
        symlink(name, directory.path().join("..new")).unwrap();
        fs::rename(directory.path().join("..new"), directory.path().join("..data")).unwrap();
    };
    version("..1", "10");
    symlink("..data/number", path).unwrap();
    let files = WatchedFiles::read(source).unwrap();
    let mut values = files.subscribe();
    let (sender, mut reports) = mpsc::unbounded_channel();
    let start = Instant::now();
    tokio::spawn(files.follow(INTERVAL, move |usable| sender.send((usable, start.elapsed())).unwrap()));
    assert_eq!(reports.recv().await, Some((true, Duration::ZERO)));
    version("..2", "20");
    assert_eq!(reports.recv().await, Some((true, INTERVAL)));
    assert_eq!(*values.borrow_and_update(), 20);
    version("..3", "broken");
    assert_eq!(reports.recv().await, Some((false, 2 * INTERVAL)));
    assert_eq!(reports.recv().await, Some((false, 3 * INTERVAL)));
    version("..4", "20");
    assert_eq!(reports.recv().await, Some((true, 4 * INTERVAL)));
    assert!(!values.has_changed().unwrap(), "the value is unchanged");
}

#[test]
fn the_size_of_a_read_is_limited() {
    let (_directory, path, ..) = number::<0>();
    let read = || read(&path, 3);
    assert_eq!(read().unwrap_err().kind(), io::ErrorKind::NotFound);
    fs::write(&path, "abc").unwrap();
    assert_eq!(read().unwrap(), "abc");
    fs::write(&path, "abcd").unwrap();
    assert_eq!(read().unwrap_err().kind(), io::ErrorKind::FileTooLarge);
}

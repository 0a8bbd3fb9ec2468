//! Changes of a real file, as people and kubelets make them: each is seen once, and none is lost.

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

/// A number in a file. It is the same as another one if its tens are.
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
        read(&self.path, 100).map(|file| file.bytes).map_err(|error| error.to_string())
    }

    fn parse(&self, content: &bytes::Bytes, _: Option<&u32>) -> Result<u32, String> {
        self.parsed.fetch_add(1, Ordering::Relaxed);
        let text = String::from_utf8_lossy(content);
        text.parse().map_err(|_| format!("{text} is no number"))
    }

    fn is_same(&self, last: &u32, new: &u32) -> bool {
        last / 10 == new / 10
    }
}

fn path(directory: &TempDir) -> PathBuf {
    directory.path().join("number")
}

fn number<const TOLERATED: u32>(directory: &TempDir) -> Number<TOLERATED> {
    Number { path: path(directory), parsed: Arc::default() }
}

/// With a file that says 10, which was read.
fn watched<const TOLERATED: u32>() -> (TempDir, WatchedFiles<Number<TOLERATED>>) {
    let directory = tempdir().unwrap();
    fs::write(path(&directory), "10").unwrap();
    let files = WatchedFiles::read(number(&directory)).unwrap();
    (directory, files)
}

#[tokio::test]
async fn only_another_meaning_is_news_and_a_broken_file_changes_nothing() {
    let (directory, files) = watched::<0>();
    let mut values = files.subscribe();
    // What the file says, whether that is news, the value and the error after it.
    for (text, is_news, value, error) in [
        ("10", false, 10, None),
        ("12", false, 10, None),
        ("20", true, 20, None),
        ("x", false, 20, Some("x is no number")),
        ("y", false, 20, Some("y is no number")),
        ("20", false, 20, None),
        ("z", false, 20, Some("z is no number")),
        ("30", true, 30, None),
    ] {
        fs::write(path(&directory), text).unwrap();
        files.reload().await;
        assert_eq!(values.has_changed().unwrap(), is_news, "{text}");
        assert_eq!((*values.borrow_and_update(), files.last_error().as_deref()), (value, error), "{text}");
    }
    fs::remove_file(path(&directory)).unwrap();
    files.reload().await;
    assert_eq!((files.value(), files.last_error().is_some()), (30, true), "it vanished");
}

#[tokio::test]
async fn a_good_content_is_parsed_once() {
    let directory = tempdir().unwrap();
    let source = number::<0>(&directory);
    let parsed = Arc::clone(&source.parsed);
    fs::write(path(&directory), "10").unwrap();
    let files = WatchedFiles::read(source).unwrap();
    for (text, times) in [("10", 1), ("12", 2), ("12", 2), ("20", 3), ("20", 3)] {
        fs::write(path(&directory), text).unwrap();
        files.reload().await;
        assert_eq!(parsed.load(Ordering::Relaxed), times);
    }
}

#[tokio::test]
async fn a_failure_that_passes_may_be_tolerated() {
    let (directory, files) = watched::<1>();
    for (text, is_error) in
        [("x", false), ("20", false), ("x", false), ("y", true), ("y", true), ("20", false)]
    {
        fs::write(path(&directory), text).unwrap();
        files.reload().await;
        assert_eq!(files.last_error().is_some(), is_error, "{text}");
    }
}

#[tokio::test]
async fn files_are_read_when_they_are_first_needed() {
    let directory = tempdir().unwrap();
    let source = number::<0>(&directory);
    let parsed = Arc::clone(&source.parsed);
    let files = WatchedFiles::unread(source, 0);
    let value = || files.value_or_reload(|&number| number > 0);
    assert_eq!((value().await, files.last_error().is_some()), (0, true));
    fs::write(path(&directory), "10").unwrap();
    assert_eq!((tokio::join!(value(), value()), files.last_error()), ((10, 10), None));
    fs::write(path(&directory), "20").unwrap();
    assert_eq!(value().await, 10);
    assert_eq!(parsed.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn a_config_maps_mount_is_followed() {
    // As a kubelet does it: the name leads to `..data`, and that to the version.
    let directory = tempdir().unwrap();
    let version = |name: &str, text: &str| {
        let version = directory.path().join(name);
        fs::create_dir(&version).unwrap();
        fs::write(version.join("number"), text).unwrap();
        symlink(name, directory.path().join("..new")).unwrap();
        fs::rename(directory.path().join("..new"), directory.path().join("..data")).unwrap();
    };
    version("..1", "10");
    symlink("..data/number", path(&directory)).unwrap();
    let files = WatchedFiles::read(number::<0>(&directory)).unwrap();
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
    assert!(!values.has_changed().unwrap(), "as before it broke");
}

#[test]
fn a_read_is_bounded_and_its_text_is_utf_8() {
    let directory = tempdir().unwrap();
    let read = || read(&path(&directory), 3);
    assert_eq!(read().unwrap_err().kind(), io::ErrorKind::NotFound);
    fs::write(path(&directory), "abc").unwrap();
    let content = read().unwrap();
    assert_eq!(content.text().unwrap(), "abc");
    assert!(content.modified.is_some());
    assert!(format!("{content:?}").starts_with("FileContent { bytes: [3 bytes], "), "{content:?}");
    fs::write(path(&directory), "abcd").unwrap();
    assert_eq!(read().unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    fs::write(path(&directory), b"\xff").unwrap();
    assert_eq!(read().unwrap().text().unwrap_err().kind(), io::ErrorKind::InvalidData);
}

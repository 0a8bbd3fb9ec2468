//! Changes of a real file, as people and kubelets make them: each is seen once, and none is lost.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicUsize, Ordering};

use tempfile::{TempDir, tempdir};
use tokio::time::Instant;

use super::*;

const EVERY: Duration = Duration::from_secs(10);

fn path(directory: &TempDir) -> PathBuf {
    directory.path().join("numbers.yaml")
}

fn file(directory: &TempDir) -> WatchedFile<Vec<u32>> {
    let parse =
        |text: &str| porch_fn_settings::yaml::parse::<Option<Vec<u32>>>(text).map(Option::unwrap_or_default);
    WatchedFile {
        flag: "numbers",
        path: path(directory),
        parse: Box::new(parse),
        expected: "expected a list of numbers",
    }
}

fn seeing(directory: &TempDir) -> Seeing<Vec<u32>> {
    let file = file(directory);
    let First { content: good, seen } = file.read().unwrap_or_default();
    Seeing { file, good, since: Time::from_millis(0), seen }
}

fn ignore() -> Told {
    Box::new(|_| {})
}

#[test]
fn only_another_meaning_is_news() {
    let directory = tempdir().unwrap();
    fs::write(path(&directory), "[1]").unwrap();
    let mut seeing = seeing(&directory);
    assert!(seeing.look().is_none(), "known from the start");
    fs::write(path(&directory), "- 1 # as before\n").unwrap();
    assert!(seeing.look().unwrap().unwrap().is_none());
    fs::write(path(&directory), "[2]").unwrap();
    let content = seeing.look().unwrap().unwrap().unwrap();
    assert_eq!(*content.value, [2]);
    let now = std::time::SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let age = now.saturating_sub(Duration::from_millis(content.modified.unwrap().as_millis()));
    assert!(age < Duration::from_hours(1), "{age:?}");
    assert!(seeing.look().is_none());
}

#[test]
fn a_change_is_later_than_what_was_there_whatever_the_file_system_says() {
    let directory = tempdir().unwrap();
    let at = Time::from_millis;
    let mut seeing = Seeing {
        file: file(&directory),
        good: Content { value: Arc::new(vec![1]), modified: Some(at(50)) },
        since: at(100),
        seen: Seen::Nothing,
    };
    // What it says, when its file system says it was written, when it is seen, and the time that counts.
    for (text, modified, now, counts) in [
        ("[2]", Some(150), 190, 150),
        ("[1]", Some(50), 200, 200),
        ("[3]", Some(200), 210, 210),
        ("[4]", None, 220, 220),
        ("[5]", Some(900), 230, 900),
        ("[6]", Some(300), 240, 900),
        ("[7]", Some(901), 250, 901),
        ("[8]", Some(940), 990, 940),
        ("[9]", Some(980), 1000, 1000),
    ] {
        let text = Text { text: text.to_owned(), modified: modified.map(at) };
        let content = seeing.take(Ok(text), at(now)).unwrap().unwrap().unwrap();
        assert_eq!((content.modified, &content), (Some(at(counts)), &seeing.good));
    }
}

#[test]
fn a_copy_that_keeps_its_time_is_a_later_configuration() {
    let directory = tempdir().unwrap();
    fs::write(path(&directory), "[1]").unwrap();
    let mut seeing = seeing(&directory);
    let old = seeing.good.modified.unwrap();
    fs::write(path(&directory), "[2]").unwrap();
    let hour_ago = std::time::SystemTime::now() - Duration::from_hours(1);
    File::options().append(true).open(path(&directory)).unwrap().set_modified(hour_ago).unwrap();
    let content = seeing.look().unwrap().unwrap().unwrap();
    assert!(content.modified.unwrap() >= old, "{content:?}");
}

#[test]
fn each_broken_text_is_told_once_and_changes_nothing() {
    let directory = tempdir().unwrap();
    fs::write(path(&directory), "[1]").unwrap();
    let mut seeing = seeing(&directory);
    let broken = ["- 1\n- many\n", "- 1\n- [\n"];
    for text in broken {
        fs::write(path(&directory), text).unwrap();
        let error = seeing.look().unwrap().unwrap_err().to_string();
        assert!(
            error.starts_with("--numbers /") && error.ends_with("; expected a list of numbers"),
            "{error}"
        );
        assert!(error.contains("line ") && error.contains("column "), "{error}");
        assert!(seeing.look().is_none());
    }
    assert_eq!(*seeing.good.value, [1]);
    fs::write(path(&directory), "[1]").unwrap();
    assert!(seeing.look().unwrap().unwrap().is_none(), "as before it broke");
    fs::write(path(&directory), broken[0]).unwrap();
    assert!(seeing.look().unwrap().is_err(), "broken anew");
    fs::write(path(&directory), "[2]").unwrap();
    assert_eq!(*seeing.look().unwrap().unwrap().unwrap().value, [2]);
}

#[test]
fn a_file_that_vanishes_is_told_once_and_one_that_never_was_is_not() {
    let directory = tempdir().unwrap();
    let mut first = seeing(&directory);
    assert!(first.look().is_none());
    assert!(first.look().is_none());
    fs::write(path(&directory), "[1]").unwrap();
    assert_eq!(*first.look().unwrap().unwrap().unwrap().value, [1]);
    fs::remove_file(path(&directory)).unwrap();
    let error = first.look().unwrap().unwrap_err();
    assert!(is_missing(&error) && error.to_string().contains("numbers.yaml"), "{error}");
    assert!(first.look().is_none());
    assert_eq!(*first.good.value, [1]);

    // Between the start and the first look.
    fs::write(path(&directory), "[2]").unwrap();
    let mut second = seeing(&directory);
    fs::remove_file(path(&directory)).unwrap();
    assert!(second.look().unwrap().is_err());
    // One that cannot be read for another reason is told of even if it was never good.
    let mut third = seeing(&directory);
    fs::create_dir(path(&directory)).unwrap();
    assert!(third.look().unwrap().is_err());
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let directory = tempdir().unwrap();
    let error = || file(&directory).read().unwrap_err().to_string();
    assert!(error().ends_with("numbers.yaml: No such file or directory (os error 2)"), "{}", error());
    fs::write(path(&directory), b"\xff").unwrap();
    assert!(error().contains("UTF-8"), "{}", error());
    let comment = "#".repeat(MAX_BYTES as usize);
    fs::write(path(&directory), &comment).unwrap();
    assert!(file(&directory).read().unwrap().content.value.is_empty());
    fs::write(path(&directory), comment + "#").unwrap();
    assert!(error().contains("too large"), "{}", error());
}

/// Reading --config logs its functions.
#[tokio::test(start_paused = true)]
async fn a_file_is_parsed_once_for_each_text() {
    let directory = tempdir().unwrap();
    fs::write(path(&directory), "[1]").unwrap();
    let parsed = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&parsed);
    let parse = move |_: &str| Ok::<_, String>(counted.fetch_add(1, Ordering::Relaxed));
    let file = WatchedFile { flag: "numbers", path: path(&directory), parse: Box::new(parse), expected: "" };
    let first = file.read().unwrap();
    let (task, mut receiver) = file.watch(EVERY, first, ignore());
    let _task = tokio::spawn(task);
    sleep(5 * EVERY).await;
    assert_eq!(parsed.load(Ordering::Relaxed), 1);
    fs::write(path(&directory), "[2]").unwrap();
    receiver.changed().await.unwrap();
    assert_eq!(parsed.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn a_config_maps_mount_is_followed() {
    // As kubelet does it: the name leads to `..data`, and that to the version.
    let directory = tempdir().unwrap();
    let version = |name: &str, text: &str| {
        let version = directory.path().join(name);
        fs::create_dir(&version).unwrap();
        fs::write(version.join("numbers.yaml"), text).unwrap();
        symlink(name, directory.path().join("..new")).unwrap();
        fs::rename(directory.path().join("..new"), directory.path().join("..data")).unwrap();
    };
    version("..1", "[1]");
    symlink("..data/numbers.yaml", path(&directory)).unwrap();

    let start = Instant::now();
    let first = file(&directory).read().unwrap();
    let (task, mut receiver) = file(&directory).watch(EVERY, first, ignore());
    let task = tokio::spawn(task);
    assert_eq!(*receiver.borrow().value, [1]);
    version("..2", "[2]");
    receiver.changed().await.unwrap();
    assert_eq!(start.elapsed().as_secs(), EVERY.as_secs());
    assert_eq!(*receiver.borrow_and_update().value, [2]);

    version("..3", "- broken");
    sleep(5 * EVERY).await;
    assert!(!receiver.has_changed().unwrap());
    version("..4", "[4]");
    receiver.changed().await.unwrap();
    assert_eq!(*receiver.borrow().value, [4]);

    drop(receiver);
    task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn whether_it_can_be_used_is_told() {
    let directory = tempdir().unwrap();
    fs::write(path(&directory), "[1]").unwrap();
    let first = file(&directory).read().unwrap();
    let (sender, mut told) = tokio::sync::mpsc::unbounded_channel();
    let (task, _receiver) =
        file(&directory).watch(EVERY, first, Box::new(move |good| sender.send(good).unwrap()));
    let _task = tokio::spawn(task);
    fs::write(path(&directory), "[").unwrap();
    assert_eq!(told.recv().await, Some(false));
    fs::write(path(&directory), "[1]").unwrap();
    assert_eq!(told.recv().await, Some(true), "as before it broke");
}

//! What a settings file says of itself: the error's words, and when it was changed.

use std::fs::{self, File};
use std::time::{Duration, SystemTime};

use porch_fn_files::WatchedFiles;
use tempfile::{TempDir, tempdir};

use super::*;

fn path(directory: &TempDir) -> PathBuf {
    directory.path().join("numbers.yaml")
}

fn file(directory: &TempDir) -> SettingsFile<Vec<u32>> {
    let parse =
        |text: &str| porch_fn_settings::yaml::parse::<Option<Vec<u32>>>(text).map(Option::unwrap_or_default);
    SettingsFile {
        flag: "numbers",
        path: path(directory),
        parse: Box::new(parse),
        expected: "expected a list of numbers",
    }
}

#[test]
fn a_change_is_later_than_what_was_there_whatever_the_file_system_says() {
    let at = Time::from_millis;
    let mut last = Content { value: Arc::new(()), modified: Some(at(50)), seen: at(100) };
    // When the file system says it was written, when it is seen, and the time that counts.
    for (modified, now, counts) in [
        (Some(150), 190, 150),
        (Some(50), 200, 200),
        (Some(200), 210, 210),
        (None, 220, 220),
        (Some(900), 230, 900),
        (Some(300), 240, 900),
        (Some(901), 250, 901),
        (Some(940), 990, 940),
        (Some(980), 1000, 1000),
    ] {
        let modified = changed_at(modified.map(at), &last, at(now));
        assert_eq!(modified, at(counts));
        last = Content { modified: Some(modified), seen: at(now), ..last };
    }
}

#[tokio::test]
async fn a_copy_that_keeps_its_time_is_a_later_configuration() {
    let directory = tempdir().unwrap();
    fs::write(path(&directory), "[1]").unwrap();
    let files = WatchedFiles::read(file(&directory)).unwrap();
    let first = files.value();
    let hour = Duration::from_hours(1);
    assert!(now().since(first.modified.unwrap()) < hour, "{first:?}");
    fs::write(path(&directory), "[2]").unwrap();
    let touch =
        |time| File::options().append(true).open(path(&directory)).unwrap().set_modified(time).unwrap();
    touch(SystemTime::now() - hour);
    files.reload().await;
    let second = files.value();
    assert!(*second.value == [2] && second.modified >= first.modified, "{second:?}");
    // The same in other words was there before.
    fs::write(path(&directory), "- 2 # as before\n").unwrap();
    touch(SystemTime::now() + hour);
    files.reload().await;
    assert_eq!(files.value(), second);
}

#[tokio::test]
async fn a_file_that_vanishes_is_an_error_and_one_that_never_was_is_not() {
    let directory = tempdir().unwrap();
    let files = WatchedFiles::read(file(&directory)).unwrap();
    files.reload().await;
    assert_eq!((&*files.value().value, files.last_error()), (&vec![], None));
    fs::write(path(&directory), "[1]").unwrap();
    files.reload().await;
    fs::remove_file(path(&directory)).unwrap();
    files.reload().await;
    assert_eq!(*files.value().value, [1]);
    assert!(files.last_error().unwrap().ends_with("numbers.yaml: No such file or directory (os error 2)"));
}

#[test]
fn errors_name_flag_and_file() {
    let directory = tempdir().unwrap();
    let long = "#".repeat(MAX_BYTES + 1);
    for (text, parts) in [
        (&b"\xff"[..], ["", "UTF-8"]),
        (long.as_bytes(), ["", "too large"]),
        (b"- 1\n- many\n", ["line 2", "column 3"]),
        (b"- 1\n- [\n", ["line", "; expected a list of numbers"]),
    ] {
        fs::write(path(&directory), text).unwrap();
        let error = file(&directory).load().unwrap_err().to_string();
        assert!(error.starts_with(&format!("--numbers {}: ", path(&directory).display())), "{error}");
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }
    fs::write(path(&directory), &long[1..]).unwrap();
    assert!(file(&directory).load().unwrap().is_empty());
}

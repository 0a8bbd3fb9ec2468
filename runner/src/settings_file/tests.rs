//! What a settings file says of itself: the error's words, and when it was changed.

use std::fs::{self, File};
use std::time::{Duration, SystemTime};

use porch_fn_files::WatchedFiles;
use porch_fn_settings::yaml;
use tempfile::{TempDir, tempdir};

use super::*;

fn path(directory: &TempDir) -> PathBuf {
    directory.path().join("numbers.yaml")
}

fn file(directory: &TempDir) -> SettingsFile<Vec<u32>> {
    SettingsFile {
        flag: "numbers",
        path: path(directory),
        parse: Box::new(|text| yaml::parse::<Option<Vec<u32>>>(text).map(Option::unwrap_or_default)),
        expected: "expected a list of numbers",
    }
}

#[tokio::test]
async fn a_change_is_later_than_what_was_there_whatever_the_file_system_says() {
    let directory = tempdir().unwrap();
    let write = |text, time| {
        fs::write(path(&directory), text).unwrap();
        File::options().append(true).open(path(&directory)).unwrap().set_modified(time).unwrap();
    };
    let (begin, hour) = (now(), Duration::from_hours(1));
    write("[1]", SystemTime::now());
    let files = WatchedFiles::read(file(&directory)).unwrap();
    assert_eq!(files.value().changed, None, "it is as old as the process");
    write("[2]", SystemTime::now() - hour);
    files.reload().await;
    let second = files.value();
    assert!(*second.value == [2] && second.changed >= Some(begin), "{second:?}");
    write("- 2 # the same in other words\n", SystemTime::now() + hour);
    files.reload().await;
    assert_eq!(files.value(), second);
}

#[tokio::test]
async fn a_file_that_vanishes_is_an_error_and_one_that_never_existed_is_not() {
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

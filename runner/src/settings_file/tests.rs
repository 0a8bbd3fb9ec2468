//! Tests the error texts of a settings file.

use std::fs;

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
async fn a_file_that_vanishes_is_an_error_and_one_that_never_existed_is_not() {
    let directory = tempdir().unwrap();
    let files = WatchedFiles::read(file(&directory)).unwrap();
    files.reload().await;
    assert_eq!((&*files.value(), files.last_error()), (&vec![], None));
    fs::write(path(&directory), "[1]").unwrap();
    files.reload().await;
    fs::remove_file(path(&directory)).unwrap();
    files.reload().await;
    assert_eq!(*files.value(), [1]);
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
        let error = file(&directory).load().unwrap_err();
        assert!(error.starts_with(&format!("--numbers {}: ", path(&directory).display())), "{error}");
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }
    fs::write(path(&directory), &long[1..]).unwrap();
    assert!(file(&directory).load().unwrap().is_empty());
}

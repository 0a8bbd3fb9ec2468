use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use tempfile::{TempDir, tempdir};
use tokio::time::Instant;

use super::*;
use crate::pods::cache_config::read_config;

const PREFIX: &str = "example.org/functions";
const EVERY: Duration = Duration::from_secs(10);

fn file(directory: &TempDir) -> PathBuf {
    directory.path().join("pod-cache-config.yaml")
}

fn watched(path: &Path) -> Watched {
    let first = read_config(path, PREFIX).unwrap_or_default();
    Watched::new(path.to_owned(), PREFIX.to_owned(), Arc::new(first))
}

fn images(config: &CacheConfig) -> Vec<&str> {
    let name = |image: &str| image.len() - image.rsplit('/').next().unwrap().len();
    config.entries.iter().map(|entry| &entry.image.as_str()[name(entry.image.as_str())..]).collect()
}

#[test]
fn only_another_meaning_is_news() {
    let directory = tempdir().unwrap();
    fs::write(file(&directory), "a:v1: 1h").unwrap();
    let mut watched = watched(&file(&directory));
    assert!(watched.look().is_none(), "known from the start");
    fs::write(file(&directory), "a:v1: 60m # as before\n").unwrap();
    assert!(watched.look().is_none());
    fs::write(file(&directory), "a:v1: 61m").unwrap();
    let config = watched.look().unwrap().unwrap();
    assert_eq!(config.entries[0].limits.ttl, Duration::from_mins(61));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let age = now.saturating_sub(Duration::from_millis(config.modified.unwrap().as_millis()));
    assert!(age < Duration::from_hours(1), "{age:?}");
    assert!(watched.look().is_none());
}

#[test]
fn each_broken_text_is_told_once_and_changes_nothing() {
    let directory = tempdir().unwrap();
    fs::write(file(&directory), "a:v1: 1h").unwrap();
    let mut watched = watched(&file(&directory));
    let broken = ["- name: a:v1\n- name: b:v1\n  timeToLive: [1]\n", "- name: a:v1\n- [\n"];
    for text in broken {
        fs::write(file(&directory), text).unwrap();
        let error = watched.look().unwrap().unwrap_err().to_string();
        assert!(error.contains("line ") && error.contains("column "), "{error}");
        assert!(watched.look().is_none());
    }
    assert_eq!(images(&watched.good), ["a:v1"]);
    fs::write(file(&directory), "a:v1: 1h").unwrap();
    assert!(watched.look().is_none(), "as before it broke");
    fs::write(file(&directory), broken[0]).unwrap();
    assert!(watched.look().unwrap().is_err(), "broken anew");
    fs::write(file(&directory), "b:v1: 1h").unwrap();
    assert_eq!(images(&watched.look().unwrap().unwrap()), ["b:v1"]);
}

#[test]
fn a_file_that_vanishes_is_told_once_and_one_that_never_was_is_not() {
    let directory = tempdir().unwrap();
    let mut watched = watched(&file(&directory));
    assert!(watched.look().is_none());
    assert!(watched.look().is_none());
    fs::write(file(&directory), "a:v1: 1h").unwrap();
    assert_eq!(images(&watched.look().unwrap().unwrap()), ["a:v1"]);
    fs::remove_file(file(&directory)).unwrap();
    let error = watched.look().unwrap().unwrap_err();
    assert!(is_missing(&error) && error.to_string().contains("pod-cache-config.yaml"), "{error}");
    assert!(watched.look().is_none());
    assert_eq!(images(&watched.good), ["a:v1"]);

    // Between the start and the first look.
    fs::write(file(&directory), "b:v1: 1h").unwrap();
    let mut watched = self::watched(&file(&directory));
    fs::remove_file(file(&directory)).unwrap();
    assert!(watched.look().unwrap().is_err());
    // One that cannot be read for another reason is told of even if it was never good.
    let mut watched = self::watched(&file(&directory));
    fs::create_dir(file(&directory)).unwrap();
    assert!(watched.look().unwrap().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_config_maps_mount_is_followed() {
    // As kubelet does it: the name leads to `..data`, and that to the version.
    let directory = tempdir().unwrap();
    let version = |name: &str, text: &str| {
        let version = directory.path().join(name);
        fs::create_dir(&version).unwrap();
        fs::write(version.join("pod-cache-config.yaml"), text).unwrap();
        symlink(name, directory.path().join("..new")).unwrap();
        fs::rename(directory.path().join("..new"), directory.path().join("..data")).unwrap();
    };
    version("..1", "a:v1: 1h");
    symlink("..data/pod-cache-config.yaml", file(&directory)).unwrap();

    let start = Instant::now();
    let first = read_config(&file(&directory), PREFIX).unwrap();
    let (task, mut receiver) = watch(file(&directory), PREFIX.to_owned(), EVERY, first);
    let task = tokio::spawn(task);
    assert_eq!(images(&receiver.borrow()), ["a:v1"]);
    version("..2", "b:v1: 1h");
    receiver.changed().await.unwrap();
    assert_eq!(start.elapsed().as_secs(), EVERY.as_secs());
    assert_eq!(images(&receiver.borrow_and_update()), ["b:v1"]);

    version("..3", "- broken");
    sleep(5 * EVERY).await;
    assert!(!receiver.has_changed().unwrap());
    version("..4", "c:v1: 1h");
    receiver.changed().await.unwrap();
    assert_eq!(images(&receiver.borrow()), ["c:v1"]);

    drop(receiver);
    task.await.unwrap();
}

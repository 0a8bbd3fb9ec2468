//! Tests of the whole path: files in, a ResourceList, files out.

mod config;
mod documents;
mod output;
mod packages;
mod properties;
mod reading;
mod writing;

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;

use super::file::{DocumentError, File, Package};
use super::yaml::{Body, Node, Yaml, same};
use super::{Item, Output, split};

/// A directory with these files.
fn directory(files: &[(&str, &str)]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    dir
}

/// A package of one file `a.yaml`.
fn package(text: &str) -> Package {
    try_package(text).unwrap()
}

fn try_package(text: &str) -> Result<Package, DocumentError> {
    let file = File::parse(PathBuf::from("a.yaml"), "a.yaml", text.to_owned()).map_err(|(_, error)| error)?;
    Ok(Package { files: vec![file] })
}

/// What comes back from a function that changes nothing.
fn returned(package: &Package) -> Output {
    split(package.to_resource_list(None).as_bytes()).unwrap()
}

/// The items of `a.yaml` that come back from a function that changes nothing.
fn returned_texts(text: &str) -> Vec<String> {
    let mut output = returned(&package(text));
    let items = output.files.remove(&PathBuf::from("a.yaml")).unwrap_or_default();
    items.into_iter().map(|Item { text, .. }| text).collect()
}

fn tree(text: &str) -> Node {
    Yaml::parse(text).unwrap().unwrap().root
}

/// The trees of the items that a function gets to see.
fn sent_items(package: &Package) -> Vec<Node> {
    let list = tree(&package.to_resource_list(None));
    match list.get("items").map(|items| items.body.clone()) {
        Some(Body::Sequence { items, .. }) => items,
        _ => panic!("items is no list"),
    }
}

fn assert_same(a: &Node, b: &Node) {
    assert!(same(a, b), "{a:#?}\ndiffers from\n{b:#?}");
}

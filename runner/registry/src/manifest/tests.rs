//! Manifests and indexes of all media types, and what is none.

use serde_json::{Value, json};

use super::{Document, choose, command, parse};
use crate::RegistryError;
use crate::platform::Platform;

const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";

fn manifest() -> Value {
    json!({"schemaVersion": 2, "config": {"digest": "sha256:c", "size": 7}, "layers": [{"digest": "sha256:l"}]})
}

fn index() -> Value {
    json!({"schemaVersion": 2, "manifests": [
        {"digest": "sha256:m", "size": 7, "platform": {"os": "linux", "architecture": "amd64"}},
    ]})
}

fn read(document: &Value, content_type: Option<&str>) -> Result<&'static str, String> {
    match parse(document.to_string().as_bytes(), content_type) {
        Ok(Document::Manifest { config }) => {
            assert_eq!(config.digest, "sha256:c");
            Ok("manifest")
        }
        Ok(Document::Index(entries)) => {
            assert_eq!(entries[0].descriptor.digest, "sha256:m");
            Ok("index")
        }
        Err(RegistryError::Malformed { what: "manifest", reason }) => Err(reason),
        Err(other) => panic!("{other:?}"),
    }
}

fn with(mut document: Value, key: &str, value: impl Into<Value>) -> Value {
    document[key] = value.into();
    document
}

#[test]
fn all_media_types_are_read_however_they_are_named() {
    for (document, media_type, kind) in [
        (manifest(), OCI_MANIFEST, "manifest"),
        (manifest(), DOCKER_MANIFEST, "manifest"),
        (index(), OCI_INDEX, "index"),
        (index(), DOCKER_LIST, "index"),
    ] {
        let named = with(document.clone(), "mediaType", media_type);
        assert_eq!(read(&document, Some(media_type)), Ok(kind));
        assert_eq!(read(&document, Some(&format!("{}; charset=utf-8", media_type.to_uppercase()))), Ok(kind));
        assert_eq!(read(&named, None), Ok(kind));
        assert_eq!(read(&named, Some("application/json")), Ok(kind));
        assert_eq!(read(&document, Some("text/plain")), Ok(kind));
        assert_eq!(read(&document, None), Ok(kind));
    }
}

#[test]
fn what_is_no_manifest_is_told() {
    let schema1 = "it is of Docker's schema 1, which is not read: push the image again";
    for (document, content_type, reason) in [
        (json!({"schemaVersion": 1, "fsLayers": []}), None, schema1),
        (manifest(), Some("application/vnd.docker.distribution.manifest.v1+prettyjws"), schema1),
        (
            with(manifest(), "manifests", json!([])),
            None,
            "it is both an index and the manifest of one platform",
        ),
        (with(index(), "layers", json!([])), None, "it is both an index and the manifest of one platform"),
        (
            with(manifest(), "mediaType", OCI_MANIFEST),
            Some(OCI_INDEX),
            "its mediaType and its Content-Type differ",
        ),
        (manifest(), Some(OCI_INDEX), "the index has no manifests"),
        (json!({"schemaVersion": 2}), None, "it has no config"),
        (json!([]), None, "a field is missing or of the wrong type (line 1, column 2)"),
    ] {
        assert_eq!(read(&document, content_type), Err(reason.to_owned()), "{document}");
    }
    let wrong = with(manifest(), "config", json!({"digest": 5, "size": 1}));
    assert!(read(&wrong, None).unwrap_err().starts_with("a field is missing or of the wrong type"));
}

fn chosen(platforms: &[&str], platform: &str) -> Result<usize, RegistryError> {
    let manifests: Vec<_> = platforms
        .iter()
        .enumerate()
        .map(|(number, platform)| {
            let parts: Vec<_> = platform.split('/').collect();
            let mut entry = json!({"digest": number.to_string(), "size": 1});
            match parts[..] {
                [os, architecture] => entry["platform"] = json!({"os": os, "architecture": architecture}),
                [os, architecture, variant] => {
                    entry["platform"] = json!({"os": os, "architecture": architecture, "variant": variant});
                }
                _ => {}
            }
            entry
        })
        .collect();
    let document = json!({"schemaVersion": 2, "manifests": manifests}).to_string();
    let Document::Index(entries) = parse(document.as_bytes(), None).unwrap() else { panic!() };
    choose(&entries, &Platform::parse(platform).unwrap()).map(|entry| entry.digest.parse().unwrap())
}

#[test]
fn an_index_gives_what_runs_best() {
    for (platforms, platform, expected) in [
        (&["unknown/unknown", "linux/arm64", "linux/amd64"][..], "linux/amd64", Some(2)),
        (&["linux/arm64/v8"], "linux/arm64", Some(0)),
        (&["linux/arm64"], "linux/arm64/v8", Some(0)),
        (&["linux/amd64/v1"], "linux/amd64", Some(0)),
        (&["linux/amd64/v2", "linux/amd64"], "linux/amd64", Some(1)),
        (&["linux/amd64", "linux/amd64/v2", "linux/amd64/v3"], "linux/amd64/v3", Some(2)),
        (&["linux/amd64", "linux/amd64/v2"], "linux/amd64/v3", Some(1)),
        (&["linux/arm/v5", "linux/arm/v6", "linux/arm/v7"], "linux/arm", Some(2)),
        (&["linux/arm/v5", "linux/arm/v6"], "linux/arm/v7", Some(1)),
        (&["linux/arm/v7"], "linux/arm/v6", None),
        (&["linux/arm"], "linux/arm/v7", Some(0)),
        (&["linux/386"], "linux/amd64", Some(0)),
        (&["linux/386", "linux/amd64"], "linux/amd64", Some(1)),
        (&["linux/arm/v6", "linux/arm/v7"], "linux/arm64", Some(1)),
        (&["linux/aarch64"], "linux/arm64", Some(0)),
        (&["windows/amd64"], "linux/amd64", None),
        (&["unknown/unknown"], "linux/amd64", None),
        (&["unknown/unknown", ""], "linux/amd64", Some(1)),
        (&["", "linux/amd64"], "linux/amd64", Some(1)),
        (&[], "linux/amd64", None),
        (&["linux/s390x", "linux/ppc64le"], "linux/ppc64le", Some(1)),
    ] {
        let expected = expected
            .ok_or(RegistryError::Platform { platform: Platform::parse(platform).unwrap().to_string() });
        assert_eq!(chosen(platforms, platform), expected, "{platforms:?} {platform}");
    }
    assert_eq!(
        chosen(&[], "linux/amd64").unwrap_err().to_string(),
        "the image is not there for linux/amd64: build it for that, or choose another with --platform"
    );
}

#[test]
fn platforms_are_read() {
    for (text, shown) in [
        ("linux/amd64", "linux/amd64"),
        ("Linux/x86_64", "linux/amd64"),
        ("linux/arm64/v8", "linux/arm64"),
        ("linux/arm", "linux/arm/v7"),
        ("linux/armhf", "linux/arm/v7"),
        ("linux/riscv64", "linux/riscv64"),
    ] {
        assert_eq!(Platform::parse(text).unwrap().to_string(), shown);
    }
    for text in ["", "linux", "linux/", "/amd64", "a/b/c/d", "linux/amd 64", "linux/\u{e9}"] {
        assert!(Platform::parse(text).unwrap_err().to_string().starts_with("--platform "), "{text}");
    }
    assert!(Platform::default().to_string().starts_with("linux/"));
}

#[test]
fn entrypoint_and_cmd_are_joined_as_docker_does() {
    for (entrypoint, cmd, expected) in [
        (json!(["/f"]), json!(null), Ok(&["/f"][..])),
        (json!(["/f", "-x"]), json!(["a", "b"]), Ok(&["/f", "-x", "a", "b"])),
        (json!(null), json!(["/f", "a"]), Ok(&["/f", "a"])),
        (json!([]), json!(["/f"]), Ok(&["/f"])),
        (json!(["/f"]), json!([]), Ok(&["/f"])),
        (json!(["/bin/sh", "-c", "x y"]), json!(["a"]), Ok(&["/bin/sh", "-c", "x y", "a"])),
        (json!(null), json!(null), Err(RegistryError::NoCommand)),
        (json!([]), json!([]), Err(RegistryError::NoCommand)),
    ] {
        let image = json!({"os": "linux", "config": {"Entrypoint": entrypoint, "Cmd": cmd, "Env": ["A=b"]}});
        let expected = expected.map(|words| words.iter().map(|word| (*word).to_owned()).collect());
        assert_eq!(command(image.to_string().as_bytes()), expected, "{image}");
    }
    for image in [json!({}), json!({"config": null}), json!({"config": {}})] {
        assert_eq!(command(image.to_string().as_bytes()), Err(RegistryError::NoCommand), "{image}");
    }
    for image in [
        json!({"config": {"Cmd": "pl4nted"}}),
        json!({"config": {"Entrypoint": [1]}}),
        json!({"config": "pl4nted"}),
        json!("pl4nted"),
    ] {
        let error = command(image.to_string().as_bytes()).unwrap_err();
        assert!(matches!(error, RegistryError::Malformed { what: "image configuration", .. }), "{image}");
        assert!(!error.to_string().contains("pl4nted"));
    }
}

//! Valid and malformed manifests, indexes and image configurations.

use serde_json::json;

use super::*;

#[test]
fn fields_decide_between_manifest_and_index() {
    let (config, entry) =
        (json!({"digest": "sha256:c", "size": 7}), json!({"digest": "sha256:m", "size": 7}));
    let schema1 = "it is of Docker's schema 1, which is not read: push the image again";
    let both = "it is both an index and the manifest of one platform";
    for (document, expected) in [
        (json!({"schemaVersion": 2, "config": config, "layers": []}), Ok("manifest sha256:c")),
        (json!({"config": config, "mediaType": "other"}), Ok("manifest sha256:c")),
        (json!({"schemaVersion": 2, "manifests": [entry]}), Ok("index sha256:m")),
        (json!({"schemaVersion": 1, "fsLayers": []}), Err(schema1)),
        (json!({"schemaVersion": 2, "config": config, "manifests": []}), Err(both)),
        (json!({"schemaVersion": 2, "layers": [], "manifests": [entry]}), Err(both)),
        (json!({"schemaVersion": 2, "layers": []}), Err("it has no config")),
        (json!([]), Err("a field is missing or of the wrong type (line 1, column 2)")),
        (
            json!({"config": {"digest": 5}}),
            Err("a field is missing or of the wrong type (line 1, column 21)"),
        ),
    ] {
        let found = parse(document.to_string().as_bytes()).map(|found| match found {
            Document::Manifest(manifest) => format!("manifest {}", manifest.config.digest),
            Document::Index(entries) => format!("index {}", entries[0].digest),
        });
        let expected =
            expected.map(str::to_owned).map_err(|reason| RegistryError::malformed(MANIFEST, reason));
        assert_eq!(found, expected, "{document}");
    }
}

fn chosen(platforms: &[&str], platform: &str) -> Result<usize, RegistryError> {
    let entry = |(number, platform): (usize, &&str)| {
        let mut parts = platform.split('/');
        let (os, architecture, variant) = (parts.next(), parts.next(), parts.next());
        let platform = json!({"os": os, "architecture": architecture, "variant": variant});
        json!({"digest": number.to_string(), "size": 1, "platform": architecture.map(|_| platform)})
    };
    let manifests: Vec<_> = platforms.iter().enumerate().map(entry).collect();
    let entries: Vec<Descriptor> = serde_json::from_value(manifests.into()).unwrap();
    choose(&entries, &Platform::parse(platform).unwrap()).map(|digest| digest.parse().unwrap())
}

#[test]
fn the_best_entry_of_an_index_is_chosen() {
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
        let expected = expected.ok_or(RegistryError::Platform(Platform::parse(platform).unwrap()));
        assert_eq!(chosen(platforms, platform), expected, "{platforms:?} {platform}");
    }
    assert_eq!(
        chosen(&[], "linux/amd64").unwrap_err().to_string(),
        "the image is not built for linux/amd64: build it, or choose another platform with --platform"
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
        assert!(Platform::parse(text).unwrap_err().starts_with("--platform "), "{text}");
    }
    assert!(Platform::default().to_string().starts_with("linux/"));
}

#[test]
fn entrypoint_and_cmd_are_joined_like_docker_does() {
    let wrong = "wrong type";
    for (config, expected) in [
        (json!({"Entrypoint": ["/f"], "Cmd": null, "Env": ["A=b"]}), "/f"),
        (json!({"Entrypoint": ["/f", "-x"], "Cmd": ["a", "b"]}), "/f|-x|a|b"),
        (json!({"Entrypoint": null, "Cmd": ["/f", "a"]}), "/f|a"),
        (json!({"Entrypoint": [], "Cmd": ["/f"]}), "/f"),
        (json!({"Entrypoint": ["/bin/sh", "-c", "x y"], "Cmd": ["a"]}), "/bin/sh|-c|x y|a"),
        (json!({"Entrypoint": [], "Cmd": []}), "neither ENTRYPOINT nor CMD"),
        (json!({}), "neither ENTRYPOINT nor CMD"),
        (json!(null), "neither ENTRYPOINT nor CMD"),
        (json!({"Cmd": "pl4nted"}), wrong),
        (json!({"Entrypoint": [1]}), wrong),
        (json!("pl4nted"), wrong),
    ] {
        let image = json!({"os": "linux", "config": config}).to_string();
        match command(image.as_bytes()) {
            Ok(command) => assert_eq!(command.join("|"), expected),
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains(expected) && !text.contains("pl4nted"), "{text}");
            }
        }
    }
}

#[test]
fn only_what_this_program_can_unpack_is_read_for_a_store() {
    let digest = format!("sha256:{}", "a".repeat(64));
    let kind = "application/vnd.oci.image.config.v1+json";
    let config = json!({"mediaType": kind, "digest": digest, "size": 7});
    let of_layer = |kind: &str| json!([{"mediaType": kind, "digest": digest, "size": 7}]);
    let layer = of_layer("application/vnd.docker.image.rootfs.diff.tar.gzip");
    let encrypted = of_layer("application/vnd.oci.image.layer.v1.tar+encrypted");
    let large = json!({"mediaType": kind, "digest": digest, "size": (8 << 20) + 1});
    let unknown = json!([{"mediaType": "a.layer.b", "digest": "md5:0", "size": 7}]);
    let negative = json!([{"mediaType": "a.layer.b", "digest": digest, "size": -5}]);
    let many: Vec<_> = (0..201).map(|_| layer[0].clone()).collect();
    let index = "application/vnd.oci.image.index.v1+json";
    for (document, problem, is_lookup_refused) in [
        (json!({"config": config, "layers": layer, "mediaType": null}), "", false),
        (json!({"manifests": layer, "mediaType": index}), "", false),
        (json!({"config": config, "mediaType": index}), "it says that it is", false),
        (json!({"manifests": [], "mediaType": "a.manifest"}), "it says that it is", false),
        (json!({"config": {"mediaType": "chart", "digest": digest, "size": 7}}), "but of \"chart\"", false),
        (json!({"config": config, "artifactType": "sbom"}), "but of \"sbom\"", false),
        (json!({"config": config, "layers": encrypted}), "encrypted", false),
        (json!({"config": config, "layers": of_layer("text/\u{7}")}), "but of \"text/\\u{7}\"", false),
        (json!({"config": config, "layers": unknown}), "unknown algorithm", false),
        (json!({"config": config, "layers": many}), "more than 200 layers", false),
        (json!({"config": large, "layers": layer}), "a configuration of 8 MiB", false),
        (json!({"config": config, "layers": negative}), "layers[0].size: invalid value", false),
        (json!({"config": config, "manifests": []}), "it is both an index and", true),
        (json!({}), "it is neither an index nor", true),
    ] {
        let bytes = document.to_string();
        let found =
            Document::read(bytes.as_bytes()).map_or_else(|error| error.to_string(), |_| String::new());
        let is_expected = found.contains(problem) && found.is_empty() == problem.is_empty();
        assert!(is_expected, "{document}: {found}");
        assert!(found.is_empty() || found.starts_with("the image's manifest cannot be used: "), "{found}");
        assert_eq!(parse(bytes.as_bytes()).is_err(), is_lookup_refused, "{document}");
    }
}

#[test]
fn a_configuration_is_of_this_machine_and_of_its_manifest() {
    let digest = format!("sha256:{}", "a".repeat(64));
    let descriptor = json!({"mediaType": "a.oci.image.config.b.layer.c", "digest": digest, "size": 7});
    let manifest = json!({"config": descriptor, "layers": [descriptor]}).to_string();
    let manifest = ImageManifest::read(manifest.as_bytes()).unwrap();
    let own = Platform::default().to_string();
    let (os, architecture) = own.split_once('/').unwrap();
    for (os, architecture, diff_ids, expected) in [
        (os, architecture, vec![&*digest], ""),
        ("plan9", architecture, vec![&digest], "the image is for \"plan9/"),
        (os, "s390x", vec![&digest], "the image is for \"linux/s390x\""),
        (os, architecture, vec!["sha256:x"], "malformed, or others"),
        (os, architecture, vec![], "malformed, or others"),
    ] {
        let rootfs = json!({"diff_ids": diff_ids});
        let config =
            json!({"os": os, "architecture": architecture, "rootfs": rootfs, "config": {"Env": null}});
        match manifest.read_config(config.to_string().as_bytes()) {
            Ok((run, layers)) => {
                assert_eq!((run, expected), (RunConfig::default(), ""));
                assert_eq!(layers, [Layer { digest: digest.clone(), size: 7, diff_id: digest.clone() }]);
            }
            Err(error) => assert!(!expected.is_empty() && error.to_string().contains(expected), "{error}"),
        }
    }
}

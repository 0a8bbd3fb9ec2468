//! What is no function image of this machine is refused with its reason, from a registry and from
//! an archive. What an archive calls itself does not reach the terminal.

use porch_fn_tests::image::layout::{LayerOf, Layout, config};
use porch_fn_tests::image::{Image, Layer, serve};
use porch_fn_tests::image_user::ImageUser;
use serde_json::{Value, json};

use super::{NAME, stderr, stdout};

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// The configuration of a Helm chart.
const CHART: &str = r#"{"name":"chart","version":"1.0.0","apiVersion":"v2"}"#;

fn layers(layout: &mut Layout) -> Vec<LayerOf> {
    vec![layout.layer(Layer::of_programs(&["sh"]).script("function", "echo ran"))]
}

/// Name, replaced fields of the configuration and of the manifest, and what the text must name.
fn cases(layout: &mut Layout) -> Vec<(&'static str, Value, Value, &'static str)> {
    let [layer] = &layers(layout)[..] else { unreachable!("one layer") };
    let with_type = |kind: &str| {
        let mut descriptor = layer.descriptor.clone();
        descriptor["mediaType"] = kind.into();
        json!({"layers": [descriptor]})
    };
    let kind = "application/vnd.cncf.helm.config.v1+json";
    let helm = json!({"mediaType": kind, "digest": layout.blob(CHART), "size": CHART.len()});
    let digest = layer.descriptor["digest"].clone();
    let none = || json!({});
    vec![
        ("architecture", json!({"architecture": "s390x"}), none(), "s390x"),
        ("system", json!({"os": "windows"}), none(), "windows"),
        ("chart", none(), json!({"config": helm}), "helm"),
        ("encrypted", none(), with_type("application/vnd.oci.image.layer.v1.tar+encrypted"), "encrypted"),
        ("text", none(), with_type("text/plain"), "text/plain"),
        ("marked", none(), json!({"mediaType": INDEX}), "index"),
        ("ambiguous", none(), json!({"manifests": []}), "index"),
        ("negative", none(), json!({"layers": [{"mediaType": "x", "digest": digest, "size": -5}]}), "size"),
        ("env", json!({"config": {"Env": {"A": "b"}, "Entrypoint": ["/function"]}}), none(), "configuration"),
        ("entrypoint", json!({"config": {"Entrypoint": "/function"}}), none(), "configuration"),
    ]
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn what_is_no_function_image_is_refused_by_name() {
    let mut all = Layout::default();
    let cases = cases(&mut all);
    let archives = cases.iter().map(|(name, of_document, of_manifest, _)| {
        let mut own = Layout::default();
        for layout in [&mut own, &mut all] {
            let layers = layers(layout);
            if *name == "chart" {
                layout.blob(CHART);
            }
            let name = format!("x/{name}:v1");
            layout.image_with(&name, &layers, &config(&["/function"]), of_document, of_manifest);
        }
        own.with_prefix("example.com/").archive()
    });
    let archives: Vec<_> = archives.collect();
    let registry = serve(all).await;
    for user in ImageUser::all() {
        let mut problems = Vec::new();
        for ((name, _, _, expected), archive) in cases.iter().zip(&archives) {
            let image = format!("{registry}/x/{name}:v1");
            for (way, ended) in [
                ("import", user.run(&["images", "import", "-"], archive).await),
                ("pull", user.run(&["images", "pull", &image], b"").await),
                ("run", user.run(&["run", &image], b"").await),
            ] {
                let text = stderr(&ended);
                let is_named = text.to_lowercase().contains(&expected.to_lowercase());
                let is_plain = !text.contains("serde") && !text.contains("--platform");
                if ended.status.success() || stdout(&ended).contains("ran") || !is_named || !is_plain {
                    problems.push(format!("{way} of {name}: {:?} {text}", ended.status.code()));
                }
            }
        }
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn no_escape_of_an_archive_reaches_the_terminal() {
    const ESCAPE: &str = "\u{1b}]0;title\u{7}\u{1b}[2J";
    let user = ImageUser::own();
    let of_layer = |layer: Layer| Image::new(&["sh"]).layer(layer).oci_archive(NAME);
    let link = "x".repeat(101) + ESCAPE;
    let manifest = |config: &str, tag: &str, layer: &str| {
        let text = json!([{"Config": config, "RepoTags": [tag], "Layers": [layer]}]).to_string();
        Layer::new().file("manifest.json", 0o644, text.as_bytes()).finish()
    };
    let named = format!("example.com/{ESCAPE}:v1");
    let archives = [
        Image::new(&["sh"]).layer(Layer::new()).oci_archive(&named),
        of_layer(Layer::new().file(&format!("../{ESCAPE}"), 0o644, b"")),
        of_layer(Layer::new().hard_link("x", &format!("../{ESCAPE}"))),
        of_layer(Layer::new().hard_link(&format!("a{ESCAPE}"), &link)),
        of_layer(Layer::new().file("a", 0o644, b"").file(&format!("a/{ESCAPE}"), 0o644, b"")),
        of_layer(Layer::new().file(&format!(".wh..{ESCAPE}/.wh..."), 0o644, b"")),
        manifest(ESCAPE, "x:v1", "l"),
        manifest("c", &named, "l"),
        manifest("c", "x:v1", ESCAPE),
        Layer::new().file("index.json", 0o644, format!("{{\"{ESCAPE}\": 1}}").as_bytes()).finish(),
    ];
    let mut problems = Vec::new();
    for (number, archive) in archives.iter().enumerate() {
        let imported = user.run(&["images", "import", "-"], archive).await;
        let listed = user.run(&["images", "list"], b"").await;
        let text = [&imported, &listed].map(|ended| stdout(ended) + &stderr(ended)).concat();
        if text.chars().any(|letter| letter.is_control() && letter != '\n') {
            problems.push(format!("{number}: {text:?}"));
        }
    }
    let image = Image::new(&[&format!("/{ESCAPE}")]).layer(Layer::new().folder("x", 0o755));
    user.import(NAME, &image.with("User", ESCAPE).with("WorkingDir", format!("/{ESCAPE}"))).await;
    for flags in [&["run"][..], &["run", "--user", "1"]] {
        let ended = user.run(&[flags, &[NAME]].concat(), b"").await;
        if stderr(&ended).contains('\u{1b}') {
            problems.push(format!("{flags:?}: {:?}", stderr(&ended)));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

//! The image store through the command line: archives, layers, refusals, collection.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Output, Stdio};

use porch_fn_tests::image::{Compressed, Image, Layer, serve_private};
use porch_fn_tests::image_user::ImageUser;
use porch_fn_tests::process::{PATIENCE, eventually};
use porch_fn_tests::registry::{User, base64};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{NAME, programs, shell, stderr, stdout};

/// Layers that hide, replace and link.
fn layered() -> Image {
    let first = Layer::new()
        .file("data/kept", 0o644, b"first")
        .file("data/hidden", 0o644, b"first")
        .file("data/replaced", 0o644, b"first")
        .file("all/a", 0o644, b"first")
        .folder("link-target", 0o755)
        .symlink("link", "link-target");
    let second = Layer::new()
        .whiteout("data", "hidden")
        .file("data/replaced", 0o644, b"second")
        .hard_link("data/again", "data/replaced")
        .opaque("all")
        .file("all/b", 0o644, b"second");
    Image::new(&["sh", "-c", "cd /data; head -n1 *; ls /all; ls -d /link/"])
        .layer_as(programs(), Compressed::Zstd)
        .layer_as(first, Compressed::Gzip)
        .layer_as(second, Compressed::Not)
}

const SEEN: &str = "==> again <==\nsecond\n==> kept <==\nfirst\n==> replaced <==\nsecondb\n/link/\n";

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn layers_are_stacked() {
    for user in ImageUser::all() {
        user.import(NAME, &layered()).await;
        let ended = user.run(&["run", NAME], b"").await;
        assert_eq!(stdout(&ended), SEEN, "{ended:?}");
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn archives_of_docker_and_our_own_are_read() {
    let user = ImageUser::own();
    user.import_archive(&shell("echo docker").docker_archive(NAME)).await;
    assert_eq!(stdout(&user.run(&["run", NAME], b"").await), "docker\n");
    let list = stdout(&user.run(&["images", "list"], b"").await);
    assert!(list.starts_with("IMAGE") && list.contains(NAME), "{list}");
    let exported = user.run(&["images", "export", NAME, "-"], b"").await;
    let other = ImageUser::own();
    other.import_archive(&exported.stdout).await;
    assert_eq!(stdout(&other.run(&["run", NAME], b"").await), "docker\n");
    let again = other.run(&["images", "export", NAME, "-"], b"").await;
    assert!(again.stdout == exported.stdout, "an image keeps its digests");
    let ended = other.run(&["images", "import", "-", "--as", "example.com/other:v2"], &exported.stdout).await;
    assert_eq!(stdout(&ended), "example.com/other:v2\n");
    for (archive, expected) in [
        (&b"no archive"[..], "archive"),
        (&Layer::default().file("x", 0o644, b"").finish(), "neither index.json nor manifest.json"),
    ] {
        let ended = user.run(&["images", "import", "-"], archive).await;
        assert!(!ended.status.success() && stderr(&ended).contains(expected), "{}", stderr(&ended));
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn paths_of_a_layer_stay_inside_and_a_refused_layer_leaves_nothing() {
    for user in ImageUser::all() {
        for (layer, inside) in [
            (Layer::new().file("../../../out", 0o644, b"x"), "/out"),
            (Layer::new().symlink("l", "/").file("l/../../out", 0o644, b"x"), "/out"),
            (Layer::new().symlink("l", "../..").file("l/out", 0o644, b"x"), "/out"),
            (Layer::new().symlink("l", "/home/..").file("l/out", 0o644, b"x"), "/out"),
        ] {
            user.import(NAME, &shell(&format!("cat {inside}")).layer(layer)).await;
            assert_eq!(stdout(&user.run(&["run", NAME], b"").await), "x");
        }
        assert!(!user.sandbox().path("out").exists() && !user.sandbox().path("home/out").exists());
        user.run(&["images", "rm", NAME], b"").await;
        for (layer, expected) in [
            (Layer::new().hard_link("x", "../../home/secret"), "no valid target"),
            (Layer::new().file("a/.wh...", 0o644, b""), "whiteout"),
        ] {
            let archive = Image::new(&["x"]).layer(layer).oci_archive(NAME);
            let ended = user.run(&["images", "import", "-"], &archive).await;
            assert!(!ended.status.success() && stderr(&ended).contains(expected), "{}", stderr(&ended));
        }
        for folder in ["layers", "images", "tmp"] {
            let left = fs::read_dir(user.store().join(folder)).unwrap().count();
            assert_eq!(left, 0, "{folder}");
        }
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn images_in_use_are_not_removed() {
    for user in ImageUser::all() {
        user.import(NAME, &shell("touch /out/started; sleep 600")).await;
        let out = user.sandbox().path("out");
        fs::create_dir(&out).unwrap();
        fs::set_permissions(&out, fs::Permissions::from_mode(0o777)).unwrap();
        user.import("example.com/other:v1", &shell("echo other")).await;
        let mount = format!("type=bind,src={},dst=/out,rw", out.display());
        let mut command = user.command(user.program());
        command.args(["run", "--mount", &mount, NAME]).stdin(Stdio::null());
        let mut running = command.spawn().unwrap();
        eventually("the function runs", async || out.join("started").exists().then_some(())).await;
        let ended = user.run(&["images", "prune"], b"").await;
        assert!(stdout(&ended).starts_with("removed 1 images"), "{ended:?}");
        let list = stdout(&user.run(&["images", "list"], b"").await);
        assert!(running.try_wait().unwrap().is_none(), "the function runs");
        assert!(list.contains(NAME), "{list}");
        running.kill().await.unwrap();
        eventually("the sandbox has ended", async || {
            let ended = user.run(&["images", "prune"], b"").await;
            assert!(ended.status.success(), "{}", stderr(&ended));
            stdout(&ended).starts_with("removed 1 images").then_some(())
        })
        .await;
        for folder in ["images", "layers", "blobs", "tmp"] {
            assert_eq!(fs::read_dir(user.store().join(folder)).unwrap().count(), 0, "{folder}");
        }
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn images_are_listed_as_json_inspected_and_removed() {
    for user in ImageUser::all() {
        let other = "example.com/functions/other:v2";
        let image = shell("true").with("Cmd", vec!["a"]).with("User", "7").with("WorkingDir", "/tmp");
        user.import(NAME, &image).await;
        user.import(other, &image).await;
        let list = user.run(&["images", "list", "-o", "json"], b"").await;
        let list: Value = serde_json::from_slice(&list.stdout).unwrap();
        let names: Vec<_> = list.as_array().unwrap().iter().map(|image| &image["reference"]).collect();
        assert_eq!(names, [NAME, other]);
        let inspected = user.run(&["images", "inspect", NAME], b"").await;
        let inspected: Value = serde_json::from_slice(&inspected.stdout).unwrap();
        for field in ["reference", "digest", "bytes", "pulled", "used"] {
            assert_eq!(inspected[field], list[0][field], "{field}");
        }
        assert!(list[0]["digest"].as_str().unwrap().starts_with("sha256:"), "{list}");
        assert!(list[0]["bytes"].as_u64().unwrap() > 100_000, "{list}");
        for field in ["pulled", "used"] {
            let time: jiff::Timestamp = list[0][field].as_str().unwrap().parse().unwrap();
            assert!(jiff::Timestamp::now().duration_since(time).as_secs() < 600, "{list}");
        }
        let run = ["Entrypoint", "Cmd", "Env", "WorkingDir", "User"]
            .map(|field| inspected["config"][field].clone());
        assert_eq!(
            run,
            [json!(["/function"]), json!(["a"]), json!(["PATH=/usr/bin:/bin"]), json!("/tmp"), json!("7")]
        );
        assert_eq!(inspected["layers"].as_array().unwrap().len(), 2, "{inspected}");

        let removed = user.run(&["images", "rm", NAME, NAME], b"").await;
        assert_eq!((removed.status.code(), stdout(&removed)), (Some(1), format!("{NAME}\n")));
        let missing = format!("{NAME}: the image is not here: see porch-fn images list, pull and import\n");
        assert_eq!(stderr(&removed), format!("porch-fn images: {missing}"));
        let inspected = user.run(&["images", "inspect", NAME], b"").await;
        assert_eq!((inspected.status.code(), stdout(&inspected)), (Some(1), String::new()));
        assert_eq!(stderr(&inspected), format!("porch-fn images: {missing}"));
        // The other image has the same layers.
        assert_eq!(user.run(&["run", "--pull=never", other], b"").await.status.code(), Some(0));
        assert!(user.run(&["images", "rm", other], b"").await.status.success());
        assert_eq!(stdout(&user.run(&["images", "list", "-o", "json"], b"").await), "[]\n");
        for folder in ["layers", "blobs"] {
            assert_eq!(fs::read_dir(user.store().join(folder)).unwrap().count(), 0, "{folder}");
        }
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn text_of_an_archive_cannot_control_the_terminal() {
    const CONTROLS: &str = "\u{1b}]0;title\u{7}\u{1b}[2J\nfaked: line";
    let user = ImageUser::own();
    let manifest = json!([{"Config": CONTROLS, "RepoTags": [NAME], "Layers": []}]).to_string();
    let layer = Layer::new().file(&format!("{CONTROLS}/.wh..."), 0o644, b"");
    for archive in [
        shell("true").oci_archive(&format!("a.b/c{CONTROLS}")),
        Layer::new().file("manifest.json", 0o644, manifest.as_bytes()).finish(),
        Image::new(&["x"]).layer(layer).oci_archive(NAME),
    ] {
        let ended = user.run(&["images", "import", "-"], &archive).await;
        let text = stderr(&ended);
        assert!(!ended.status.success() && text.contains("\\u{1b}]0;title"), "{text:?}");
        assert_eq!(text.chars().filter(|c| c.is_control()).collect::<String>(), "\n", "{text:?}");
    }
}

/// A secret that no message may contain.
const SECRET: &str = "pl4nted";

/// Pulls the image with this environment, in place of the user's own.
async fn pull(user: &ImageUser, image: &str, environment: &[(&str, &str)]) -> Output {
    let mut command = user.command(user.program());
    for variable in ["DOCKER_CONFIG", "REGISTRY_AUTH_FILE", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"] {
        command.env_remove(variable);
    }
    command.args(["images", "pull", image]).envs(environment.iter().copied()).stdin(Stdio::null());
    timeout(PATIENCE, command.output()).await.expect("it ends").expect("a program")
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn credentials_come_from_the_files_and_helpers_of_docker_and_podman() {
    let registry = serve_private(&shell("true"), &User::new("me", SECRET)).await.to_string();
    let user = ImageUser::own();
    let image = format!("{registry}/private/f:v1");
    let login = json!({"auths": {&*registry: {"auth": base64(&format!("me:{SECRET}"))}}}).to_string();
    let part = json!({"auths": {format!("{registry}/private"): {"username": "me", "password": SECRET}}});
    let wrong = json!({"auths": {&*registry: {"auth": base64("me:wrong")}}}).to_string();
    let store = |helper: &str| json!({"auths": {&*registry: {}}, "credsStore": helper}).to_string();
    let own = |helper: &str| json!({"credHelpers": {&*registry: helper}}).to_string();
    let found = format!("{{\"ServerURL\": \"x\", \"Username\": \"me\", \"Secret\": \"{SECRET}\"}}");
    for (name, script) in [
        ("good", format!("read server; test \"$1 $server\" = 'get {registry}' && echo '{found}'")),
        ("reads-nothing", format!("echo '{found}'")),
        ("none", "echo 'credentials not found in native keychain'; exit 1".to_owned()),
        ("fails", format!("echo {SECRET}; echo {SECRET} >&2; exit 3")),
        ("odd", format!("echo {SECRET}")),
        // It ends after the process that waits for it.
        ("hangs", "while [ -e /proc/$PPID ]; do sleep 1; done".to_owned()),
    ] {
        let path =
            user.sandbox().write(&format!("bin/docker-credential-{name}"), format!("#!/bin/sh\n{script}\n"));
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = format!("{}:/usr/bin:/bin", user.sandbox().path("bin").display());
    let log_in = |again: &str| {
        format!(
            "refuses access to the image: check the image's name, or log in{again} with `docker login {registry}`"
        )
    };
    let of_helper = |name: &str, problem: &str| {
        format!("config.json names {problem}: try `echo {registry} | docker-credential-{name} get`")
    };
    for (place, text, variable, expected) in [
        ("docker/config.json", &*login, Some(("DOCKER_CONFIG", "docker")), Ok(())),
        ("home/.docker/config.json", &login, None, Ok(())),
        ("home/.config/containers/auth.json", &part.to_string(), None, Ok(())),
        ("settings/containers/auth.json", &login, Some(("XDG_CONFIG_HOME", "settings")), Ok(())),
        ("session/containers/auth.json", &part.to_string(), Some(("XDG_RUNTIME_DIR", "session")), Ok(())),
        ("one/auth.json", &login, Some(("REGISTRY_AUTH_FILE", "one/auth.json")), Ok(())),
        ("docker/config.json", &store("good"), Some(("DOCKER_CONFIG", "docker")), Ok(())),
        ("docker/config.json", &own("good"), Some(("DOCKER_CONFIG", "docker")), Ok(())),
        ("docker/config.json", &own("reads-nothing"), Some(("DOCKER_CONFIG", "docker")), Ok(())),
        ("docker/config.json", "{}", Some(("DOCKER_CONFIG", "docker")), Err(log_in(""))),
        ("docker/config.json", &wrong, Some(("DOCKER_CONFIG", "docker")), Err(log_in(" again"))),
        ("docker/config.json", &store("none"), Some(("DOCKER_CONFIG", "docker")), Err(log_in(""))),
        (
            "docker/config.json",
            &store("fails"),
            Some(("DOCKER_CONFIG", "docker")),
            Err(of_helper("fails", "failed")),
        ),
        (
            "docker/config.json",
            &own("odd"),
            Some(("DOCKER_CONFIG", "docker")),
            Err(of_helper("odd", "sent a malformed answer")),
        ),
        (
            "docker/config.json",
            &own("missing"),
            Some(("DOCKER_CONFIG", "docker")),
            Err(of_helper("missing", "cannot be run")),
        ),
        (
            "docker/config.json",
            &store("hangs"),
            Some(("DOCKER_CONFIG", "docker")),
            Err(of_helper("hangs", "did not answer in 10 s")),
        ),
        (
            "docker/config.json",
            "{",
            Some(("DOCKER_CONFIG", "docker")),
            Err("config.json cannot be used: the JSON ends too early".to_owned()),
        ),
        // The other files are not looked at.
        ("home/.docker/config.json", &login, Some(("REGISTRY_AUTH_FILE", "none.json")), Err(log_in(""))),
    ] {
        let file = user.sandbox().write(place, text);
        let value = variable.map(|(_, value)| user.sandbox().path(value).display().to_string());
        let mut environment = vec![("PATH", &*path), ("PORCH_FN_INSECURE_REGISTRIES", &*registry)];
        environment.extend(variable.zip(value.as_deref()).map(|((name, _), value)| (name, value)));
        let ended = pull(&user, &image, &environment).await;
        let shown = stderr(&ended);
        assert!(!shown.contains(SECRET), "{place} {text}: {shown}");
        match expected {
            Ok(()) => assert!(ended.status.success(), "{place} {text}: {shown}"),
            Err(expected) => {
                assert!(!ended.status.success() && shown.contains(&expected), "{place} {text}: {shown}");
                assert!(shown.contains(&registry), "{shown}");
            }
        }
        fs::remove_file(file).unwrap();
        let removed = user.run(&["images", "rm", &image], b"").await;
        assert_eq!(removed.status.success(), ended.status.success(), "{}", stderr(&removed));
    }
}

//! The program under the name of a container engine, called like kpt and kustomize call one.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Output, Stdio};

use futures_util::future::join_all;
use porch_fn_tests::image::{Image, Layer, serve_private};
use porch_fn_tests::image_user::ImageUser;
use porch_fn_tests::process::PATIENCE;
use porch_fn_tests::registry::User;
use tokio::io::AsyncWriteExt as _;
use tokio::time::timeout;

use super::{NAME, programs, shell, stderr, stdout};

/// The words of kpt's `pkg/fn/runtime/container.go`. The policy for pulls is next.
const KPT: &str = "run --rm -i --network none --user nobody --security-opt=no-new-privileges --pull";
/// The words of kustomize's `kyaml/fn/runtime/container/container.go`.
const KUSTOMIZE: &str = "run --rm -i -a STDIN -a STDOUT -a STDERR --network none --user nobody \
                         --security-opt=no-new-privileges";
const LIST: &str = "apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems: []\n";

/// Installs the link for an engine, and returns its path.
async fn install(user: &ImageUser, engine: &str) -> PathBuf {
    let installed = user.run(&["shim", "install", "--as", engine], b"").await;
    assert!(stdout(&installed).contains(&format!("KRM_FN_RUNTIME={engine}")), "{}", stderr(&installed));
    user.sandbox().path(format!("home/.local/share/porch-fn/bin/{engine}").as_str())
}

/// Runs a command line, split at spaces, with a ResourceList as input.
async fn call(user: &ImageUser, engine: &PathBuf, line: &str, variable: Option<(&str, &OsStr)>) -> Output {
    // The template of kpt is one word.
    let words = line.split(' ').map(|word| if word == "{{.Tag}}" { "{{ .Tag }}" } else { word });
    let mut command = user.command(engine);
    command.args(words).envs(variable).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let ended = async {
        // The write fails if the program does not read its input.
        let _ = stdin.write_all(LIST.as_bytes()).await;
        drop(stdin);
        child.wait_with_output().await
    };
    timeout(PATIENCE, ended).await.unwrap_or_else(|_| panic!("{line} did not end")).unwrap()
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn sixteen_calls_at_once_are_as_the_functions_own() {
    for user in ImageUser::all() {
        let script = "echo \"note $N\" >&2; cat; echo \"# $N\"; exit \"$N\"";
        user.import(NAME, &shell(script)).await;
        let podman = install(&user, "podman").await;
        let calls = (0..16).map(async |number| {
            let input = format!("kind: ResourceList\n# {}\n", "x".repeat(number * 10_000));
            let variable = format!("N={number}");
            let args: Vec<_> = KPT.split(' ').chain(["never", "-e", &variable, NAME]).collect();
            let ended = user.run_program(&podman, &args, input.as_bytes()).await;
            assert_eq!(ended.status.code(), Some(i32::try_from(number).unwrap()), "{}", stderr(&ended));
            assert_eq!(stderr(&ended), format!("note {number}\n"));
            assert_eq!(stdout(&ended), format!("{input}# {number}\n"));
        });
        join_all(calls).await;
    }
}

/// The images of the lines below.
async fn import_all(user: &ImageUser) {
    let entrypoint = |path: &str| Image::new(&[path]).layer(programs());
    for (name, image) in [
        ("cat", shell("cat")),
        ("echo", shell("cat >/dev/null; echo \"$@\"")),
        ("env", shell("cat >/dev/null; env")),
        ("id", shell("cat >/dev/null; echo $(id -u):$(id -g)")),
        ("fails", shell("cat >/dev/null; echo oops >&2; exit 3")),
        ("results", shell("cat; echo results: []; echo oops >&2; exit 3")),
        ("writes", shell("echo new >/in/new; cat /in/old")),
        ("no-program", entrypoint("/none")),
        ("not-executable", entrypoint("/text").layer(Layer::new().file("text", 0o644, b"x"))),
    ] {
        user.import(&format!("example.com/fn/{name}:v1"), &image).await;
    }
    user.import("example.com/fn/cat-more:v0.4.9", &shell("cat")).await;
}

/// Words behind `KPT`, the start of the answer on stdout and on stderr, and the exit code.
const RUNS: [(&str, &str, &str, i32); 18] = [
    ("missing example.com/fn/cat:v1", LIST, "", 0),
    ("missing example.com/fn/cat:latest", LIST, "", 0),
    ("missing example.com/fn/cat", LIST, "", 0),
    ("never example.com/fn/cat:v1", LIST, "", 0),
    ("never docker.io/library/cat:v1", LIST, "", 0),
    ("missing --network host example.com/fn/cat:v1", LIST, "", 0),
    ("missing --user 0:0 example.com/fn/id:v1", "0:0\n", "", 0),
    ("missing --user 1000:1000 example.com/fn/id:v1", "1000:1000\n", "", 0),
    ("missing example.com/fn/id:v1", "65534:65534\n", "", 0),
    ("missing --mount type=bind,source=DATA,target=/in example.com/fn/writes:v1", "old\n", "", 0),
    ("missing --mount type=tmpfs,source=,target=/t example.com/fn/cat:v1", LIST, "", 0),
    ("missing --mount type=tmpfs,source=,target=/t,readonly example.com/fn/cat:v1", LIST, "", 0),
    ("missing example.com/fn/fails:v1", "", "oops\n", 3),
    ("missing example.com/fn/results:v1", LIST, "oops\n", 3),
    ("missing example.com/fn/no-program:v1", "", "ENGINE: ", 127),
    ("missing example.com/fn/not-executable:v1", "", "ENGINE: ", 126),
    (
        "missing --rm=false example.com/fn/cat:v1",
        "",
        "ENGINE: `run` is always with --rm and --interactive",
        125,
    ),
    ("missing -i=x example.com/fn/cat:v1", "", "ENGINE: run: invalid value 'x' for '--interactive", 125),
];

/// Mounts that are refused, and the reason.
const REFUSED: [(&str, &str); 6] = [
    ("type=,source=DATA,target=/in,readonly", "type is required"),
    ("type=volume,source=v,target=/v,readonly", "only the types bind and tmpfs exist"),
    ("type=bind,source=rel,target=/r,readonly", "the source is not an absolute path"),
    ("type=bind,source=DATA,target=,readonly", "the target is not an absolute path"),
    ("type=bind,source=DATA,target=/in,target=/other", "target is given twice"),
    ("type=tmpfs,source=DATA,target=/t", "a tmpfs has no source"),
];

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn each_line_of_kpt_and_kustomize_has_an_engines_answer() {
    for user in ImageUser::all() {
        import_all(&user).await;
        let data = user.sandbox().path("data");
        fs::create_dir(&data).unwrap();
        fs::set_permissions(&data, fs::Permissions::from_mode(0o777)).unwrap();
        fs::write(data.join("old"), "old\n").unwrap();
        let data = data.display().to_string();
        for engine in ["docker", "podman", "nerdctl"] {
            let link = install(&user, engine).await;
            let call = async |line: &str| call(&user, &link, &line.replace("DATA", &data), None).await;
            let same = async |line: &str, out: &str, err: &str, code: i32| {
                let ended = call(line).await;
                let seen = (stdout(&ended), stderr(&ended), ended.status.code());
                assert_eq!(seen, (out.to_owned(), err.to_owned(), Some(code)), "{engine} {line}");
            };
            same("version --format {{.Client.Version}}", "20.10.27\n", "", 0).await;
            let version = call("version").await;
            assert!(stdout(&version).ends_with("\n Version: 20.10.27\n") && version.status.success());

            for name in ["example.com/fn/cat:latest", "example.com/fn/cat:v0.4.1", "docker.io/library/cat:v1"]
            {
                same(&format!("tag example.com/fn/cat:v1 {name}"), "", "", 0).await;
            }
            let tags = async |name: &str| {
                let line = format!("image ls --filter reference={name} --format {{{{.Tag}}}}");
                let ended = call(&line).await;
                assert_eq!((ended.status.code(), stderr(&ended)), (Some(0), String::new()), "{line}");
                let mut tags: Vec<_> = stdout(&ended).lines().map(str::to_owned).collect();
                tags.sort();
                tags
            };
            assert_eq!(tags("example.com/fn/cat").await, ["latest", "v0.4.1", "v1"]);
            assert_eq!(tags("docker.io/library/cat").await, ["v1"]);
            for none in ["example.com/fn/ca", "example.com/fn/not-here", "docker.io/cat/cat"] {
                assert!(tags(none).await.is_empty(), "{none}");
            }

            for (words, out, err, code) in RUNS {
                let line = format!("{KPT} {words}");
                let ended = call(&line).await;
                let (out, err) = (out.to_owned(), err.replace("ENGINE", engine));
                assert_eq!(ended.status.code(), Some(code), "{engine} {line}: {}", stderr(&ended));
                assert!(stdout(&ended).starts_with(&out), "{line}: {}", stdout(&ended));
                assert_eq!(stdout(&ended).is_empty(), out.is_empty(), "{line}: {}", stdout(&ended));
                assert!(stderr(&ended).starts_with(&err), "{line}: {}", stderr(&ended));
                assert_eq!(stderr(&ended).is_empty(), err.is_empty(), "{line}: {}", stderr(&ended));
            }
            fs::remove_file(format!("{data}/new")).expect("a mount without `readonly` is writable");
            let read_only =
                "missing --mount type=bind,source=DATA,target=/in,readonly example.com/fn/writes:v1";
            let ended = call(&format!("{KPT} {read_only}")).await;
            assert_eq!((stdout(&ended), ended.status.code()), ("old\n".to_owned(), Some(0)));
            assert!(stderr(&ended).contains("Read-only file system"), "{}", stderr(&ended));
            assert!(!PathBuf::from(format!("{data}/new")).exists());
            for (mount, reason) in REFUSED {
                let ended = call(&format!("{KPT} missing --mount {mount} example.com/fn/cat:v1")).await;
                let (text, mount) = (stderr(&ended), mount.replace("DATA", &data));
                let expected = format!("--mount <MOUNT>': {mount:?}: {reason}; write type=bind,");
                assert!(text.starts_with(&format!("{engine}: run: ")) && text.lines().count() == 1, "{text}");
                assert!(text.contains(&expected), "{text}");
                assert_eq!((stdout(&ended), ended.status.code()), (String::new(), Some(125)));
            }
            same("run --rm -i example.com/fn/echo:v1 --help", "--help\n", "", 0).await;
            same("run --rm example.com/fn/echo:v1 --help", "--help\n", "", 0).await;
            same("run --rm -i example.com/fn/fails:v1 --help", "", "oops\n", 3).await;
            same("run example.com/fn/echo:v1 -e A --user=7 -- -i", "-e A --user=7 -- -i\n", "", 0).await;
            same(&format!("{KUSTOMIZE} -e LOG_TO_STDERR=true example.com/fn/cat:v1"), LIST, "", 0).await;
            let ended = call(&format!("{KPT} missing -e A=1 -e Z=2 -e NOT_SET example.com/fn/env:v1")).await;
            let variables = stdout(&ended);
            assert!(variables.contains("\nA=1\n") || variables.starts_with("A=1\n"), "{variables}");
            assert!(!variables.contains("NOT_SET"), "{variables}");

            assert_eq!(call("image inspect example.com/fn/cat:v1").await.status.code(), Some(0));
            assert_eq!(call("image rm example.com/fn/cat:latest").await.status.code(), Some(0));
            for line in ["image inspect", "image rm"] {
                let ended = call(&format!("{line} example.com/fn/cat:latest")).await;
                assert_eq!((ended.status.code(), stdout(&ended)), (Some(1), String::new()), "{line}");
            }
            for (line, expected) in [
                ("build .", "\"build .\" is not answered: only `version`"),
                ("image ls", "\"image ls\" is not answered"),
                ("run --privileged x", "run: unexpected argument '--privileged' found"),
            ] {
                let ended = call(line).await;
                let expected = format!("{engine}: {expected}");
                assert_eq!(ended.status.code(), Some(125), "{line}");
                assert!(stderr(&ended).starts_with(&expected), "{}", stderr(&ended));
            }
        }
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn an_image_that_cannot_be_had_has_the_text_of_the_engine() {
    let user = ImageUser::own();
    let registry = serve_private(&shell("cat"), &User::new("me", "pl4nted")).await;
    let (here, here_not) = (format!("{registry}/fn/f:v1"), "127.0.0.1:1/fn/f:v1");
    let denied = format!(
        "the image's registry refuses access to the image: check the image's name, or log in with `docker login {registry}` or `podman login {registry}`\n"
    );
    for (engine, code, never, unreachable, refused) in [
        (
            "docker",
            125,
            "docker: Error response from daemon: No such image: 127.0.0.1:1/fn/f:v1\n",
            "docker: Error response from daemon: Head \"https://127.0.0.1:1/v2/fn/f/manifests/v1\": the image's \
             registry cannot be reached",
            format!(
                "docker: Error response from daemon: Head \"https://{registry}/v2/fn/f/manifests/v1\": denied: {denied}"
            ),
        ),
        (
            "podman",
            125,
            "Error: 127.0.0.1:1/fn/f:v1: image not known\n",
            "Error: initializing source docker://127.0.0.1:1/fn/f:v1: the image's registry cannot be reached",
            format!("Error: initializing source docker://{here}: {denied}"),
        ),
        (
            "nerdctl",
            1,
            "nerdctl: image not available: \"127.0.0.1:1/fn/f:v1\"\n",
            "nerdctl: image not available: \"127.0.0.1:1/fn/f:v1\": the image's registry cannot be reached",
            format!("nerdctl: image not available: \"{here}\": {denied}"),
        ),
    ] {
        let link = install(&user, engine).await;
        for (line, text) in [
            (format!("{KPT} never {here_not}"), never),
            (format!("{KPT} missing {here_not}"), unreachable),
            (format!("{KPT} always {here_not}"), unreachable),
            (format!("pull {here_not}"), unreachable),
            (format!("{KPT} missing {here}"), &refused),
        ] {
            let ended = call(&user, &link, &line, None).await;
            assert_eq!((ended.status.code(), stdout(&ended)), (Some(code), String::new()), "{engine} {line}");
            assert!(stderr(&ended).starts_with(text), "{engine} {line}: {}", stderr(&ended));
            assert_eq!(stderr(&ended).lines().count(), 1, "{}", stderr(&ended));
        }
        let wrong = Some(("PORCH_FN_REGISTRY_MIRROR", OsStr::new("x")));
        let ended = call(&user, &link, &format!("{KPT} missing {here}"), wrong).await;
        assert_eq!(ended.status.code(), Some(125), "{}", stderr(&ended));
        assert!(
            stderr(&ended).starts_with(&format!("{engine}: --registry-mirror \"x\"")),
            "{}",
            stderr(&ended)
        );
        let wrong = Some(("PORCH_FN_REGISTRY_MIRROR", OsStr::from_bytes(b"\xff")));
        let ended = call(&user, &link, &format!("{KPT} never {here}"), wrong).await;
        assert_eq!(ended.status.code(), Some(125), "{}", stderr(&ended));
        assert!(stderr(&ended).contains("invalid UTF-8"), "{}", stderr(&ended));
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_tag_is_replaced_by_the_next_pull() {
    let user = ImageUser::own();
    let secret = User::new("me", "pl4nted");
    let (old, new) =
        (serve_private(&shell("echo old"), &secret).await, serve_private(&shell("echo new"), &secret).await);
    let logins = [(old.to_string(), secret.clone()), (new.to_string(), secret)];
    let logins = logins.iter().map(|(registry, user)| (&**registry, user));
    user.sandbox().write("home/.docker/config.json", porch_fn_tests::registry::docker_config(logins));
    let link = install(&user, "docker").await;
    let plain = format!("{old},{new}");
    let plain = Some(("PORCH_FN_INSECURE_REGISTRIES", OsStr::new(&plain)));
    let call = async |line: &str| {
        let ended = call(&user, &link, line, plain).await;
        assert!(ended.status.success(), "{line}: {}", stderr(&ended));
        stdout(&ended)
    };
    assert_eq!(call(&format!("pull {old}/f:v1")).await, format!("{old}/f:v1\n"));
    assert_eq!(call(&format!("tag {old}/f:v1 {new}/f:v1")).await, "");
    assert_eq!(call(&format!("{KPT} missing {new}/f:v1")).await, "old\n");
    assert_eq!(call(&format!("{KPT} always {new}/f:v1")).await, "new\n");
    assert_eq!(call(&format!("{KPT} never {new}/f:v1")).await, "new\n");
    assert_eq!(call(&format!("{KPT} never {old}/f:v1")).await, "old\n");
}

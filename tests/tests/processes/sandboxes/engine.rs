//! The program under the name of a container engine, called like kpt calls one.

use futures_util::future::join_all;
use porch_fn_tests::image_user::ImageUser;

use super::{NAME, shell, stderr, stdout};

/// The arguments of kpt 1.0.0-beta.62, as in its `pkg/fn/runtime/container.go`.
const RUN: &str = "run --rm -i --network none --user nobody --security-opt=no-new-privileges --pull never";

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn sixteen_calls_at_once_are_as_the_functions_own() {
    for user in ImageUser::all() {
        let script = "echo \"note $N\" >&2; cat; echo \"# $N\"; exit \"$N\"";
        user.import(NAME, &shell(script)).await;
        let installed = user.run(&["shim", "install", "--as", "podman"], b"").await;
        assert!(stdout(&installed).contains("KRM_FN_RUNTIME=podman"), "{}", stderr(&installed));
        let podman = user.sandbox().path("home/.local/share/porch-fn/bin/podman");
        let version = user.run_program(&podman, &["version"], b"").await;
        assert!(version.status.success());
        let short = user.run_program(&podman, &["version", "--format", "{{.Client.Version}}"], b"").await;
        assert!(stdout(&short).starts_with("20.10."), "{}", stdout(&short));
        let calls = (0..16).map(async |number| {
            let input = format!("kind: ResourceList\n# {}\n", "x".repeat(number * 10_000));
            let variable = format!("N={number}");
            let args: Vec<_> = RUN.split(' ').chain(["-e", &variable, NAME]).collect();
            let ended = user.run_program(&podman, &args, input.as_bytes()).await;
            assert_eq!(ended.status.code(), Some(i32::try_from(number).unwrap()), "{}", stderr(&ended));
            assert_eq!(stderr(&ended), format!("note {number}\n"));
            assert_eq!(stdout(&ended), format!("{input}# {number}\n"));
        });
        join_all(calls).await;
        for (args, expected) in [
            (&["build", "."][..], "only `version` and `run` are answered"),
            (&["run", "--privileged", NAME], "--privileged"),
            (&["run", "--pull", "never", "example.com/other:v1"], "the image is not here"),
        ] {
            let ended = user.run_program(&podman, args, b"").await;
            assert_eq!(ended.status.code(), Some(125));
            assert!(
                stderr(&ended).starts_with("podman: ") && stderr(&ended).contains(expected),
                "{}",
                stderr(&ended)
            );
        }
    }
}

//! Images in pods: `porch-fn up`, and a runner with `--pod-backend=sandbox`.

use porch_fn_tests::image_user::{ImageUser, Up};
use porch_fn_tests::process::eventually;

use super::super::INPUT;
use super::{NAME, shell, stderr, stdout};

async fn eval(up: &Up, user: &ImageUser, image: &str) -> (Option<i32>, String, String) {
    let ended = up.eval(user, image, INPUT).await;
    (ended.status.code(), stdout(&ended), stderr(&ended))
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn an_image_is_a_function() {
    for user in ImageUser::all() {
        user.import(NAME, &shell("echo note >&2; cat; echo '# made by' $(id -u)")).await;
        let up = Up::start(&user, &[]).await;
        let (code, output, notes) = eval(&up, &user, NAME).await;
        assert_eq!(code, Some(0), "{notes}");
        assert!(output.contains("made by 65534") || output.contains("kind: ResourceList"), "{output}");
        // The example functions stay.
        let (code, _, notes) = eval(&up, &user, "porch-fn.example/require-resources:v1").await;
        assert_eq!(code, Some(0), "{notes}");
        let (code, _, notes) = eval(&up, &user, "127.0.0.1:1/none:v1").await;
        assert_eq!(code, Some(1), "{notes}");
        assert!(notes.contains("NOT_FOUND") && notes.contains("registry cannot be reached"), "{notes}");
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_function_does_not_see_its_wrapper() {
    for user in ImageUser::all() {
        let script = "cat /proc/1/environ /proc/1/maps /proc/1/cmdline >/tmp/out 2>&1; ls -l /proc/1/fd /proc/1/exe \
                      >>/tmp/out 2>&1; kill -STOP 1; (: > /proc/1/mem); cat; while read -r line; do echo \"# $line\"; \
                      done < /tmp/out";
        user.import(NAME, &shell(script)).await;
        let up = Up::start(&user, &[]).await;
        for _ in 0..2 {
            let (code, output, notes) = eval(&up, &user, NAME).await;
            assert_eq!(code, Some(0), "{notes}{output}");
            assert!(notes.contains("/proc/1/mem: Permission denied") || notes.is_empty(), "{notes}");
        }
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn sandboxes_end_with_up() {
    for user in ImageUser::all() {
        user.import(NAME, &shell("cat")).await;
        let up = Up::start(&user, &[]).await;
        assert_eq!(eval(&up, &user, NAME).await.0, Some(0));
        assert!(has_sandboxes(&user));
        up.kill().await;
        eventually("no sandbox is left", async || (!has_sandboxes(&user)).then_some(())).await;
        // The next start removes the socket of the killed one.
        let up = Up::start(&user, &[]).await;
        assert_eq!(eval(&up, &user, NAME).await.0, Some(0));
        assert_eq!(std::fs::read_dir(user.store().join("tmp")).unwrap().count(), 1);
    }
}

/// Whether a process of the user creates a sandbox, or is the first one in it.
fn has_sandboxes(user: &ImageUser) -> bool {
    user.processes().iter().any(|line| line.contains("__sandbox"))
}

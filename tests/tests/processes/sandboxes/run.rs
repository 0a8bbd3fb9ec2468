//! `porch-fn run`: the function's own input, outputs and exit code.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

use porch_fn_tests::image::{Image, Layer};
use porch_fn_tests::image_user::ImageUser;

use super::{NAME, programs, shell, stderr, stdout};

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn input_outputs_and_exit_code_are_the_functions() {
    for user in ImageUser::all() {
        user.import(NAME, &shell("cat; echo note >&2 || exit 9; exit \"${1:-0}\"")).await;
        let all_bytes: Vec<u8> = (0..=u8::MAX).cycle().take(3 << 20).collect();
        let ended = user.run(&["run", NAME], &all_bytes).await;
        assert_eq!((ended.status.code(), stderr(&ended).as_str()), (Some(0), "note\n"));
        assert!(ended.stdout == all_bytes, "{} bytes", ended.stdout.len());
        for code in ["1", "7", "255"] {
            let ended = user.run(&["run", NAME, code], b"").await;
            assert_eq!(ended.status.code().unwrap().to_string(), code);
        }
        let mut nowhere = user.command(user.program());
        nowhere.args(["run", NAME]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        assert!(nowhere.status().await.unwrap().success(), "it can write to /dev/null");
        let ended = user.run(&["run", NAME, "--flag-of-the-function"], b"").await;
        assert_eq!(ended.status.code(), Some(2), "{}", stderr(&ended));
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn processes_of_a_function_reach_each_other_by_loopback() {
    for user in ImageUser::all() {
        user.import(NAME, &shell("bash -c ': </dev/tcp/127.0.0.1/1'")).await;
        let ended = user.run(&["run", NAME], b"").await;
        // Nothing listens there, but the address can be reached.
        assert!(stderr(&ended).contains("Connection refused"), "{}", stderr(&ended));
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn the_process_is_as_the_image_and_the_flags_say() {
    for user in ImageUser::all() {
        let image = shell("id -u; id -g; echo \"$HOME $A $B\"; ls; cat /proc/self/cgroup >/dev/null")
            .layer(
                Layer::new()
                    .file("etc/passwd", 0o644, b"app:x:1000:1001::/home/app:/bin/sh\n")
                    .folder("work", 0o700),
            )
            .layer(Layer::new().file("work/here", 0o600, b""))
            .with("User", "app")
            .with("WorkingDir", "/work")
            .with("Env", vec!["PATH=/bin", "A=image"]);
        user.import(NAME, &image).await;
        let ended = user.run(&["run", NAME], b"").await;
        assert_eq!(stdout(&ended), "1000\n1001\n/home/app image \nhere\n", "{}", stderr(&ended));
        let flags = ["run", "--user", "7:8", "-e", "A=flag", "-e", "B=other", NAME];
        let ended = user.run(&flags, b"").await;
        assert_eq!(stdout(&ended), "7\n8\n/ flag other\nhere\n", "{}", stderr(&ended));
        // Without USER, a function is nobody, as with kpt.
        user.import(NAME, &shell("id -u")).await;
        let ended = user.run(&["run", NAME], b"").await;
        assert_eq!(stdout(&ended), "65534\n", "{}", stderr(&ended));
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn what_cannot_run_has_dockers_exit_codes() {
    let user = ImageUser::own();
    let image = Image::new(&["missing"]).layer(programs()).layer(Layer::new().file("text", 0o644, b"x"));
    user.import(NAME, &image).await;
    let ended = user.run(&["run", NAME], b"").await;
    assert_eq!(ended.status.code(), Some(127));
    assert!(stderr(&ended).contains("cannot run \"missing\" of the image"), "{}", stderr(&ended));
    user.import(
        NAME,
        &Image::new(&["/text"]).layer(programs()).layer(Layer::new().file("text", 0o644, b"x")),
    )
    .await;
    assert_eq!(user.run(&["run", NAME], b"").await.status.code(), Some(126));
    user.import(
        NAME,
        &Image::new(&["sh", "-c", "kill -9 $$; exec sleep 60 & kill -9 $!; wait $!"]).layer(programs()),
    )
    .await;
    assert_eq!(user.run(&["run", NAME], b"").await.status.code(), Some(137));
    let ended = user.run(&["run", "--pull", "never", "example.com/other:v1"], b"").await;
    assert_eq!(ended.status.code(), Some(125));
    assert!(stderr(&ended).contains("the image is not here"), "{}", stderr(&ended));
    user.import(NAME, &shell("sleep 60")).await;
    let ended = user.run(&["run", "--timeout", "200ms", NAME], b"").await;
    assert_eq!(ended.status.code(), Some(124), "{}", stderr(&ended));
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn folders_of_the_machine_are_mounted() {
    for user in ImageUser::all() {
        user.import(NAME, &shell("cat /in/file; touch /in/new; touch /out/new")).await;
        for folder in ["in", "out"] {
            fs::create_dir(user.sandbox().path(folder)).unwrap();
            fs::set_permissions(user.sandbox().path(folder), fs::Permissions::from_mode(0o777)).unwrap();
        }
        user.sandbox().write("in/file", "content\n");
        let mount = |folder: &str, more: &str| {
            format!("type=bind,src={},dst=/{folder}{more}", user.sandbox().path(folder).display())
        };
        let (read, write) = (mount("in", ""), mount("out", ",rw"));
        let ended = user.run(&["run", "--mount", &read, "--mount", &write, NAME], b"").await;
        assert_eq!(stdout(&ended), "content\n", "{}", stderr(&ended));
        assert!(stderr(&ended).contains("Read-only file system"), "{}", stderr(&ended));
        assert!(user.sandbox().path("out/new").exists() && !user.sandbox().path("in/new").exists());
    }
}

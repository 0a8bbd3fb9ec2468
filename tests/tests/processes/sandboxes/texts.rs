//! A message names what is wrong with the image, the flag or the machine. Only a fault of the
//! machine gets advice about the machine's settings.

use porch_fn_tests::image::{Image, Layer};
use porch_fn_tests::image_user::ImageUser;

use super::{NAME, open_folder, programs, shell, stderr, stdout};

/// Words that are no help to a person whose image or flag is at fault.
const NO_HELP: [&str; 6] =
    ["--security-opt", "serde", "failed to create", "cannot the image", "notify socket", "panicked"];

fn problem(what: &str, text: &str) -> Option<String> {
    NO_HELP.iter().any(|words| text.contains(words)).then(|| format!("{what}: {}", text.trim_end()))
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn faults_of_images_get_no_advice_about_the_machine() {
    for user in ImageUser::all() {
        let mut problems = Vec::new();
        for folder in ["proc", "dev", "tmp", "sys", "etc"] {
            let layers = [
                Layer::new().file(folder, 0o644, b"x"),
                Layer::new().symlink(folder, "/function"),
                Layer::new().symlink(folder, "/nowhere"),
                Layer::new().symlink(folder, folder),
                Layer::new().symlink(folder, "../../../../.."),
                Layer::new().symlink(folder, "/bin"),
            ];
            for (number, layer) in layers.into_iter().enumerate() {
                user.import(NAME, &shell("echo ran").layer(layer)).await;
                let ended = user.run(&["run", NAME], b"").await;
                problems.extend(problem(&format!("{folder} {number}"), &stderr(&ended)));
                let is_named = ended.status.code() != Some(125) || stderr(&ended).contains(folder);
                assert!(is_named, "{folder} {number}: {ended:?}");
            }
        }
        for of_user in ["nobody-here", "a:b", "1:b", "app:missing", "0x10", "-1", "1:2:3", "\u{7}"] {
            let layer = Layer::new().file("etc/passwd", 0o644, b"app:x:1:1::/:/bin/sh\nbroken\n");
            user.import(NAME, &shell("echo ran").layer(layer).with("User", of_user)).await;
            let ended = user.run(&["run", NAME], b"").await;
            problems.extend(problem(&format!("USER {of_user:?}"), &stderr(&ended)));
            assert_eq!(ended.status.code(), Some(125), "USER {of_user:?}: {ended:?}");
        }
        assert!(problems.is_empty(), "{} texts:\n{}", problems.len(), problems.join("\n"));
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn faults_of_flags_get_no_advice_about_the_machine() {
    for user in ImageUser::all() {
        let layer = Layer::new().symlink("link", "/sys").file("etc/passwd", 0o644, b"");
        user.import(NAME, &shell("echo ran").layer(layer)).await;
        let folder = open_folder(user.sandbox(), "in");
        let file = user.sandbox().write("file", "x");
        let mut problems = Vec::new();
        for (source, targets) in [
            (
                &folder,
                &["/", "/dev", "/proc", "/bin/sh", "/link", "/link/x", "/etc/passwd", "/../..", "/dev/null"]
                    [..],
            ),
            (&file, &["/", "/bin", "/dev", "/tmp", "/link", "/bin/sh/x", "/etc"]),
            (&user.sandbox().path("missing"), &["/in"]),
        ] {
            for target in targets {
                let mount = format!("type=bind,src={},dst={target}", source.display());
                let ended = user.run(&["run", "--mount", &mount, NAME], b"").await;
                problems.extend(problem(&mount, &stderr(&ended)));
                let text = stderr(&ended);
                // A mount over the image's programs may end the function itself.
                let words = [target.trim_end_matches('/'), source.to_str().unwrap()];
                let is_named =
                    ended.status.code() != Some(125) || words.iter().any(|word| text.contains(word));
                assert!(is_named, "{mount}: {ended:?}");
            }
        }
        for pids in ["0", "1", "2", "3"] {
            let ended = user.run(&["run", "--pids", pids, NAME], b"").await;
            problems.extend(problem(&format!("--pids {pids}"), &stderr(&ended)));
            let is_named = ended.status.success() || !stderr(&ended).is_empty();
            assert!(is_named, "--pids {pids}: {ended:?}");
        }
        for memory in ["1", "4096", "1000000"] {
            let ended = user.run(&["run", "--memory", memory, NAME], b"").await;
            problems.extend(problem(&format!("--memory {memory}"), &stderr(&ended)));
            assert!(ended.status.success() || !stderr(&ended).is_empty(), "--memory {memory}: {ended:?}");
        }
        assert!(problems.is_empty(), "{} texts:\n{}", problems.len(), problems.join("\n"));
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn values_that_mean_nothing_are_refused() {
    let user = ImageUser::own();
    user.import(NAME, &shell("echo ran")).await;
    for cpus in ["nan", "inf", "-inf", "-1", "1e300", "0.00001"] {
        let flag = format!("--cpus={cpus}");
        let ended = user.run(&["run", &flag, NAME], b"").await;
        assert!(!ended.status.success() && stdout(&ended).is_empty(), "{flag}: {ended:?}");
        assert!(stderr(&ended).contains("--cpus"), "{flag}: {ended:?}");
    }
    for mount in [
        "type=bind,src=/etc,dst=/a,dst=/b",
        "type=bind,src=/etc,src=/usr,dst=/a",
        "type=bind,src=/etc,dst=/a,ro,rw",
    ] {
        let ended = user.run(&["run", "--mount", mount, NAME], b"").await;
        assert!(!ended.status.success() && stdout(&ended).is_empty(), "{mount}: {ended:?}");
        assert!(stderr(&ended).contains("--mount"), "{mount}: {ended:?}");
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn large_arguments_and_variables_reach_the_function() {
    // The kernel takes 128 KiB for each, and 2 MiB for all.
    let value = "x".repeat(100_000);
    for user in ImageUser::all() {
        let env: Vec<_> = (0..15).map(|number| format!("V{number}={value}")).collect();
        let image = Image::new(&["/function"])
            .layer(programs())
            .layer(Layer::new().script("function", "echo \"${#V0} ${#V14} $#\""));
        user.import(NAME, &image.with("Env", [vec!["PATH=/bin".to_owned()], env].concat())).await;
        let ended = user.run(&["run", NAME], b"").await;
        assert_eq!(stdout(&ended), "100000 100000 0\n", "{}", stderr(&ended));
        user.import(NAME, &shell("echo \"${#1} $#\"").with("Cmd", vec![value.as_str(); 15])).await;
        let ended = user.run(&["run", NAME], b"").await;
        assert_eq!(stdout(&ended), "100000 15\n", "{}", stderr(&ended));
    }
}

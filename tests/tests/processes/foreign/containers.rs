//! `porch-fn run` inside a container of runc: with the rights that docs/sandbox.md names, and with
//! fewer.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Output;

use porch_fn_tests::foreign::installed;
use porch_fn_tests::image_user::ImageUser;
use porch_fn_tests::process::Sandbox;
use serde_json::{Value, json};

use super::cat;

const NAME: &str = "example.com/functions/f:v1";
/// The user in the container, as in our images.
const USER: u32 = 65532;
/// Users of the machine that are other users in the container.
const OTHERS: u32 = 200_000;

/// An ordinary user's container. Its root has the machine's programs, and /work is a folder with
/// the user's own ones.
struct Container {
    /// Beside the user's folder, which must not contain the container's mounts.
    bundle: Sandbox,
    /// The specification of a container without any restriction but its user.
    spec: Value,
}

// === impl Container ===

impl Container {
    fn new(user: &ImageUser) -> Self {
        let number = user.number().expect("an ordinary user");
        let bundle = Sandbox::new();
        fs::set_permissions(bundle.directory(), fs::Permissions::from_mode(0o755)).unwrap();
        let root = bundle.path("rootfs");
        let machine: Vec<_> = ["usr", "bin", "lib", "lib64", "etc", "sys"]
            .into_iter()
            .filter(|name| fs::metadata(format!("/{name}")).is_ok())
            .collect();
        for name in machine.iter().copied().chain(["proc", "dev", "tmp", "work"]) {
            fs::create_dir_all(root.join(name)).unwrap();
        }
        let mut mounts = vec![
            json!({"destination": "/proc", "type": "proc", "source": "proc"}),
            json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs"}),
            json!({"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["mode=1777"]}),
            json!({"destination": "/work", "type": "bind", "source": user.sandbox().directory(), "options": ["rbind"]}),
        ];
        mounts.extend(machine.iter().map(|name| {
            let place = format!("/{name}");
            json!({"destination": place, "type": "bind", "source": place, "options": ["rbind", "ro"]})
        }));
        let namespaces: Vec<_> =
            ["pid", "mount", "ipc", "uts", "network"].map(|kind| json!({"type": kind})).into();
        let spec = json!({
            "ociVersion": "1.0.2",
            "root": {"path": "rootfs", "readonly": true},
            "process": {
                "user": {"uid": number, "gid": number},
                "args": ["/work/porch-fn", "run", NAME],
                "env": ["PATH=/bin", "PORCH_FN_IMAGE_DIR=/work/home/images"],
                "cwd": "/",
                "noNewPrivileges": true,
                "capabilities": {},
            },
            "mounts": mounts,
            "linux": {"namespaces": namespaces},
        });
        Self { bundle, spec }
    }

    /// Covers what container runtimes cover by default.
    fn masked(mut self) -> Self {
        self.spec["linux"]["maskedPaths"] = json!(["/proc/kcore", "/proc/keys", "/proc/timer_list"]);
        self.spec["linux"]["readonlyPaths"] = json!(["/proc/sys", "/proc/bus"]);
        self
    }

    /// Forbids what the default filters of container runtimes forbid.
    fn filtered(mut self) -> Self {
        let calls = json!([{"names": ["unshare", "mount", "setns"], "action": "SCMP_ACT_ERRNO"}]);
        self.spec["linux"]["seccomp"] = json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": calls});
        self
    }

    fn with_env(mut self, variable: &str) -> Self {
        self.spec["process"]["env"].as_array_mut().unwrap().push(json!(variable));
        self
    }

    /// Puts the container into a user namespace, as `hostUsers: false` does.
    fn in_user_namespace(mut self) -> Self {
        let number = self.spec["process"]["user"]["uid"].take();
        let maps = json!([
            {"containerID": 0, "hostID": OTHERS, "size": USER},
            {"containerID": USER, "hostID": number, "size": 1},
        ]);
        self.spec["process"]["user"] = json!({"uid": USER, "gid": USER});
        self.spec["linux"]["namespaces"].as_array_mut().unwrap().push(json!({"type": "user"}));
        self.spec["linux"]["uidMappings"] = maps.clone();
        self.spec["linux"]["gidMappings"] = maps;
        self
    }

    async fn run(&self, input: &str) -> Output {
        self.bundle.write("config.json", self.spec.to_string());
        let bundle = self.bundle.directory().to_str().unwrap();
        let name = bundle.rsplit('/').next().unwrap();
        let runc = installed(&["runc"]);
        self.bundle.run(runc, ["run", "--bundle", bundle, name], input.as_bytes()).await
    }
}

/// An ordinary user with an image.
async fn user() -> ImageUser {
    let user = ImageUser::all().pop().expect("two users");
    user.import(NAME, &cat()).await;
    user
}

#[tokio::test]
#[ignore = "needs runc and root; tests/run runs it"]
async fn a_container_with_the_rights_of_the_documentation_runs_functions() {
    let user = user().await;
    let container = || Container::new(&user);
    for container in [container(), container().in_user_namespace()] {
        let ended = container.run("input").await;
        assert_eq!(String::from_utf8_lossy(&ended.stderr), "");
        assert_eq!(String::from_utf8_lossy(&ended.stdout), "input");
    }
}

#[tokio::test]
#[ignore = "needs runc and root; tests/run runs it"]
async fn a_container_without_them_says_which_it_needs() {
    let user = user().await;
    let container = || Container::new(&user);
    let pod = "KUBERNETES_SERVICE_HOST=192.0.2.1";
    for (container, advice) in [
        (container().masked(), "systempaths=unconfined"),
        (container().filtered(), "seccomp=unconfined"),
        (container().masked().in_user_namespace().with_env(pod), "procMount: Unmasked"),
        (container().filtered().with_env(pod), "hostUsers: false"),
    ] {
        let ended = container.run("input").await;
        let stderr = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(125), "{advice}: {stderr}");
        assert!(stderr.contains(advice) && ended.stdout.is_empty(), "{stderr}");
    }
}

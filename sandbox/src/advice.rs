//! What to change on a machine that does not allow sandboxes.

use std::fs;
use std::path::Path;

/// The variable that every container of a Kubernetes pod has.
const IN_A_POD: &str = "KUBERNETES_SERVICE_HOST";

/// Names the setting that most likely forbids a sandbox here.
pub(crate) fn advice() -> String {
    let read = |path: &str| fs::read_to_string(path).ok();
    let facts = Facts {
        apparmor: read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
        clone: read("/proc/sys/kernel/unprivileged_userns_clone"),
        most: read("/proc/sys/user/max_user_namespaces"),
        status: read("/proc/self/status").unwrap_or_default(),
        mounts: read("/proc/self/mountinfo").unwrap_or_default(),
        is_pod: std::env::var_os(IN_A_POD).is_some(),
        is_container: ["/.dockerenv", "/run/.containerenv"].iter().any(|path| Path::new(path).exists()),
    };
    facts.advice()
}

/// What this machine says about itself.
struct Facts {
    apparmor: Option<String>,
    clone: Option<String>,
    most: Option<String>,
    status: String,
    mounts: String,
    is_pod: bool,
    is_container: bool,
}

// === impl Facts ===

impl Facts {
    fn advice(&self) -> String {
        let is =
            |setting: &Option<String>, value: &str| setting.as_deref().is_some_and(|it| it.trim() == value);
        let has_seccomp = self
            .status
            .lines()
            .any(|line| line.strip_prefix("Seccomp:").is_some_and(|mode| mode.trim() != "0"));
        if is(&self.apparmor, "1") {
            return "AppArmor forbids user namespaces (Ubuntu 23.10 and newer): allow them with `sudo \
                    sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`, or run as root"
                .to_owned();
        }
        if is(&self.clone, "0") {
            return "this machine forbids user namespaces for ordinary users: allow them with `sudo \
                    sysctl -w kernel.unprivileged_userns_clone=1`, or run as root"
                .to_owned();
        }
        if is(&self.most, "0") {
            return "this machine has no user namespaces: allow them with `sudo sysctl -w \
                    user.max_user_namespaces=15000`"
                .to_owned();
        }
        // A container runtime covers parts of /proc. Linux then forbids to mount another one.
        let is_masked = self
            .mounts
            .lines()
            .filter_map(|line| line.split(' ').nth(4))
            .any(|place| place.starts_with("/proc/") && !place.starts_with("/proc/sys/fs/binfmt_misc"));
        if self.is_pod {
            return "a Kubernetes pod needs a user namespace, and the right to mount /proc: set \
                    `hostUsers: false` in the pod's spec, and in the container's securityContext \
                    `procMount: Unmasked`, `seccompProfile: {type: Unconfined}` and \
                    `appArmorProfile: {type: Unconfined}`"
                .to_owned();
        }
        if self.is_container || has_seccomp || is_masked {
            return "a container needs the rights to create namespaces and to mount /proc: start it with \
                    `docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt \
                    systempaths=unconfined`"
                .to_owned();
        }
        "see docs/sandbox.md for what a machine needs".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_names_the_setting() {
        let facts = || {
            Facts {
            apparmor: None,
            clone: None,
            most: Some("1000\n".to_owned()),
            status: "Name:\tx\nSeccomp:\t0\n".to_owned(),
            mounts: "22 27 0:21 / /proc rw - proc proc rw\n35 22 0:3 / /proc/sys/fs/binfmt_misc rw - autofs x rw\n"
                .to_owned(),
            is_pod: false,
            is_container: false,
        }
        };
        let one = || Some("1\n".to_owned());
        let zero = || Some("0\n".to_owned());
        for (facts, expected) in [
            (Facts { apparmor: one(), ..facts() }, "kernel.apparmor_restrict_unprivileged_userns=0"),
            (Facts { clone: zero(), ..facts() }, "kernel.unprivileged_userns_clone=1"),
            (Facts { most: zero(), ..facts() }, "user.max_user_namespaces"),
            (Facts { is_pod: true, ..facts() }, "hostUsers: false"),
            (Facts { is_container: true, ..facts() }, "--security-opt seccomp=unconfined"),
            (Facts { status: "Seccomp:\t2\n".to_owned(), ..facts() }, "--security-opt seccomp=unconfined"),
            (
                Facts { mounts: "9 8 0:5 /null /proc/kcore rw - tmpfs t rw".to_owned(), ..facts() },
                "systempaths=unconfined",
            ),
            (facts(), "docs/sandbox.md"),
        ] {
            assert!(facts.advice().contains(expected), "{}", facts.advice());
        }
    }
}

//! What to change on a machine that does not allow sandboxes.

use std::fs;
use std::path::Path;

use porch_fn_sandbox::{Limits, SandboxError, enforced};

/// The variable that every container of a Kubernetes pod has.
const IN_A_POD: &str = "KUBERNETES_SERVICE_HOST";

/// A file, the value that forbids user namespaces, and what to do about it.
const SETTINGS: [(&str, &str, &str); 3] = [
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "AppArmor forbids user namespaces (Ubuntu 23.10 and newer): allow them with `sudo sysctl -w \
         kernel.apparmor_restrict_unprivileged_userns=0`, or run as root",
    ),
    (
        "/proc/sys/kernel/unprivileged_userns_clone",
        "0",
        "this machine forbids user namespaces for ordinary users: allow them with `sudo sysctl -w \
         kernel.unprivileged_userns_clone=1`, or run as root",
    ),
    (
        "/proc/sys/user/max_user_namespaces",
        "0",
        "this machine has no user namespaces: allow them with `sudo sysctl -w user.max_user_namespaces=15000`",
    ),
];

/// The text of an error. If the machine forbids sandboxes, it names the setting that most likely does.
pub(crate) fn explain(error: &SandboxError) -> String {
    if error.is_refused() { format!("{error}. {}", advice()) } else { error.to_string() }
}

/// What of these limits this process cannot enforce as asked. `None`: it can enforce all.
pub(crate) fn not_enforced(limits: &Limits) -> Option<String> {
    let enforced = enforced(limits);
    let mut missing = Vec::new();
    if limits.memory_bytes.is_some() && !enforced.contains(&"memory") {
        missing.push("memory is limited for each process and without shared memory");
    }
    if limits.cpus.is_some() && !enforced.contains(&"cpu") {
        missing.push("CPU is not limited");
    }
    let text = || format!("without a cgroup that is delegated to this process, {}", missing.join(", and "));
    (!missing.is_empty()).then(text)
}

fn advice() -> &'static str {
    let is_container = ["/.dockerenv", "/run/.containerenv"].iter().any(|path| Path::new(path).exists());
    let is_pod = std::env::var_os(IN_A_POD).is_some();
    advice_for(|path| fs::read_to_string(path).unwrap_or_default(), is_pod, is_container)
}

/// `read` returns the content of a file of this machine.
fn advice_for(read: impl Fn(&str) -> String, is_pod: bool, is_container: bool) -> &'static str {
    if let Some((_, _, text)) = SETTINGS.iter().find(|(path, value, _)| read(path).trim() == *value) {
        return text;
    }
    if is_pod {
        return "a Kubernetes pod needs a user namespace, and the right to mount /proc: set `hostUsers: false` in \
                the pod's spec, and in the container's securityContext `procMount: Unmasked`, `seccompProfile: \
                {type: Unconfined}` and `appArmorProfile: {type: Unconfined}`";
    }
    let status = read("/proc/self/status");
    let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
    // A container runtime covers parts of /proc. Linux then forbids to mount another one.
    let is_masked = read("/proc/self/mountinfo")
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .any(|place| place.starts_with("/proc/") && !place.starts_with("/proc/sys/fs/binfmt_misc"));
    if is_container || is_masked || mode.is_some_and(|mode| mode.trim() != "0") {
        return "a container needs the rights to create namespaces and to mount /proc: start it with `docker run \
                --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt \
                systempaths=unconfined`";
    }
    "see docs/sandbox.md for what a machine needs"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_names_the_setting() {
        let usual = [
            ("/proc/sys/user/max_user_namespaces", "1000\n"),
            ("/proc/self/status", "Name:\tx\nSeccomp:\t0\n"),
            (
                "/proc/self/mountinfo",
                "22 27 0:21 / /proc rw - proc proc rw\n35 22 0:3 / /proc/sys/fs/binfmt_misc rw - autofs x rw\n",
            ),
        ];
        let with = |path: &'static str, content: &'static str, is_pod, is_container| {
            let read = |asked: &str| {
                let found = [(path, content)].into_iter().chain(usual).find(|(path, _)| *path == asked);
                found.map(|(_, content)| content.to_owned()).unwrap_or_default()
            };
            advice_for(read, is_pod, is_container)
        };
        for (path, content, is_pod, is_container, expected) in [
            (SETTINGS[0].0, "1\n", false, false, "kernel.apparmor_restrict_unprivileged_userns=0"),
            (SETTINGS[1].0, "0\n", false, false, "kernel.unprivileged_userns_clone=1"),
            (SETTINGS[2].0, "0\n", true, false, "user.max_user_namespaces"),
            ("", "", true, false, "hostUsers: false"),
            ("", "", false, true, "--security-opt seccomp=unconfined"),
            ("/proc/self/status", "Seccomp:\t2\n", false, false, "--security-opt seccomp=unconfined"),
            (
                "/proc/self/mountinfo",
                "9 8 0:5 /null /proc/kcore rw - tmpfs t rw",
                false,
                false,
                "systempaths=unconfined",
            ),
            ("", "", false, false, "docs/sandbox.md"),
        ] {
            let advice = with(path, content, is_pod, is_container);
            assert!(advice.contains(expected), "{advice}");
        }
    }
}

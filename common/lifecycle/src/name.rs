//! The name of this server in reports.

use rustix::system::uname;

/// The environment variable with the pod's name. The manifests set it.
const POD_NAME: &str = "POD_NAME";
/// Longest name, in bytes. Names of pods and hosts are not longer.
const MAX_NAME: usize = 253;

/// The name of this server's pod (`POD_NAME`), or else of its host. In a pod without `POD_NAME`,
/// the host's name is usually the pod's name.
pub fn server_name() -> String {
    let host = || uname().nodename().to_string_lossy().into_owned();
    chosen(std::env::var(POD_NAME).ok(), host)
}

fn chosen(pod: Option<String>, host: impl FnOnce() -> String) -> String {
    let mut name = pod.filter(|name| !name.is_empty()).unwrap_or_else(host);
    name.truncate(name.floor_char_boundary(MAX_NAME));
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pods_name_comes_before_the_hosts_and_is_bounded() {
        let host = || "host".to_owned();
        assert_eq!(chosen(Some("pod-0".to_owned()), host), "pod-0");
        assert_eq!(chosen(Some(String::new()), host), "host");
        assert_eq!(chosen(None, || "ž".repeat(200)).len(), MAX_NAME - 1);
        assert!(!server_name().is_empty());
    }
}

//! The names by which clients may reach the admin port. The port needs no login, so a page of a
//! foreign site could read it by a name that suddenly resolves to this server (DNS rebinding). A
//! browser sends that name as the Host. The names here belong to nobody outside the cluster.

use std::net::IpAddr;

use http::header::HOST;
use http::uri::Authority;
use http::{HeaderMap, HeaderValue};

/// The accepted names, in lower case. A name that begins with a dot stands for all names that end
/// with it. IP addresses and names without a dot are always accepted.
#[derive(Debug)]
pub(crate) struct Hosts(Vec<String>);

impl Hosts {
    /// The names of `--admin-hosts`, those of Services, and those in this pod's namespace.
    pub(crate) fn of_pod(names: &[String]) -> Self {
        let resolv_conf = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
        Self::new(names, std::env::var("POD_NAMESPACE").ok(), &resolv_conf)
    }

    fn new(names: &[String], namespace: Option<String>, resolv_conf: &str) -> Self {
        let mut accepted: Vec<_> = names.iter().map(|name| name.to_ascii_lowercase()).collect();
        accepted.extend([".svc", ".svc.cluster.local"].map(str::to_owned));
        accepted.extend(namespace.map(|namespace| format!(".{namespace}")));
        // The first domain that a pod searches is NAMESPACE.svc.DOMAIN.
        let searched = resolv_conf.lines().filter_map(|line| line.strip_prefix("search "));
        let searched = searched.flat_map(str::split_whitespace);
        for (namespace, domain) in searched.filter_map(|searched| searched.split_once(".svc.")) {
            accepted.extend([format!(".{namespace}"), format!(".svc.{domain}")]);
        }
        Self(accepted)
    }

    /// Whether the request is for this server. A request without a Host is not a browser's.
    pub(crate) fn accept(&self, headers: &HeaderMap) -> bool {
        headers.get_all(HOST).iter().all(|host| self.accepts(host).unwrap_or(false))
    }

    fn accepts(&self, host: &HeaderValue) -> Option<bool> {
        let host: Authority = host.to_str().ok()?.parse().ok()?;
        let host = host.host().trim_end_matches('.').to_ascii_lowercase();
        let is_same = |name: &String| *name == host || (name.starts_with('.') && host.ends_with(name));
        let address = host.trim_matches(['[', ']']);
        Some(address.parse::<IpAddr>().is_ok() || !host.contains(['.', ':']) || self.0.iter().any(is_same))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESOLV_CONF: &str = "nameserver 10.96.0.10\nsearch porch-system.svc.k8s.example svc.k8s.example k8s.example corp.example\n";

    fn assert(hosts: &Hosts, accepted: bool, names: &[&str]) {
        for name in names {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, name.parse().unwrap());
            assert_eq!(hosts.accept(&headers), accepted, "{name}");
        }
    }

    #[test]
    fn names_that_nobody_outside_can_own_are_accepted() {
        let hosts = Hosts::new(&["Status.Example.com".to_owned()], None, RESOLV_CONF);
        assert!(hosts.accept(&HeaderMap::new()), "no browser");
        let own = [
            "127.0.0.1",
            "10.0.0.7:9464",
            "[::1]",
            "[fd00::7]:9464",
            "localhost",
            "LOCALHOST:80",
            "router",
            "function-runner.porch-system:9464",
            "function-router.other.svc",
            "a.b.svc:9464",
            "a.b.svc.cluster.local",
            "a.b.svc.k8s.example.",
            "status.example.com:443",
            "STATUS.example.com",
        ];
        assert(&hosts, true, &own);
        let foreign = [
            "evil.example",
            "evil.example:9464",
            "porch-system.evil.example",
            "evil.porch-system.example",
            "",
            "function-runner.other",
            "a.b.svc.evil.example",
            "svc.evil",
            "x.k8s.example",
            "x.corp.example",
            "x.status.example.com",
            "127.0.0.1.evil.example",
            "[evil.example]",
            "evil example",
        ];
        assert(&hosts, false, &foreign);
    }

    #[test]
    fn the_namespace_is_that_of_the_pod() {
        let given = Hosts::new(&[], Some("own".to_owned()), RESOLV_CONF);
        assert(&given, true, &["a.own", "a.b.svc.k8s.example"]);
        assert(&given, true, &["pod-0.a.own", "a.porch-system"]);
        assert(&given, false, &["a.other"]);
        let outside = Hosts::new(&[], None, "search corp.example\n");
        assert(&outside, false, &["a.b", "a.corp.example"]);
        assert(&outside, true, &["a", "a.b.svc"]);
    }
}

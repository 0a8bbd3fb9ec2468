//! Chooses the proxy for a kubeconfig's API server. kube reads `HTTPS_PROXY` too, but looks in
//! `NO_PROXY` for the proxy's host instead of the API server's (kube-client 5,
//! `ConfigLoader::proxy_url`). Most users with a proxy name the API server in `NO_PROXY`, and kube
//! would still use the proxy.

use std::env;
use std::net::IpAddr;

use http::Uri;
use hyper_util::client::proxy::matcher::Matcher;
use kube::Config;

const PROXY: [&str; 2] = ["HTTPS_PROXY", "https_proxy"];
const EXCLUDED: [&str; 2] = ["NO_PROXY", "no_proxy"];

/// Sets the proxy like kubectl, in a `config` that was read from a kubeconfig. The proxy is the
/// kubeconfig's `proxy-url`. Without one, it is `HTTPS_PROXY`, unless `NO_PROXY` excludes the API
/// server.
pub fn choose_proxy(config: &mut Config) {
    let variable = |name: &str| env::var(name).ok();
    // kube has put the variable's value into `proxy_url` if the kubeconfig names no proxy.
    let from_variable = first(PROXY, variable).and_then(|proxy| proxy.parse().ok());
    if config.proxy_url.is_none() || config.proxy_url == from_variable {
        config.proxy_url = of_environment(&config.cluster_url, variable);
    }
}

fn of_environment(cluster: &Uri, variable: impl Fn(&str) -> Option<String> + Copy) -> Option<Uri> {
    let mut proxy = first(PROXY, variable)?;
    if !proxy.contains("://") {
        proxy.insert_str(0, "http://");
    }
    let excluded = first(EXCLUDED, variable).unwrap_or_default();
    let port = cluster.port_u16().unwrap_or(443);
    let hosts: Vec<_> = excluded.split(',').filter_map(|entry| excluded_host(entry.trim(), port)).collect();
    if hosts.contains(&"*") {
        return None;
    }
    Matcher::builder().https(proxy.clone()).no(hosts.join(",")).build().intercept(cluster)?;
    proxy.parse().ok()
}

/// The host of an entry of `NO_PROXY`, which may have a port, as in Go. `None` if it has another port.
fn excluded_host(entry: &str, port: u16) -> Option<&str> {
    let is_address = entry.parse::<IpAddr>().is_ok() || entry.contains('/');
    let with_port = entry.rsplit_once(':').filter(|_| !is_address);
    let with_port = with_port.and_then(|(host, of)| Some((host, of.parse::<u16>().ok()?)));
    let (host, of) = with_port.unwrap_or((entry, port));
    (of == port).then(|| host.trim_start_matches('[').trim_end_matches(']'))
}

fn first(names: [&str; 2], variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    names.into_iter().find_map(|name| variable(name).filter(|value| !value.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(cluster: &'static str, variables: &[(&str, &str)]) -> Option<String> {
        let variable = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        of_environment(&Uri::from_static(cluster), variable).map(|proxy| proxy.to_string())
    }

    #[test]
    fn no_proxy_is_compared_with_the_api_servers_host() {
        let api = "https://api.example.com:6443/";
        let proxy = ("HTTPS_PROXY", "http://10.1.2.3:3128");
        let through = Some("http://10.1.2.3:3128/".to_owned());
        assert_eq!(chosen(api, &[]), None);
        assert_eq!(chosen(api, &[proxy]), through);
        assert_eq!(chosen(api, &[proxy, ("NO_PROXY", "10.0.0.0/8,.other.com")]), through);
        assert_eq!(chosen(api, &[proxy, ("NO_PROXY", ".example.com")]), None);
        assert_eq!(chosen(api, &[proxy, ("no_proxy", "*")]), None);
        assert_eq!(chosen("https://10.9.9.9:6443/", &[proxy, ("NO_PROXY", "10.0.0.0/8")]), None);
        for (excluded, expected) in [
            ("*", None),
            ("a.com, *", None),
            ("10.9.9.9:6443", None),
            ("10.9.9.9:443", through.clone()),
            ("10.9.9.8:6443,10.9.9.9", None),
            ("fd00::9", through.clone()),
        ] {
            assert_eq!(
                chosen("https://10.9.9.9:6443/", &[proxy, ("NO_PROXY", excluded)]),
                expected,
                "{excluded}"
            );
        }
        for excluded in ["[fd00::9]:6443", "fd00::9", "[fd00::9]", "fd00::/16", "*"] {
            assert_eq!(
                chosen("https://[fd00::9]:6443/", &[proxy, ("NO_PROXY", excluded)]),
                None,
                "{excluded}"
            );
        }
        assert_eq!(chosen(api, &[proxy, ("NO_PROXY", "api.example.com:6443")]), None);
        assert_eq!(chosen(api, &[proxy, ("NO_PROXY", "api.example.com:443")]), through);
        assert_eq!(chosen("https://10.9.9.9/", &[proxy, ("NO_PROXY", "10.9.9.9:443")]), None);
        assert_eq!(chosen(api, &[("HTTPS_PROXY", ""), ("https_proxy", "10.1.2.3:3128")]), through);
        assert_eq!(chosen("http://localhost:8001/", &[proxy]), None, "the address of `kubectl proxy`");
    }
}

//! Which proxy leads to a kubeconfig's API server. kube reads `HTTPS_PROXY` too, but then looks in
//! `NO_PROXY` for the proxy's own host (kube-client 5, `ConfigLoader::proxy_url`): who excepts the
//! API server, as most do who have a proxy, would be sent through it all the same.

use std::env;

use http::Uri;
use hyper_util::client::proxy::matcher::Matcher;
use kube::Config;

const PROXY: [&str; 2] = ["HTTPS_PROXY", "https_proxy"];
const EXCEPTED: [&str; 2] = ["NO_PROXY", "no_proxy"];

/// Has `config`, read from a kubeconfig, go the way that kubectl goes: through the kubeconfig's
/// `proxy-url`, else through `HTTPS_PROXY` unless `NO_PROXY` excepts the API server.
pub fn choose_proxy(config: &mut Config) {
    let variable = |name: &str| env::var(name).ok();
    let told = first(PROXY, variable).and_then(|proxy| proxy.parse().ok());
    if config.proxy_url.is_none() || config.proxy_url == told {
        config.proxy_url = of_environment(&config.cluster_url, variable);
    }
}

fn of_environment(cluster: &Uri, variable: impl Fn(&str) -> Option<String> + Copy) -> Option<Uri> {
    let mut proxy = first(PROXY, variable)?;
    if !proxy.contains("://") {
        proxy.insert_str(0, "http://");
    }
    let excepted = first(EXCEPTED, variable).unwrap_or_default();
    Matcher::builder().https(proxy.clone()).no(excepted).build().intercept(cluster)?;
    proxy.parse().ok()
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
    fn the_api_server_is_what_no_proxy_excepts_not_the_proxy() {
        let api = "https://api.example.com:6443/";
        let proxy = ("HTTPS_PROXY", "http://10.1.2.3:3128");
        let through = Some("http://10.1.2.3:3128/".to_owned());
        assert_eq!(chosen(api, &[]), None);
        assert_eq!(chosen(api, &[proxy]), through);
        assert_eq!(chosen(api, &[proxy, ("NO_PROXY", "10.0.0.0/8,.other.com")]), through);
        assert_eq!(chosen(api, &[proxy, ("NO_PROXY", ".example.com")]), None);
        assert_eq!(chosen(api, &[proxy, ("no_proxy", "*")]), None);
        assert_eq!(chosen("https://10.9.9.9:6443/", &[proxy, ("NO_PROXY", "10.0.0.0/8")]), None);
        assert_eq!(chosen(api, &[("HTTPS_PROXY", ""), ("https_proxy", "10.1.2.3:3128")]), through);
        assert_eq!(chosen("http://localhost:8001/", &[proxy]), None, "what kubectl proxy serves");
    }
}

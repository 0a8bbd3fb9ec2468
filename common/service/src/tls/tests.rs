//! Which flags belong together, and what is said of files that cannot be used. Handshakes are in tests/tests/router/tls.rs.

use std::path::PathBuf;

use super::*;

fn of(given: &[&str], mutual: bool) -> Result<Option<Files>, String> {
    let file = |name: &str| given.contains(&name).then(|| PathBuf::from(format!("/absent/{name}")));
    Files::of("--tls", file("cert"), file("key"), file("ca"), mutual).map_err(|error| error.to_string())
}

fn text(result: Result<(), TlsError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn flags_that_belong_together_are_asked_for() {
    assert!(of(&[], true).unwrap().is_none());
    assert!(of(&["cert", "key", "ca"], true).unwrap().is_some());
    assert!(of(&["cert", "key"], false).unwrap().is_some());
    let missing = [
        (&["cert"][..], true, "--tls-cert needs --tls-key as well"),
        (&["cert", "key"], true, "--tls-cert needs --tls-client-ca as well"),
        (&["key"], false, "--tls-key needs --tls-cert as well"),
        (&["ca"], false, "--tls-client-ca needs --tls-cert as well"),
        (&["cert", "ca"], true, "--tls-cert needs --tls-key as well"),
    ];
    for (given, mutual, text) in missing {
        assert_eq!(of(given, mutual).unwrap_err(), text, "{given:?}");
    }
}

#[test]
fn a_file_that_cannot_be_used_is_named_with_its_flag() {
    let files = of(&["cert", "key", "ca"], true).unwrap().unwrap();
    let absent = text(files.clone().connector(None, &Gauges::default(), &mut Tasks::new()).map(drop));
    assert_eq!(absent, "--tls-client-ca /absent/ca: No such file or directory (os error 2)");
    let content = |certificate: &str| Content {
        certificate: certificate.into(),
        key: "no key".into(),
        client_ca: Some("no certificate".into()),
    };
    let empty = text(files.client(&content("")).map(drop));
    assert!(empty.starts_with("--tls-cert /absent/cert: "), "{empty}");
    assert!(empty.ends_with("; a PEM file with certificates is expected"), "{empty}");
    let broken =
        text(files.server(&content("-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----")).map(drop));
    assert!(broken.starts_with("--tls-client-ca /absent/ca: "), "{broken}");
    let name = text(files.connector(Some("no name"), &Gauges::default(), &mut Tasks::new()).map(drop));
    assert_eq!(name, "--tls-server-name \"no name\" is neither a DNS name nor an IP address");
}

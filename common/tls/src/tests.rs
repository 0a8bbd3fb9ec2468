//! Tests of flags that need each other, and of the errors for files that cannot be used. Handshakes
//! are tested in tests/tests/processes/tls.rs.

use std::path::PathBuf;

use porch_fn_lifecycle::tasks::Tasks;

use super::*;

fn of(given: &[&str], mutual: bool) -> Result<Option<Files>, String> {
    let file = |name: &str| given.contains(&name).then(|| PathBuf::from(format!("/absent/{name}")));
    Files::of("--tls", [&file("cert"), &file("key"), &file("ca")], mutual).map_err(|error| error.to_string())
}

#[test]
fn a_missing_flag_is_named() {
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
fn an_unusable_file_is_named_with_its_flag() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let error = |name| {
        let files = Files::of("--tls", [&Some(path("cert")), &Some(path("key")), &Some(path("ca"))], true);
        let connector = files.unwrap().unwrap().connector(name, &Gauges::default(), &mut Tasks::new());
        connector.unwrap_err().to_string()
    };
    assert_eq!(
        error(Some("no name")),
        "--tls-server-name \"no name\" is neither a DNS name nor an IP address"
    );
    let of = |name: &str, reason: &str| {
        format!("--tls-{name}: {reason}").replace("PATH", &path("").to_string_lossy())
    };
    assert_eq!(error(None), of("client-ca PATHca", "No such file or directory (os error 2)"));
    for name in ["cert", "key", "ca"] {
        std::fs::write(path(name), "").unwrap();
    }
    let expected = "no items found; a PEM file with certificates is expected";
    assert_eq!(error(None), of("client-ca PATHca", expected));
    std::fs::write(path("ca"), "-----BEGIN CERTIFICATE-----\nYQ==\n-----END CERTIFICATE-----").unwrap();
    assert!(error(None).starts_with(&of("client-ca PATHca", "")), "{}", error(None));
}

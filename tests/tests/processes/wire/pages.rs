//! Defects that were found once, at the admin port: one test each.

use futures_util::future::join_all;
use porch_fn_tests::process::get;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::target::{IMAGE, Kind, Target};

/// N8.
#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_page_that_is_asked_too_often_says_to_retry() {
    let mut target = Target::start(Kind::Router).await;
    let admin = target.server().admin();
    let page = format!("/config?image={IMAGE}");
    let answers = join_all((0..200).map(|_| get(admin, &page))).await;
    let codes: Vec<_> =
        answers.iter().map(|answer| answer.0).filter(|code| ![200, 503].contains(code)).collect();
    assert!(codes.is_empty(), "{codes:?}");
}

/// N8: a browser that a stranger's name leads to the admin port must not read it.
#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn pages_answer_only_to_names_of_their_own() {
    for kind in [Kind::Router, Kind::Runner] {
        let mut target = Target::start(kind).await;
        let admin = target.server().admin();
        let status = async |path: &str, host: &str| {
            let mut stream = TcpStream::connect(admin).await.unwrap();
            let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            answer.split(' ').nth(1).unwrap().to_owned()
        };
        for host in
            ["127.0.0.1", &admin.to_string(), "localhost:9464", "function-runner", "a.porch-system.svc"]
        {
            assert_eq!(status("/metrics", host).await, "200", "{host}");
        }
        for path in ["/healthz", "/readyz"] {
            assert_eq!(status(path, "evil.example").await, "200");
        }
        for host in ["evil.example", "evil.example:9464", "127.0.0.1.evil.example", ""] {
            let status = status("/metrics", host).await;
            assert!(status.starts_with('4'), "{host:?}: {status}");
        }
    }
}

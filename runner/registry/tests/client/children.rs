//! What holds for a whole process: its environment, and all that it logs. Each test runs another
//! one in a process of its own.

use std::process::Stdio;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use porch_fn_registry::{Client, Options, Registry as _, RegistryError, Roots};
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::sync::mpsc;
use tracing_subscriber::fmt::format::FmtSpan;

use crate::server::{Reply, Server, fixture};
use crate::store::{OCI_MANIFEST, Store};
use crate::{ConfigFile, image, options};

const PASSWORD: &str = "pl4ntedPassw0rd";
const IDENTITY: &str = "pl4ntedIdentity";
const TOKEN: &str = "pl4ntedT0ken";
const SIGNATURE: &str = "pl4ntedSignature";

/// Runs this ignored test of ours with these variables, and returns all that it prints.
pub(crate) async fn run(test: &str, variables: &[(&str, String)]) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"] {
        command.env_remove(name).env_remove(name.to_lowercase());
    }
    let output = command
        .args([test, "--exact", "--ignored", "--nocapture"])
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    text
}

/// A proxy that leads all to one server; the first line of each connection.
async fn proxy(to: &Server) -> (String, mpsc::UnboundedReceiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (lines, seen) = mpsc::unbounded_channel();
    let to = to.address;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let lines = lines.clone();
            tokio::spawn(async move {
                let mut stream = BufReader::new(stream);
                let mut line = String::new();
                stream.read_line(&mut line).await.unwrap();
                let is_tunnel = line.starts_with("CONNECT ");
                lines.send(line.trim_end().to_owned()).unwrap();
                let mut header = String::new();
                while is_tunnel && header != "\r\n" {
                    header.clear();
                    stream.read_line(&mut header).await.unwrap();
                }
                let mut server = TcpStream::connect(to).await.unwrap();
                if is_tunnel {
                    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
                } else {
                    // One that is no tunnel hands on the request; the server takes whole URLs as
                    // well.
                    server.write_all(line.as_bytes()).await.unwrap();
                }
                let _ = copy_bidirectional(&mut stream, &mut server).await;
            });
        }
    });
    (format!("http://{address}"), seen)
}

fn all(lines: &mut mpsc::UnboundedReceiver<String>) -> Vec<String> {
    std::iter::from_fn(|| lines.try_recv().ok()).collect()
}

#[tokio::test]
async fn proxies_are_those_of_the_environment() {
    let mut store = Store::default();
    store.image("fn", "v1", OCI_MANIFEST);
    let plain = {
        let store = store.clone();
        Server::start(move |seen| store.answer(seen)).await
    };
    let server = Server::start_tls("server.crt", "server.key", move |seen| store.answer(seen)).await;
    let (https, mut https_lines) = proxy(&server).await;
    let (http, mut http_lines) = proxy(&plain).await;
    let child = async |registry: String, expected: &str, variables: &[(&str, &str)]| {
        let mut all = vec![("TEST_REGISTRY", registry), ("TEST_EXPECTED", expected.to_owned())];
        all.extend(variables.iter().map(|(name, value)| (*name, (*value).to_owned())));
        run("children::asks_by_the_environment", &all).await;
    };

    for name in ["HTTPS_PROXY", "https_proxy"] {
        child("registry.test".into(), "found", &[(name, &https)]).await;
        assert_eq!(all(&mut https_lines), ["CONNECT registry.test:443 HTTP/1.1"]);
    }
    for name in ["HTTP_PROXY", "http_proxy"] {
        child("insecure.test".into(), "found", &[(name, &http)]).await;
        let lines = all(&mut http_lines);
        assert!(lines[0].starts_with("GET http://insecure.test/v2/fn/manifests/v1 "), "{lines:?}");
    }
    for name in ["NO_PROXY", "no_proxy"] {
        let local = format!("localhost:{}", server.address.port());
        child(local, "found", &[("HTTPS_PROXY", &https), (name, "localhost")]).await;
        child("registry.test".into(), "unreachable", &[("HTTPS_PROXY", &https), (name, ".test")]).await;
        assert_eq!(all(&mut https_lines), [""; 0]);
    }
}

#[tokio::test]
#[ignore = "run by other tests in a process of its own"]
async fn asks_by_the_environment() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::copy(fixture("ca.crt"), directory.path().join("ca.crt")).unwrap();
    let client = Client::new(Options {
        insecure: vec!["insecure.test".into(), "127.0.0.1:80".into()],
        roots: Roots::with_private(directory.path().to_owned()),
        ..options()
    });
    let registry = std::env::var("TEST_REGISTRY").unwrap();
    let found = client.metadata(&image(&registry, "fn:v1")).await;
    match std::env::var("TEST_EXPECTED").unwrap().as_str() {
        "found" => assert_eq!(found.unwrap().command[1], "v1"),
        "unreachable" => assert_eq!(found, Err(RegistryError::Unreachable)),
        text => assert!(found.as_ref().is_err_and(|error| error.to_string().contains(text)), "{found:?}"),
    }
}

#[tokio::test]
async fn no_log_at_any_level_has_a_secret() {
    let text = run("children::logs_everything", &[]).await;
    let encoded = BASE64_STANDARD.encode(format!("me:{PASSWORD}"));
    for secret in [PASSWORD, IDENTITY, TOKEN, SIGNATURE, &encoded, "pl4nted"] {
        let line = text.lines().find(|line| line.contains(secret));
        assert_eq!(line, None, "{secret}");
    }
    // It was all there to see.
    for sign in
        ["TRACE hyper", "TRACE h2", "log: reqwest", "a registry was not reached", "credentials were not read"]
    {
        assert!(text.contains(sign), "nothing of {sign:?} in {} bytes", text.len());
    }
}

/// What goes to `log` instead of `tracing`.
struct Printed;

impl log::Log for Printed {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        println!("log: {} {}", record.target(), record.args());
    }

    fn flush(&self) {}
}

#[tokio::test]
#[ignore = "run by no_log_at_any_level_has_a_secret in a process of its own"]
async fn logs_everything() {
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_span_events(FmtSpan::FULL)
        .with_ansi(false)
        .with_writer(std::io::stdout)
        .init();
    log::set_logger(&Printed).unwrap();
    log::set_max_level(log::LevelFilter::Trace);

    let directory = tempfile::tempdir().unwrap();
    std::fs::copy(fixture("ca.crt"), directory.path().join("ca.crt")).unwrap();
    let roots = Roots::with_private(directory.path().to_owned());
    let mut store = Store::default();
    store.image("fn", "v1", OCI_MANIFEST);
    let storage = {
        let store = store.clone();
        Server::start(move |seen| {
            let path = seen.path.split('?').next().unwrap().to_owned();
            store.answer(&crate::server::Seen { path, ..seen.clone() })
        })
        .await
    };
    let tokens = Server::start(|_| Reply::json(&json!({"token": TOKEN}))).await;
    let realm = format!("Bearer realm=\"http://{}/token\"", tokens.address);
    let place = format!("http://{}", storage.address);
    let of_basic = format!("Basic {}", BASE64_STANDARD.encode(format!("me:{PASSWORD}")));
    let answer = move |seen: &crate::server::Seen, wanted: &str, challenge: &str| {
        let reply = store.guarded(seen, wanted, challenge);
        if reply.status == 200 && seen.path.contains("/blobs/") {
            return Reply::new(307, "").with("location", format!("{place}{}?sig={SIGNATURE}", seen.path));
        }
        reply
    };
    let answer_tls = answer.clone();
    let (basic_tls, realm_tls) = (of_basic.clone(), realm.clone());
    // Plain and over TLS with HTTP/2; by Basic and by tokens.
    let servers = [
        Server::start(move |seen| answer(seen, &format!("Bearer {TOKEN}"), &realm)).await,
        Server::start_tls("server.crt", "server.key", {
            let answer = answer_tls.clone();
            move |seen| answer(seen, &basic_tls, "Basic")
        })
        .await,
        Server::start_tls("server.crt", "server.key", move |seen| {
            answer_tls(seen, &format!("Bearer {TOKEN}"), &realm_tls)
        })
        .await,
    ];
    for entry in [json!({"username": "me", "password": PASSWORD}), json!({"identitytoken": IDENTITY})] {
        let auths: serde_json::Map<_, _> =
            servers.iter().map(|server| (server.registry(), entry.clone())).collect();
        let file = ConfigFile::new(&json!(auths));
        let insecure = vec![servers[0].registry(), tokens.registry(), storage.registry()];
        let credentials = file.private();
        let client = Client::new(Options {
            insecure,
            roots: roots.clone(),
            credentials: credentials.clone(),
            ..options()
        });
        for (at, server) in servers.iter().enumerate() {
            let found = client.metadata(&image(&server.registry(), "fn:v1")).await;
            // With an identity token there is nothing to show where Basic is wanted.
            let expected = at != 1 || entry.get("password").is_some();
            assert_eq!(found.is_ok(), expected, "{at} {found:?}");
            println!("{client:?} {:?}", client.tags(&image(&server.registry(), "fn:v1")).await);
        }
        // Failures have texts as well: a broken file, and a redirect that is refused.
        file.write(&format!("{{\"auths\": {{\"x\": {{\"auth\": \"{PASSWORD}\" \"{IDENTITY}\"}}}}}}"));
        credentials.reload().await;
        println!("{:?}", credentials.last_error());
        let away = Server::start_tls("server.crt", "server.key", |_| {
            let place = format!("http://me:{PASSWORD}@127.0.0.1:1/x?sig={SIGNATURE}");
            Reply::new(307, "").with("location", place)
        })
        .await;
        let found = client.metadata(&image(&away.registry(), "fn:v1")).await;
        assert_eq!(found, Err(RegistryError::Unreachable));
    }
    // An error may name the URL that it is about, here with a signature.
    for place in ["http://127.0.0.1:1/x", "ftp://me:pl4nted@r.test/x", "http://[::pl4nted"] {
        let place = format!("{place}?sig={SIGNATURE}");
        let gone = Server::start(move |_| Reply::new(307, "").with("location", place.clone())).await;
        let found = crate::client().metadata(&image(&gone.registry(), "fn:v1")).await;
        println!("{found:?}");
        assert!(found.is_err());
    }
    assert!(storage.seen().iter().all(|seen| seen.path.contains(SIGNATURE)) && !storage.seen().is_empty());
}

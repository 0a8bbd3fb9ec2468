//! Properties of a whole process: its environment and its log. Each test starts a new process that
//! runs one other test.

use std::process::Stdio;

use porch_fn_registry::{Client, Options, Registry as _, roots};
use serde_json::json;
use tokio::process::Command;
use tracing_subscriber::fmt::format::FmtSpan;

use crate::server::{Reply, Seen, Server, basic};
use crate::store::Store;
use crate::{TempDir, client, image, options};

const PASSWORD: &str = "pl4ntedPassw0rd";
const IDENTITY: &str = "pl4ntedIdentity";
const TOKEN: &str = "pl4ntedT0ken";
const SIGNATURE: &str = "pl4ntedSignature";

/// Runs this ignored test with these variables, and returns its output.
pub(crate) async fn run(test: &str, variables: &[(&str, String)]) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"] {
        command.env_remove(name).env_remove(name.to_lowercase());
    }
    command.args([test, "--exact", "--ignored", "--nocapture"]).stdin(Stdio::null()).kill_on_drop(true);
    let output = command.envs(variables.iter().map(|(name, value)| (name, value))).output().await.unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    text
}

#[tokio::test]
async fn no_log_at_any_level_has_a_secret() {
    let text = run("children::logs_everything", &[]).await;
    let encoded = basic("me", PASSWORD).replace("Basic ", "");
    for secret in ["pl4nted", &encoded] {
        assert_eq!(text.lines().find(|line| line.contains(secret)), None, "{secret}");
    }
    // Without these records, the check above would prove nothing.
    for sign in
        ["TRACE hyper", "TRACE h2", "log: reqwest", "a registry was not reached", "credentials were not read"]
    {
        assert!(text.contains(sign), "nothing of {sign:?} in {} bytes", text.len());
    }
}

/// Prints the records of the `log` crate.
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

    let ca = TempDir::ca("ca.crt");
    let store = Store::of_images();
    let storage = {
        let store = store.clone();
        Server::start(move |seen| {
            let path = seen.path.split('?').next().unwrap().to_owned();
            store.answer(&Seen { path, ..seen.clone() })
        })
        .await
    };
    let tokens = Server::start(|_| Reply::json(&json!({"token": TOKEN}))).await;
    let (place, realm) = (storage.url(""), format!("Bearer realm=\"{}\"", tokens.url("/token")));
    let guarded = |wanted: String, challenge: String| {
        let (store, place) = (store.clone(), place.clone());
        move |seen: &Seen| {
            let reply = store.guarded(seen, &wanted, &challenge);
            let is_blob = reply.status == 200 && seen.path.contains("/blobs/");
            if is_blob { Reply::redirect(format!("{place}{}?sig={SIGNATURE}", seen.path)) } else { reply }
        }
    };
    let by_token = || guarded(format!("Bearer {TOKEN}"), realm.clone());
    let away = format!("http://me:{PASSWORD}@127.0.0.1:1/x?sig={SIGNATURE}");
    // In this order: plain HTTP with tokens, TLS (HTTP/2) with tokens, TLS with Basic, and a
    // redirect that the client rejects.
    let servers = [
        Server::start(by_token()).await,
        Server::start_tls("server.crt", "server.key", by_token()).await,
        Server::start_tls("server.crt", "server.key", guarded(basic("me", PASSWORD), "Basic".into())).await,
        Server::start_tls("server.crt", "server.key", move |_| Reply::redirect(away.clone())).await,
    ];
    let insecure: Vec<_> = [&servers[0], &tokens, &storage].map(|server| server.address.to_string()).into();
    for (entry, found) in [
        (json!({"username": "me", "password": PASSWORD}), [true, true, true, false]),
        // An identity token cannot answer a Basic challenge.
        (json!({"identitytoken": IDENTITY}), [true, true, false, false]),
    ] {
        for (server, found) in servers.iter().zip(found) {
            let file = TempDir::config(server, &entry);
            let credentials = file.credentials();
            let client = Client::new(Options {
                roots: roots(Some(ca.path().to_owned()), insecure.clone()).unwrap(),
                credentials: porch_fn_registry::Credentials::File(credentials.clone()),
                ..options()
            });
            let answer = client.metadata(&image(server, "a:v1")).await;
            assert_eq!(answer.is_ok(), found, "{answer:?}");
            println!("{client:?} {answer:?} {:?}", client.tags(&image(server, "a:v1")).await);
            file.write(&format!("{{\"auths\": {{\"x\": {{\"auth\": \"{PASSWORD}\" \"{IDENTITY}\"}}}}}}"));
            credentials.reload().await;
            println!("{:?}", credentials.last_error());
        }
    }
    // An error of reqwest may contain the URL, here with a signature.
    for place in ["http://127.0.0.1:1/x", "ftp://me:pl4nted@r.test/x", "http://[::pl4nted"] {
        let place = format!("{place}?sig={SIGNATURE}");
        let gone = Server::start(move |_| Reply::redirect(place.clone())).await;
        println!("{:?}", client().metadata(&image(&gone, "a:v1")).await.unwrap_err());
    }
    assert!(storage.seen().iter().all(|seen| seen.path.contains(SIGNATURE)) && !storage.seen().is_empty());
}

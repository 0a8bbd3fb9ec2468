//! Mutual TLS between router and runners, and TLS with callers: which peers are accepted, how
//! refused peers are logged, and certificates that are renewed under load.

use std::ffi::OsString;
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use porch_fn_tests::client::Client;
use porch_fn_tests::load::Load;
use porch_fn_tests::process::{Sandbox, Server, binary, eventually, figure, flag, metric, runners_flag};
use porch_fn_tests::registry::Authority;
use tonic::Code;

use super::INPUT;

const IMAGE: &str = "example.com/functions/echo:v1";
/// One day in seconds.
const DAY: u64 = 24 * 60 * 60;
/// The DNS name in the runners' certificates: the name of the runners' Service.
const NAME: &str = "runners.test.svc";

struct Setup {
    sandbox: Sandbox,
    runner: Vec<OsString>,
    authority: Authority,
}

impl Setup {
    /// Creates a CA and its certificates `runner` and `router`.
    async fn start() -> Self {
        let sandbox = Sandbox::new();
        let runner = sandbox.executables(&[(IMAGE, "exec cat")]);
        let authority = Authority::create(&sandbox, "authority").await;
        authority.issue(&sandbox, "runner", &format!("DNS:{NAME}"), 2).await;
        authority.issue(&sandbox, "router", "DNS:router.test.svc", 2).await;
        Self { sandbox, runner, authority }
    }

    /// TLS flags with this prefix, for the certificate `name`.
    fn files(&self, prefix: &str, name: &str) -> [OsString; 3] {
        self.sandbox.tls_flags(prefix, name, "authority")
    }

    /// Starts a runner on `port` with more flags.
    async fn runner(&self, port: u16, more: impl IntoIterator<Item = OsString>) -> Server {
        let own = self.runner.iter().cloned().chain([flag("port", port.to_string())]);
        self.sandbox.runner(own.chain(more)).await
    }

    /// Starts a router for these runners.
    async fn router(&self, runners: &[&Server], more: impl IntoIterator<Item = OsString>) -> Server {
        let target = runners_flag(runners.iter().map(|runner| runner.address()));
        self.sandbox.server("porch-fn-router", std::iter::once(target.into()).chain(more)).await
    }
}

/// Asserts that a call reaches no runner, and that both logs contain the reason.
async fn assert_refused(router: &Server, runner: &Server, router_logs: &str, runner_logs: &str) {
    let answer = Client::new(router.address()).call(IMAGE, INPUT).await;
    assert_eq!(answer.code, Code::Unavailable, "{answer:?}");
    assert!(answer.message.contains("0 of 1 runners ready: 1 unreachable"), "{}", answer.message);
    router.wait_log(router_logs).await;
    runner.wait_log(runner_logs).await;
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn only_peers_with_a_valid_certificate_are_accepted() {
    let setup = Setup::start().await;
    let other = Authority::create(&setup.sandbox, "other").await;
    other.issue(&setup.sandbox, "stranger", &format!("DNS:{NAME}"), 2).await;
    setup.authority.issue(&setup.sandbox, "expired", &format!("DNS:{NAME}"), 0).await;

    let runner = setup.runner(0, setup.files("tls", "runner")).await;
    let own = setup.files("tls", "router");
    let good = setup.router(&[&runner], own.clone().into_iter().chain([flag("tls-server-name", NAME)])).await;
    good.wait_runners_healthy().await;
    assert_eq!(Client::new(good.address()).call(IMAGE, INPUT).await.output(), INPUT);

    // Routers with an invalid certificate.
    for (name, router_logs, runner_logs) in
        [("stranger", "UnknownCA", "UnknownIssuer"), ("expired", "CertificateExpired", "certificate expired")]
    {
        let flags = setup.files("tls", name).into_iter().chain([flag("tls-server-name", NAME)]);
        assert_refused(&setup.router(&[&runner], flags).await, &runner, router_logs, runner_logs).await;
    }
    // Clients without a certificate, with TLS and without TLS.
    let connect = runner.address().to_string();
    let ended = setup.sandbox.run("openssl", ["s_client", "-connect", &connect, "-alpn", "h2"], b"").await;
    let openssl = String::from_utf8_lossy(&ended.stderr).into_owned();
    runner.wait_log("peer sent no certificates").await;
    let plain = setup.router(&[&runner], []).await;
    assert_refused(&plain, &runner, "reason=\"unreachable\"", "the peer speaks plain text").await;

    // Runners with an invalid certificate.
    for (name, expected, router_logs) in [
        ("stranger", NAME, "UnknownIssuer"),
        ("expired", NAME, "certificate expired"),
        ("runner", "another.test.svc", "certificate not valid for name"),
    ] {
        let invalid = setup.runner(0, setup.files("tls", name)).await;
        let flags = own.clone().into_iter().chain([flag("tls-server-name", expected)]);
        assert_refused(&setup.router(&[&invalid], flags).await, &invalid, router_logs, "TLS failed").await;
    }
    // The router with the valid certificate still reaches its runner.
    assert_eq!(Client::new(good.address()).call(IMAGE, INPUT).await.output(), INPUT, "{openssl}");
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn certificates_and_their_authority_are_renewed_under_load() {
    const CALLERS: usize = 16;
    let setup = Setup::start().await;
    let sandbox = &setup.sandbox;
    let mut runners = Vec::new();
    for _ in 0..2 {
        runners.push(setup.runner(0, setup.files("tls", "runner")).await);
    }
    let flags = || setup.files("tls", "router").into_iter().chain([flag("tls-server-name", NAME)]);
    let router = setup.router(&runners.iter().collect::<Vec<_>>(), flags()).await;
    router.wait_runners_healthy().await;
    let load = Load::start(router.address(), CALLERS, &[IMAGE.to_owned()]);

    // The steps are those of production: both CAs are trusted, then the certificates change, then
    // only the new CA is trusted.
    let read = |file: &str| fs::read_to_string(sandbox.path(file)).unwrap();
    let old: Vec<_> = ["router", "runner"].map(|name| read(&format!("{name}.crt"))).into();
    let next = Authority::create(sandbox, "next").await;
    let (before, after) = (read("authority.crt"), read("next.crt"));
    let renewed = async |times: usize| {
        for server in runners.iter().chain([&router]) {
            eventually("the files are read again", async || {
                (server.log().matches("certificates were read again").count() == times).then_some(())
            })
            .await;
        }
    };
    sandbox.write("authority.crt", before + &after);
    renewed(1).await;
    // In a Kubernetes mount, a key and its certificate change at once. So issue all files first,
    // then rename both without a pause.
    for name in ["router", "runner"] {
        next.issue(sandbox, &format!("{name}-next"), &format!("DNS:{NAME}"), 2).await;
    }
    for name in ["router", "runner"] {
        for suffix in ["key", "crt"] {
            let [next, now] = [format!("{name}-next.{suffix}"), format!("{name}.{suffix}")];
            fs::rename(sandbox.path(&next), sandbox.path(&now)).unwrap();
        }
    }
    renewed(2).await;
    sandbox.write("authority.crt", after);
    renewed(3).await;
    let tls_metric =
        async |server: &Server, name: &str| metric(server.admin(), &format!("{name}{{flags=\"tls\"}}")).await;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let expiry =
        tls_metric(&router, "porch_fn_router_tls_certificate_expiry_timestamp_seconds").await.unwrap();
    assert!((now + DAY..=now + 2 * DAY).contains(&expiry), "{expiry}");
    assert_eq!(tls_metric(&runners[1], "porch_fn_runner_tls_files_valid").await, Some(1));
    assert_ne!(old, ["router", "runner"].map(|name| read(&format!("{name}.crt"))));

    // Existing connections stay open; new connections use the new files.
    let port = runners[0].address().port();
    assert!(runners[0].terminate().await.success());
    runners[0] = setup.runner(port, setup.files("tls", "runner")).await;
    eventually("the router has reached the runner", async || {
        let page = router.json("/shards").await;
        page["shards"].as_array()?.iter().all(|shard| shard["state"] != "unreachable").then_some(())
    })
    .await;
    let report = load.stop().await;
    figure(&format!("certificates and authority renewed under {CALLERS} callers: {report}"));
    report.assert_all_succeeded();

    // The old certificate does not match the new key: a router with these files refuses to start,
    // and the running router keeps the valid files.
    sandbox.write("router.crt", &old[0]);
    let mut late = sandbox.command(binary("porch-fn-router"));
    let refused = late.args(flags()).arg("--runners=static:///127.0.0.1:1").output().await.unwrap();
    assert_eq!(refused.status.code(), Some(64), "the old certificate does not fit the new key");
    eventually("the router reports that its files cannot be used", async || {
        (tls_metric(&router, "porch_fn_router_tls_files_valid").await == Some(0)).then_some(())
    })
    .await;
    let answer = Client::new(router.address()).call(IMAGE, INPUT).await;
    assert_eq!(answer.output(), INPUT, "the valid files stay in use");
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn callers_can_be_required_to_use_tls() {
    let setup = Setup::start().await;
    let runner = setup.runner(0, []).await;
    let router = setup.router(&[&runner], setup.files("listen-tls", "runner")).await;
    router.wait_runners_healthy().await;
    let alone = setup.runner(0, setup.files("listen-tls", "runner")).await;
    let files = ["router.crt", "router.key", "authority.crt"].map(|file| setup.sandbox.path(file));
    for server in [&router, &alone] {
        let client = Client::secured(server.address(), NAME, files.clone());
        assert_eq!(client.call(IMAGE, INPUT).await.output(), INPUT);
        let plain = Client::new(server.address()).try_call(IMAGE, INPUT, None).await;
        assert!(plain.is_err(), "{plain:?}");
        server.wait_log("the peer speaks plain text, but --listen-tls-cert requires TLS").await;
    }
}

//! Mutual TLS between router and runners, and TLS with callers: who gets in, what those who do not read of it, and that
//! certificates are renewed without anybody noticing.

use std::ffi::OsString;
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use porch_fn_lifecycle::tasks::Tasks;
use porch_fn_tests::client::Client;
use porch_fn_tests::load::Load;
use porch_fn_tests::process::{Sandbox, Server, eventually, figure, flag};
use porch_fn_tests::registry::Authority;
use porch_fn_tls::{Files, Gauges};
use rustix::process::Signal;
use tonic::Code;

const IMAGE: &str = "example.com/functions/echo:v1";
/// In seconds.
const DAY: i64 = 24 * 60 * 60;
const INPUT: &str = "kind: ResourceList\n";
/// What the certificates of runners are called: as their Service.
const NAME: &str = "runners.test.svc";

struct Stand {
    sandbox: Sandbox,
    authority: Authority,
}

impl Stand {
    /// Certificates `runner` and `router` of one authority.
    async fn start() -> Self {
        let sandbox = Sandbox::new();
        sandbox.script("functions/echo", "exec cat");
        sandbox.write("exec.yaml", format!("functions:\n- function: echo\n  images: ['{IMAGE}']\n"));
        let authority = Authority::create(&sandbox, "authority").await;
        authority.issue(&sandbox, "runner", &format!("DNS:{NAME}"), 2).await;
        authority.issue(&sandbox, "router", "DNS:router.test.svc", 2).await;
        Self { sandbox, authority }
    }

    /// The flags for TLS that begin with `flags`, with the certificate `name` and what `authority` has signed.
    fn files(&self, flags: &str, name: &str, authority: &str) -> [OsString; 3] {
        let path = |file: String| self.sandbox.path(&file);
        [
            flag(&format!("{flags}-cert"), path(format!("{name}.crt"))),
            flag(&format!("{flags}-key"), path(format!("{name}.key"))),
            flag(&format!("{flags}-client-ca"), path(format!("{authority}.crt"))),
        ]
    }

    /// A runner at `port` with more flags.
    async fn runner(&self, port: u16, more: impl IntoIterator<Item = OsString>) -> Server {
        let own = [
            "--address=127.0.0.1".into(),
            flag("port", port.to_string()),
            "--disable-runtimes=pod".into(),
            flag("config", self.sandbox.path("exec.yaml")),
            flag("functions", self.sandbox.path("functions")),
        ];
        self.sandbox.server("porch-fn-runner", own.into_iter().chain(more)).await
    }

    /// A router of these runners.
    async fn router(&self, runners: &[&Server], more: impl IntoIterator<Item = OsString>) -> Server {
        let addresses: Vec<_> = runners.iter().map(|runner| runner.address().to_string()).collect();
        let own =
            ["--address=127.0.0.1".into(), flag("runners", format!("static:///{}", addresses.join(",")))];
        self.sandbox.server("porch-fn-router", own.into_iter().chain(more)).await
    }
}

fn named(name: &str) -> OsString {
    flag("tls-server-name", name)
}

/// Asserts that a call gets to no runner, and what the two logs say of it.
async fn is_refused(router: &Server, runner: &Server, router_says: &str, runner_says: &str) {
    let answer = Client::new(router.address()).call(IMAGE, INPUT).await;
    assert_eq!(answer.code, Code::Unavailable, "{answer:?}");
    assert!(answer.message.contains("0 of 1 runners ready: 1 unreachable"), "{}", answer.message);
    for (server, says) in [(router, router_says), (runner, runner_says)] {
        eventually(says, async || server.log().contains(says).then_some(())).await;
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn only_those_with_a_good_certificate_get_in() {
    let stand = Stand::start().await;
    let other = Authority::create(&stand.sandbox, "other").await;
    other.issue(&stand.sandbox, "stranger", &format!("DNS:{NAME}"), 2).await;
    stand.authority.issue(&stand.sandbox, "expired", &format!("DNS:{NAME}"), 0).await;

    let runner = stand.runner(0, stand.files("tls", "runner", "authority")).await;
    let own = stand.files("tls", "router", "authority");
    let good = stand.router(&[&runner], own.clone().into_iter().chain([named(NAME)])).await;
    good.until_well().await;
    assert_eq!(Client::new(good.address()).call(IMAGE, INPUT).await.output(), INPUT);

    // Who has a certificate that is not good.
    for (name, router_says, runner_says) in
        [("stranger", "UnknownCA", "UnknownIssuer"), ("expired", "CertificateExpired", "certificate expired")]
    {
        let flags = stand.files("tls", name, "authority").into_iter().chain([named(NAME)]);
        is_refused(&stand.router(&[&runner], flags).await, &runner, router_says, runner_says).await;
    }
    // Who has none, with TLS and without.
    let connect = runner.address().to_string();
    let ended = stand.sandbox.run("openssl", ["s_client", "-connect", &connect, "-alpn", "h2"], b"").await;
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    eventually("no certificate", async || runner.log().contains("peer sent no certificates").then_some(()))
        .await;
    let plain = stand.router(&[&runner], []).await;
    is_refused(&plain, &runner, "reason=\"unreachable\"", "the peer speaks plain text").await;

    // A runner that is not one.
    for (name, server_name, router_says) in [
        ("stranger", NAME, "UnknownIssuer"),
        ("expired", NAME, "certificate expired"),
        ("runner", "another.test.svc", "certificate not valid for name"),
    ] {
        let false_one = stand.runner(0, stand.files("tls", name, "authority")).await;
        let flags = own.clone().into_iter().chain([named(server_name)]);
        is_refused(&stand.router(&[&false_one], flags).await, &false_one, router_says, "TLS failed").await;
    }
    // The good one was not disturbed.
    assert_eq!(Client::new(good.address()).call(IMAGE, INPUT).await.output(), INPUT, "{said}");
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn certificates_and_their_authority_are_renewed_under_load() {
    const CALLERS: usize = 16;
    let stand = Stand::start().await;
    let sandbox = &stand.sandbox;
    let mut runners = Vec::new();
    for _ in 0..2 {
        runners.push(stand.runner(0, stand.files("tls", "runner", "authority")).await);
    }
    let flags = || stand.files("tls", "router", "authority").into_iter().chain([named(NAME)]);
    let router = stand.router(&runners.iter().collect::<Vec<_>>(), flags()).await;
    router.until_well().await;
    let load = Load::start(router.address(), CALLERS, &[IMAGE.to_owned()]);

    // As it is done in the field: both authorities are trusted, then the certificates change, then one is trusted.
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
    // The pair changes at once, as a mount does.
    for name in ["router", "runner"] {
        next.issue(sandbox, &format!("{name}-next"), &format!("DNS:{NAME}"), 2).await;
    }
    for name in ["router", "runner"] {
        for suffix in ["key", "crt"] {
            fs::rename(
                sandbox.path(&format!("{name}-next.{suffix}")),
                sandbox.path(&format!("{name}.{suffix}")),
            )
            .unwrap();
        }
    }
    renewed(2).await;
    sandbox.write("authority.crt", after);
    renewed(3).await;
    let shown = async |server: &Server, name: &str| -> Option<i64> {
        let (_, page) = server.page("/metrics").await;
        page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix("{flags=\"tls\"} ")?.parse().ok())
    };
    let now = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()).unwrap();
    let expiry = shown(&router, "porch_fn_router_tls_certificate_expiry_timestamp_seconds").await.unwrap();
    assert!((now + DAY..=now + 2 * DAY).contains(&expiry), "{expiry}");
    assert_eq!(shown(&runners[1], "porch_fn_runner_tls_files_valid").await, Some(1));
    assert_ne!(old, ["router", "runner"].map(|name| read(&format!("{name}.crt"))));

    // Connections that were there stay; those that are made now use what is there now.
    let port = runners[0].address().port();
    assert!(runners[0].terminate().await.success());
    runners[0] = stand.runner(port, stand.files("tls", "runner", "authority")).await;
    eventually("the router is back with it", async || {
        let page = router.json("/shards").await;
        page["shards"].as_array()?.iter().all(|shard| shard["state"] != "unreachable").then_some(())
    })
    .await;
    let report = load.stop().await;
    figure(&format!("certificates and authority renewed under {CALLERS} callers: {report}"));
    report.all_succeeded();

    // What was good before is not any more.
    sandbox.write("router.crt", &old[0]);
    let mut late = sandbox.command(porch_fn_tests::process::binary("porch-fn-router"));
    let refused = late.args(flags()).arg("--runners=static:///127.0.0.1:1").output().await.unwrap();
    assert_eq!(refused.status.code(), Some(64), "the old certificate does not fit the new key");
    eventually("the router says that its files cannot be used", async || {
        (shown(&router, "porch_fn_router_tls_files_valid").await == Some(0)).then_some(())
    })
    .await;
    assert_eq!(
        Client::new(router.address()).call(IMAGE, INPUT).await.output(),
        INPUT,
        "it has what was good"
    );
    runners[1].signal(Signal::TERM);
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn callers_can_be_asked_for_tls() {
    let stand = Stand::start().await;
    let runner = stand.runner(0, []).await;
    let router = stand.router(&[&runner], stand.files("listen-tls", "runner", "authority")).await;
    router.until_well().await;
    let alone = stand.runner(0, stand.files("listen-tls", "runner", "authority")).await;
    let path = |file: &str| Some(stand.sandbox.path(file));
    let files = Files::of("--tls", path("router.crt"), path("router.key"), path("authority.crt"), true);
    let connector =
        files.unwrap().unwrap().connector(Some(NAME), &Gauges::default(), &mut Tasks::new()).unwrap();
    for server in [&router, &alone] {
        let client = Client::secured(server.address(), connector.clone());
        assert_eq!(client.call(IMAGE, INPUT).await.output(), INPUT);
        let plain = Client::new(server.address()).try_call(IMAGE, INPUT, None).await;
        assert!(plain.is_err(), "{plain:?}");
        let told = "the peer speaks plain text, and --listen-tls-cert has callers speak TLS";
        eventually("the log says why", async || server.log().contains(told).then_some(())).await;
    }
}

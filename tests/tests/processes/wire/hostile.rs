//! Hostile servers: a runner behind a router, and a function pod behind a runner. A function pod's
//! code is its caller's, so it may send anything. It must end its own connection alone.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

use porch_fn_image::shard_key;
use porch_fn_ring::Ring;
use porch_fn_tests::client::Client;
use porch_fn_tests::fleet::PREFIX;
use porch_fn_tests::process::{Usage, figure};
use porch_fn_tests::raw::hpack::{encode, encode_repeated};
use porch_fn_tests::raw::{
    ACK, END_HEADERS, Field, HEADERS, Habits, INITIAL_WINDOW_SIZE, MAX_PAYLOAD, PING, PUSH_PROMISE, SETTINGS,
    Seen, Wire, data, data_in, fields, frame, go_away, headers, message, ping, prefixed, reset, settings,
    window_update,
};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::super::INPUT;
use super::beside::Background;
use super::floods::p99_limit;
use super::target::{Behind, Kind, Target};

/// Calls of the hostile server at once.
const CALLS: usize = 16;
/// Their deadline.
const DEADLINE: Duration = Duration::from_millis(400);
const TRIES: usize = 3;
const HOUR: Duration = Duration::from_hours(1);

/// What a hostile server does with a call, as bytes for its stream. They are repeated, until the
/// connection ends, as often as this says.
pub(super) type Attack = Arc<dyn Fn(u32, usize) -> Option<Vec<u8>> + Send + Sync>;

fn attacks() -> Vec<(&'static str, Attack)> {
    let mut attacks = Vec::<(&'static str, Attack)>::new();
    let mut add = |name, attack: Attack| attacks.push((name, attack));
    // Frames that nobody asked for, 20,000 of each.
    let mut flood = |name, frames: fn(u32, usize) -> Vec<u8>| {
        add(
            name,
            Arc::new(move |stream, turn| {
                (turn < 200).then(|| (0..100).flat_map(|number| frames(stream, number)).collect())
            }),
        );
    };
    flood("SETTINGS that change windows", |_, turn| {
        settings(&[(INITIAL_WINDOW_SIZE, 1000 + turn as u32 % 2)])
    });
    flood("SETTINGS without content", |_, _| frame(SETTINGS, 0, 0, &[]));
    flood("PING", |_, _| ping());
    flood("acknowledgements of PING", |_, _| frame(PING, ACK, 0, &[0; 8]));
    flood("WINDOW_UPDATE of the connection", |_, _| window_update(0, 1));
    flood("WINDOW_UPDATE of a stream", |stream, _| window_update(stream, 1));
    flood("unknown frames", |_, _| frame(99, 0, 0, b"x"));
    flood("empty DATA", |stream, _| data(stream, &[], false));
    flood("DATA of streams that nobody opened", |_, _| data(0x7fff_0001, b"x", false));
    flood("interim headers", |stream, _| headers(stream, &encode(&fields([(":status", "103")])), false));
    flood("headers again and again", |stream, _| headers(stream, &encode(&ok()), false));
    flood("RST_STREAM again and again", |stream, _| reset(stream, 8));
    flood("promises", |stream, _| frame(PUSH_PROMISE, END_HEADERS, stream, &[0, 0, 0, 2]));
    flood("GOAWAY again and again", |stream, _| go_away(stream, 0));
    let mut once = |name, bytes: fn(u32) -> Vec<u8>| {
        add(name, Arc::new(move |stream, turn| (turn == 0).then(|| bytes(stream))));
    };
    once("silence", |_| Vec::new());
    once("headers, and then silence", |stream| headers(stream, &encode(&ok()), false));
    once("half an answer, and then silence", |stream| {
        [headers(stream, &encode(&ok()), false), data(stream, &prefixed(0, 1000, b"half"), false)].concat()
    });
    once("a header list of 15 MB", |stream| {
        let large = [ok(), vec![("x".to_owned(), "x".repeat(15 << 20))]].concat();
        headers(stream, &encode(&large), true)
    });
    once("a header list of 15 MB in 460 KB", |stream| {
        headers(stream, &[encode(&ok()), encode_repeated("a", "", 460_000)].concat(), true)
    });
    once("trailers of 1 MB", |stream| {
        let large = vec![("x".to_owned(), "x".repeat(1 << 20))];
        [headers(stream, &encode(&ok()), false), headers(stream, &encode(&large), true)].concat()
    });
    once("status 431", |stream| status(stream, "431"));
    once("status 502", |stream| status(stream, "502"));
    once("status 503", |stream| status(stream, "503"));
    once("status 200 without a status of gRPC", |stream| status(stream, "200"));
    once("no status at all", |stream| headers(stream, &encode(&fields([("a", "b")])), true));
    once("GOAWAY", |stream| go_away(stream.saturating_sub(2), 0));
    once("REFUSED_STREAM", |stream| reset(stream, 7));
    once("an illegal frame", |stream| frame(HEADERS, END_HEADERS, stream, &[0x80]));
    once("an answer above the limit", |stream| {
        [headers(stream, &encode(&ok()), false), data(stream, &prefixed(0, 1 << 30, b"x"), false)].concat()
    });
    once("DATA beyond the window", |stream| {
        let data = data_in(stream, &vec![b'#'; 5 << 20], MAX_PAYLOAD, false);
        [headers(stream, &encode(&ok()), false), data].concat()
    });
    once("the window full of DATA before headers", |stream| {
        data_in(stream, &vec![b'#'; 3 << 20], MAX_PAYLOAD, false)
    });
    once("a message of 900 KB that never ends", |stream| {
        let message = prefixed(0, 1 << 20, &vec![b'#'; 900_000]);
        [headers(stream, &encode(&ok()), false), data(stream, &message, false)].concat()
    });
    once("3 MB after the message", |stream| {
        let messages = [message(b""), vec![0; 3 << 20]].concat();
        [headers(stream, &encode(&ok()), false), data(stream, &messages, false)].concat()
    });
    let trickle: Attack = Arc::new(|stream, turn| match turn {
        0 => Some(
            [headers(stream, &encode(&ok()), false), data(stream, &prefixed(0, 1 << 20, &[]), false)]
                .concat(),
        ),
        1..20_000 => Some(data(stream, b"#", false)),
        _ => None,
    });
    attacks.push(("an answer of single bytes", trickle));
    attacks
}

pub(super) fn ok() -> Vec<Field> {
    fields([(":status", "200"), ("content-type", "application/grpc")])
}

fn status(stream: u32, status: &str) -> Vec<u8> {
    headers(stream, &encode(&fields([(":status", status), ("content-type", "text/html")])), true)
}

/// A server that answers health checks, and attacks with each call.
pub(super) struct Hostile {
    pub(super) address: SocketAddr,
    _serving: JoinSet<()>,
}

impl Hostile {
    /// Starts the server in a thread of its own.
    pub(super) async fn start(background: &Background, attack: Attack) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap().into_std().unwrap();
        let address = listener.local_addr().unwrap();
        let mut serving = JoinSet::new();
        let accept = async move {
            let listener = TcpListener::from_std(listener).unwrap();
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let attack = Arc::clone(&attack);
                connections.spawn(async move {
                    let wire = Wire::accepted(stream, Habits::default());
                    wire.send(settings(&[])).await;
                    serve(&wire, &attack).await;
                });
            }
        };
        serving.spawn_on(accept, background.runtime().handle());
        Self { address, _serving: serving }
    }
}

/// Answers the requests of a connection.
async fn serve(wire: &Wire, attack: &Attack) {
    let mut done = BTreeSet::new();
    loop {
        let next = |seen: &Seen| {
            let mut whole = seen.streams.iter().filter(|(_, stream)| stream.has_ended);
            whole
                .find(|(number, _)| !done.contains(*number))
                .map(|(&number, stream)| (number, stream.clone()))
        };
        let Some((number, stream)) = wire.wait(HOUR, next).await else { return };
        done.insert(number);
        let path = stream.field(":path").unwrap_or_default();
        if path.starts_with("/grpc.health.v1.Health/") {
            let serving = data(number, &message(&[8, 1]), false);
            let head = headers(number, &encode(&ok()), false);
            let end = headers(number, &encode(&fields([("grpc-status", "0")])), true);
            let is_watch = path.ends_with("/Watch");
            wire.send([head, serving, if is_watch { Vec::new() } else { end }].concat()).await;
        } else if path.starts_with("/porch_fn.v1.Shard/") {
            let unknown = [ok(), fields([("grpc-status", "12")])].concat();
            wire.send(headers(number, &encode(&unknown), true)).await;
        } else {
            for bytes in (0..).map_while(|turn| attack(number, turn)) {
                if !wire.send(bytes).await {
                    return;
                }
            }
        }
    }
}

/// One attack: the hostile server's image is called, and an ordinary caller calls another one.
async fn run(kind: Kind, name: &str, attack: &Attack) -> Result<(), String> {
    let background = Background::new();
    let hostile = Hostile::start(&background, Arc::clone(attack)).await;
    let behind = Behind::start().await;
    // Names whose owner in the ring is the one or the other.
    let ring = Ring::new([hostile.address, behind.address].map(|address| address.to_string()));
    let image = |owner: SocketAddr| {
        let mut names = (0..).map(|number| format!("example.com/functions/f{number}:v1"));
        let is_owned = |name: &String| ring.owner(&shard_key(name, "", PREFIX)) == Some(&*owner.to_string());
        names.find(is_owned).unwrap()
    };
    let (bad, good) = (image(hostile.address), image(behind.address));
    let mut target = Target::before(kind, &[(&bad, hostile.address), (&good, behind.address)], behind).await;
    let mut slow = String::new();
    for _ in 0..TRIES {
        Usage::reset_peak(target.pid());
        let began = Instant::now();
        let client = Client::new(target.address);
        let calls = (0..CALLS).map(|_| client.try_call(&bad, INPUT, Some(DEADLINE)));
        let answers = futures_util::future::join_all(calls).await;
        if began.elapsed() > DEADLINE * 3 {
            return Err(format!("calls with a deadline took {:?}", began.elapsed()));
        }
        if let Some(Err(error)) = answers.iter().find(|answer| answer.is_err()) {
            return Err(format!("a call got no answer: {error}"));
        }
        let (met, peak) = target.since(began).await?;
        if kind == Kind::Router {
            let healthy = target.good_runner().to_string();
            for line in target.server().log().lines() {
                if line.contains(&healthy) && (line.contains("unavailable") || line.contains("ejected")) {
                    return Err(format!("the healthy runner beside it: {line}"));
                }
            }
        }
        let codes: BTreeSet<_> =
            answers.iter().flatten().map(|answer| format!("{:?}", answer.code)).collect();
        let row =
            format!("{name} | {:.0?} | {} | {codes:?}", met.p99, peak.saturating_sub(target.idle) / 1024);
        if met.p99 <= p99_limit() {
            figure(&format!("behind {kind:?} | {row}"));
            return Ok(());
        }
        slow = row;
    }
    Err(slow)
}

async fn all(kind: Kind) {
    let mut failures = Vec::new();
    for (name, attack) in attacks() {
        if let Err(error) = run(kind, name, &attack).await {
            failures.push(format!("{name}: {error}"));
        }
    }
    assert!(failures.is_empty(), "{} attacks harmed others:\n{}", failures.len(), failures.join("\n"));
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_hostile_runner_harms_itself_alone() {
    all(Kind::Router).await;
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_hostile_function_pod_harms_itself_alone() {
    all(Kind::Runner).await;
}

//! The watcher on a paused clock, with a resolver that answers by script.

use std::{collections::VecDeque, future::pending, io, sync::Mutex};

use tokio::{
    sync::watch::Receiver,
    time::{Instant, timeout},
};

use super::*;

/// What one lookup does.
#[derive(Clone)]
enum Step {
    Ends(Result<Lookup, LookupError>),
    Hangs,
}

/// Takes its steps in order; the last one repeats.
#[derive(Clone, Default)]
struct Script {
    steps: Arc<Mutex<VecDeque<Step>>>,
    asked: Arc<Mutex<Vec<Instant>>>,
}

impl Script {
    fn new(steps: impl IntoIterator<Item = Step>) -> Self {
        let script = Self::default();
        script.steps.lock().unwrap().extend(steps);
        script
    }

    /// The waits between lookups so far.
    fn waits(&self) -> Vec<Duration> {
        self.asked.lock().unwrap().windows(2).map(|pair| pair[1] - pair[0]).collect()
    }
}

impl Resolver for Script {
    async fn lookup(&self, host: &str) -> Result<Lookup, LookupError> {
        assert_eq!(host, "runners");
        self.asked.lock().unwrap().push(Instant::now());
        let step = {
            let mut steps = self.steps.lock().unwrap();
            if steps.len() > 1 { steps.pop_front().unwrap() } else { steps[0].clone() }
        };
        match step {
            Step::Ends(result) => result,
            Step::Hangs => pending().await,
        }
    }
}

fn lookup(addresses: &[&str], seconds: u64) -> Lookup {
    let addresses = addresses.iter().map(|address| address.parse::<IpAddr>().unwrap());
    Lookup::new(addresses.collect(), Duration::from_secs(seconds))
}

fn answer(addresses: &[&str], seconds: u64) -> Step {
    Step::Ends(Ok(lookup(addresses, seconds)))
}

fn failure() -> Step {
    Step::Ends(Err(LookupError::failed("runners", "SERVFAIL")))
}

fn target(text: &str) -> Target {
    Target::parse(text, 9445).unwrap()
}

fn source(script: &Script) -> Source<Script> {
    let name = HostPort::parse("runners", 9445).unwrap();
    Source { label: "dns:///runners:9445".to_owned(), means: Means::Dns(name, script.clone()) }
}

/// Watches `runners:9445` by `script`, for ever.
fn spawn(script: &Script) -> Receiver<Snapshot> {
    let (task, receiver) = watch(source(script));
    tokio::spawn(task);
    receiver
}

async fn changed(receiver: &mut Receiver<Snapshot>) -> Snapshot {
    timeout(Duration::from_hours(1), receiver.changed()).await.expect("no change").expect("ended");
    receiver.borrow_and_update().clone()
}

/// Lets the watcher run for a while; true if it sent something.
async fn within(receiver: &mut Receiver<Snapshot>, seconds: u64) -> bool {
    timeout(Duration::from_secs(seconds), receiver.changed()).await.is_ok()
}

#[tokio::test(start_paused = true)]
async fn sends_sorted_sets_without_duplicates() {
    let script = Script::new([answer(&["10.0.0.2", "fd00::1", "10.0.0.1", "10.0.0.2"], 5)]);
    let mut receiver = spawn(&script);
    assert_eq!(*receiver.borrow(), Snapshot::default());
    let snapshot = changed(&mut receiver).await;
    assert_eq!(*snapshot.endpoints, ["10.0.0.1:9445", "10.0.0.2:9445", "[fd00::1]:9445"]);
    assert_eq!((snapshot.generation, snapshot.last_error), (1, None));
}

#[tokio::test(start_paused = true)]
async fn asks_again_when_the_ttl_ends_within_bounds() {
    let script = Script::new([
        answer(&["10.0.0.1"], 0),
        answer(&["10.0.0.1"], 5),
        answer(&["10.0.0.1"], 30),
        answer(&["10.0.0.2"], 1),
        answer(&["10.0.0.2"], 1_000_000),
    ]);
    let mut receiver = spawn(&script);
    let start = Instant::now();
    changed(&mut receiver).await;
    assert_eq!(changed(&mut receiver).await.generation, 2);
    assert_eq!(start.elapsed(), Duration::from_secs(16), "the new set comes with its answer");
    within(&mut receiver, 2).await;
    let expected = [MIN_VALID_FOR, Duration::from_secs(5), MAX_VALID_FOR, Duration::from_secs(1)];
    assert_eq!(script.waits(), expected);
}

#[tokio::test(start_paused = true)]
async fn a_failed_lookup_keeps_the_last_set() {
    let script = Script::new([
        answer(&["10.0.0.1"], 1),
        failure(),
        failure(),
        answer(&["10.0.0.1"], 10),
        answer(&["10.0.0.2"], 10),
    ]);
    let mut receiver = spawn(&script);
    changed(&mut receiver).await;
    // After the first failure, and before any jitter lets the last one pass.
    let early = timeout(Duration::from_millis(1_200), receiver.changed()).await;
    assert!(early.is_err(), "a failure woke the receiver");
    {
        let snapshot = receiver.borrow();
        assert_eq!(*snapshot.endpoints, ["10.0.0.1:9445"]);
        assert_eq!(snapshot.generation, 1);
        let error = snapshot.last_error.clone().expect("an error");
        assert_eq!(&*error, "the lookup of \"runners\" failed (SERVFAIL); check the DNS server's own log");
    }
    assert!(!within(&mut receiver, 5).await, "the same set was sent again");
    assert_eq!(receiver.borrow().last_error, None, "the lookups succeed again");
    let snapshot = changed(&mut receiver).await;
    assert_eq!((snapshot.generation, &*snapshot.endpoints), (2, &["10.0.0.2:9445".to_owned()][..]));
}

#[tokio::test(start_paused = true)]
async fn an_empty_answer_is_an_answer_with_a_hint_if_the_name_does_not_exist() {
    let missing = Lookup { name_exists: false, ..lookup(&[], 1) };
    let script = Script::new([Step::Ends(Ok(missing)), answer(&["10.0.0.1"], 1), answer(&[], 1)]);
    let mut receiver = spawn(&script);
    assert!(!receiver.borrow().is_answered());
    let snapshot = changed(&mut receiver).await;
    assert!(snapshot.is_answered() && snapshot.endpoints.is_empty());
    let hint = snapshot.last_error.expect("a hint");
    assert_eq!(&*hint, "the name \"runners\" does not exist in DNS; correct the target");
    assert_eq!(changed(&mut receiver).await.last_error, None);
    assert!(changed(&mut receiver).await.endpoints.is_empty());
    assert!(!within(&mut receiver, 100).await, "the same empty set was sent again");
}

#[tokio::test(start_paused = true)]
async fn the_family_that_was_not_answered_keeps_its_addresses() {
    let only_v4 = Lookup { unanswered: Some(Family::V6), ..lookup(&["10.0.0.2"], 1) };
    let script =
        Script::new([answer(&["10.0.0.1", "fd00::1"], 1), Step::Ends(Ok(only_v4)), answer(&["10.0.0.2"], 1)]);
    let mut receiver = spawn(&script);
    changed(&mut receiver).await;
    assert_eq!(*changed(&mut receiver).await.endpoints, ["10.0.0.2:9445", "[fd00::1]:9445"]);
    assert_eq!(*changed(&mut receiver).await.endpoints, ["10.0.0.2:9445"]);
}

#[tokio::test(start_paused = true)]
async fn retries_spread_out_within_bounds_and_start_anew_after_a_success() {
    let mut steps = vec![failure(); 12];
    steps.extend([answer(&[], 3), failure(), answer(&[], 3)]);
    let script = Script::new(steps);
    let mut receiver = spawn(&script);
    changed(&mut receiver).await;
    assert!(!within(&mut receiver, 5).await);
    let waits = script.waits();
    for (attempt, wait) in waits[..12].iter().enumerate() {
        let mean = Duration::from_millis((500 << attempt).min(10_000));
        assert!(*wait >= mean / 2 && *wait <= mean * 3 / 2, "{attempt}: {waits:?}");
    }
    assert!(waits[13] <= Duration::from_millis(750), "after a success: {waits:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lookup_that_hangs_is_a_failure() {
    let script = Script::new([Step::Hangs, answer(&["10.0.0.1"], 1)]);
    let mut receiver = spawn(&script);
    let start = Instant::now();
    assert!(!within(&mut receiver, LOOKUP_TIMEOUT.as_secs()).await);
    assert!(!receiver.borrow().is_answered());
    changed(&mut receiver).await;
    assert!(start.elapsed() <= LOOKUP_TIMEOUT + Duration::from_millis(750), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn ends_when_nobody_listens() {
    let (task, receiver) = watch(source(&Script::new([Step::Hangs])));
    drop(receiver);
    ends(task).await;
}

async fn ends<T>(task: impl Future<Output = T>) {
    timeout(Duration::from_secs(1), task).await.expect("it did not end");
}

#[tokio::test(start_paused = true)]
async fn lists_and_addresses_are_known_from_the_start_and_never_asked_for() {
    for (text, expected) in [
        ("static:///b:2,a:1,b:2,localhost", &["a:1", "b:2", "localhost:9445"][..]),
        ("static:///[::1]:7", &["[::1]:7"]),
        ("127.0.0.1:7", &["127.0.0.1:7"]),
        ("dns:///[::1]", &["[::1]:9445"]),
    ] {
        let source = Source::of(target(text), None, "test").await.unwrap();
        let (task, mut receiver) = watch(source);
        assert!(receiver.borrow().is_answered());
        assert_eq!(*receiver.borrow().endpoints, *expected, "{text}");
        let task = tokio::spawn(task);
        assert!(!within(&mut receiver, 100).await);
        assert!(!task.is_finished());
        drop(receiver);
        ends(task).await;
    }
}

/// The log of one test.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_row_of_failures_is_logged_once() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let _guard = tracing::subscriber::set_default(subscriber);

    let missing = Lookup { name_exists: false, ..lookup(&[], 1) };
    let script = Script::new([
        answer(&["10.0.0.1"], 1),
        failure(),
        failure(),
        failure(),
        Step::Ends(Ok(missing.clone())),
        Step::Ends(Ok(missing)),
        answer(&["10.0.0.1"], 1),
    ]);
    let mut receiver = spawn(&script);
    for _ in 0..3 {
        changed(&mut receiver).await;
    }
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    for (text, times) in [
        ("discovery fails: keeping the last endpoints", 1),
        ("discovery works again", 1),
        ("no endpoints: the name \"runners\" does not exist in DNS", 1),
        ("endpoints changed", 3),
        ("dns:///runners:9445", 6),
        ("attempts=3", 1),
    ] {
        assert_eq!(log.matches(text).count(), times, "{text}\n{log}");
    }
}

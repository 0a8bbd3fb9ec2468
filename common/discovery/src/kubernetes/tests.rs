//! The watcher on a paused clock, in front of a fake API server.

mod fake;

use std::collections::BTreeSet;
use std::io;
use std::sync::Mutex;

use porch_fn_kubernetes::{BETWEEN_WATCHES, READ_TIMEOUT, WATCH_SECONDS};
use tokio::sync::watch;
use tokio::time::timeout;

use self::fake::{Down, ENDPOINTS, Fake, SLICES};
use super::*;
use crate::publish::Snapshot;

const RIGHTS: &str = "the API server forbids it: grant this process's account get, list and watch on \
                      endpointslices.discovery.k8s.io in namespace ns";

/// Follows the Service `runners` of namespace `ns`, for ever.
fn spawn(api: &Fake) -> watch::Receiver<Snapshot> {
    let (sender, receiver) = watch::channel(Snapshot::default());
    let publisher = Publisher::new("kubernetes:///ns/runners:9445".to_owned(), Arc::new(sender));
    let service = ServiceRef { namespace: "ns".to_owned(), name: "runners".to_owned(), port: 9445 };
    tokio::spawn(follow(service, Client::new(api.clone(), "default"), publisher));
    receiver
}

async fn changed(receiver: &mut watch::Receiver<Snapshot>) -> Vec<String> {
    timeout(Duration::from_hours(1), receiver.changed()).await.expect("no change").expect("ended");
    receiver.borrow_and_update().endpoints.to_vec()
}

/// Lets the watcher run for a while; true if it sent something.
async fn within(receiver: &mut watch::Receiver<Snapshot>, time: Duration) -> bool {
    timeout(time, receiver.changed()).await.is_ok()
}

/// Lets it do what is due.
async fn settle() {
    sleep(Duration::from_millis(2)).await;
}

fn last_error(receiver: &watch::Receiver<Snapshot>) -> Option<String> {
    receiver.borrow().last_error.as_deref().map(str::to_owned)
}

fn gaps(asked: &[Instant]) -> Vec<Duration> {
    asked.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

#[tokio::test(start_paused = true)]
async fn every_change_publishes_the_whole_set() {
    let api = Fake::default();
    api.slice("a", &["10.0.0.2", "10.0.0.1"]);
    let mut receiver = spawn(&api);
    assert_eq!(changed(&mut receiver).await, ["10.0.0.1:9445", "10.0.0.2:9445"]);
    settle().await;
    let start = Instant::now();
    api.slice("b", &["10.0.0.3", "10.0.0.1"]);
    assert_eq!(changed(&mut receiver).await, ["10.0.0.1:9445", "10.0.0.2:9445", "10.0.0.3:9445"]);
    api.slice("a", &["10.0.0.2"]);
    settle().await;
    assert!(!receiver.has_changed().unwrap(), "the other slice has it still");
    api.state().delete(SLICES, "b");
    assert_eq!(changed(&mut receiver).await, ["10.0.0.2:9445"]);
    assert!(start.elapsed() < Duration::from_millis(10), "{:?}", start.elapsed());
    assert_eq!(receiver.borrow().generation, 3);
    assert_eq!(last_error(&receiver), None);
    assert_eq!(api.asked("list endpointslices").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_a_watch_missed_is_found_by_the_next_list() {
    let api = Fake::default();
    api.slice("a", &["10.0.0.1"]);
    let mut receiver = spawn(&api);
    changed(&mut receiver).await;
    settle().await;
    for number in 2..6 {
        let _open = api.forget_watches();
        let address = format!("10.0.0.{number}");
        api.slice("a", &[&address]);
        // The watch that is silent is given up before that.
        api.state().watches_end = true;
        timeout(RESYNC, changed(&mut receiver)).await.expect("within that time");
        api.state().watches_end = false;
    }
}

#[tokio::test(start_paused = true)]
async fn all_is_listed_again_now_and_then() {
    let api = Fake::default();
    api.slice("a", &["10.0.0.1"]);
    let mut receiver = spawn(&api);
    changed(&mut receiver).await;
    // As the API server does.
    let renewing = api.clone();
    tokio::spawn(async move {
        loop {
            sleep(Duration::from_secs(u64::from(WATCH_SECONDS))).await;
            renewing.end_watches(false);
        }
    });
    assert!(!within(&mut receiver, Duration::from_hours(1)).await, "nothing changed");
    let gaps = gaps(&api.asked("list endpointslices"));
    assert!(gaps.iter().all(|gap| (RESYNC.mul_f64(0.8)..=RESYNC).contains(gap)), "{gaps:?}");
    assert!(gaps.len() >= 11 && gaps.iter().collect::<BTreeSet<_>>().len() > 5, "{gaps:?}");
    let watches = api.asked("watch endpointslices").len();
    assert!((60..=90).contains(&watches), "{watches}");
    assert_eq!(last_error(&receiver), None);
}

#[tokio::test(start_paused = true)]
async fn watches_that_end_at_once_are_no_flood() {
    let api = Fake::default();
    api.slice("a", &["10.0.0.1"]);
    api.state().watches_end = true;
    let mut receiver = spawn(&api);
    changed(&mut receiver).await;
    within(&mut receiver, Duration::from_secs(100)).await;
    assert!(api.asked("watch endpointslices").len() <= 101);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_goes_silent_is_given_up() {
    let api = Fake::default();
    api.slice("a", &["10.0.0.1"]);
    let mut receiver = spawn(&api);
    changed(&mut receiver).await;
    settle().await;
    let _open = api.forget_watches();
    api.slice("a", &["10.0.0.2"]);
    let start = Instant::now();
    assert_eq!(changed(&mut receiver).await, ["10.0.0.2:9445"]);
    assert!(start.elapsed() <= READ_TIMEOUT + Duration::from_secs(1), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_version_that_is_too_old_and_a_watch_that_breaks_are_listed_anew() {
    let api = Fake::default();
    api.slice("a", &["10.0.0.1"]);
    let mut receiver = spawn(&api);
    changed(&mut receiver).await;
    settle().await;
    api.end_watches(true);
    let start = Instant::now();
    settle().await;
    assert!(last_error(&receiver).is_some());
    api.slice("a", &["10.0.0.2"]);
    assert_eq!(changed(&mut receiver).await, ["10.0.0.2:9445"]);
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    sleep(2 * LIVED).await;
    assert_eq!(last_error(&receiver), None);

    // The second follows the first at once, and yet there is no flood.
    for number in 3..5 {
        api.expire_watches();
        let start = Instant::now();
        api.slice("a", &[&format!("10.0.0.{number}")]);
        assert_eq!(changed(&mut receiver).await, [format!("10.0.0.{number}:9445")]);
        assert!(start.elapsed() <= BETWEEN_WATCHES, "{:?}", start.elapsed());
        settle().await;
        assert_eq!(last_error(&receiver), None, "it is no failure");
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_keeps_the_last_set_and_is_logged_once() {
    let (log, _guard) = Log::new();
    let api = Fake::default();
    api.slice("a", &["10.0.0.1", "10.0.0.2"]);
    let mut receiver = spawn(&api);
    changed(&mut receiver).await;
    settle().await;
    for down in [Down::Refuses, Down::Hangs] {
        api.state().down = Some(down);
        api.end_watches(true);
        let before = api.asked("list endpointslices").len();
        assert!(!within(&mut receiver, Duration::from_mins(10)).await, "the set was not kept");
        assert_eq!(receiver.borrow().endpoints.len(), 2);
        let error = last_error(&receiver).unwrap();
        let expected = if down == Down::Hangs { "no list within 10s" } else { "connection refused" };
        assert!(error.contains(expected), "{error}");
        let lists = &api.asked("list endpointslices")[before..];
        assert!((25..=125).contains(&lists.len()), "{}", lists.len());
        api.state().down = None;
        assert!(!within(&mut receiver, Duration::from_secs(40)).await, "the same set was sent again");
        assert_eq!(last_error(&receiver), None);
    }
    for (text, times) in [
        ("discovery fails: keeping the last endpoints", 2),
        ("kept=2", 2),
        ("discovery works again", 2),
        ("endpoints changed", 1),
    ] {
        assert_eq!(log.count(text), times, "{text}\n{log:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_breaks_every_watch_is_logged_once_and_asked_ever_less() {
    let (log, _guard) = Log::new();
    let api = Fake::default();
    api.slice("a", &["10.0.0.1"]);
    let mut receiver = spawn(&api);
    changed(&mut receiver).await;
    let breaking = api.clone();
    tokio::spawn(async move {
        loop {
            sleep(LIVED / 2).await;
            breaking.end_watches(true);
        }
    });
    within(&mut receiver, Duration::from_mins(10)).await;
    assert_eq!(log.count("discovery fails"), 1, "{log:?}");
    assert_eq!(log.count("discovery works again"), 0, "{log:?}");
    assert!(api.asked("list endpointslices").len() < 100);
}

#[tokio::test(start_paused = true)]
async fn without_rights_to_slices_endpoints_do() {
    let (log, _guard) = Log::new();
    let api = Fake::default();
    api.slice("a", &["10.0.0.9"]);
    api.endpoints(&["10.0.0.1"]);
    api.state().forbidden.extend([("list", SLICES), ("watch", SLICES)]);
    let mut receiver = spawn(&api);
    assert_eq!(changed(&mut receiver).await, ["10.0.0.1:9445"]);
    assert_eq!(last_error(&receiver), None);
    settle().await;
    api.endpoints(&["10.0.0.1", "10.0.0.2"]);
    assert_eq!(changed(&mut receiver).await, ["10.0.0.1:9445", "10.0.0.2:9445"]);
    within(&mut receiver, Duration::from_mins(20)).await;
    let told = "EndpointSlices may not be seen, trying endpoints instead: grant this process's account get, list and watch on \
                endpointslices.discovery.k8s.io in namespace ns";
    assert_eq!(log.count(told), 1, "{log:?}");

    // The right is given.
    api.state().forbidden.clear();
    assert!(within(&mut receiver, RESYNC + READ_TIMEOUT).await);
    assert_eq!(*receiver.borrow_and_update().endpoints, ["10.0.0.9:9445"]);
}

#[tokio::test(start_paused = true)]
async fn without_any_right_it_says_which_and_goes_on_when_it_is_given() {
    let (log, _guard) = Log::new();
    let api = Fake::default();
    api.slice("a", &["10.0.0.1"]);
    api.state().forbidden.extend([("list", SLICES), ("list", ENDPOINTS)]);
    let mut receiver = spawn(&api);
    assert!(!within(&mut receiver, Duration::from_mins(5)).await);
    assert!(!receiver.borrow().is_answered());
    assert_eq!(last_error(&receiver).as_deref(), Some(RIGHTS));
    assert_eq!(log.count(RIGHTS), 1, "{log:?}");
    api.state().forbidden.clear();
    assert!(within(&mut receiver, Duration::from_secs(15)).await);
    sleep(2 * LIVED).await;
    assert_eq!(last_error(&receiver), None);
    assert_eq!(log.count("discovery works again"), 1, "{log:?}");
}

#[tokio::test(start_paused = true)]
async fn lists_do_where_no_watch_is_allowed() {
    let (log, _guard) = Log::new();
    let api = Fake::default();
    api.slice("a", &["10.0.0.1"]);
    api.state().forbidden.extend([("watch", SLICES), ("list", ENDPOINTS)]);
    let mut receiver = spawn(&api);
    changed(&mut receiver).await;
    within(&mut receiver, Duration::from_mins(5)).await;
    assert_eq!(last_error(&receiver).as_deref(), Some(RIGHTS));
    api.slice("a", &["10.0.0.2"]);
    let start = Instant::now();
    assert_eq!(changed(&mut receiver).await, ["10.0.0.2:9445"]);
    assert!(start.elapsed() <= Duration::from_secs(15), "{:?}", start.elapsed());
    assert_eq!((log.count("discovery fails"), log.count("discovery works again")), (1, 0), "{log:?}");
}

#[tokio::test(start_paused = true)]
async fn a_service_that_does_not_exist_is_told_from_one_without_endpoints() {
    let (log, _guard) = Log::new();
    let api = Fake::default();
    let mut receiver = spawn(&api);
    assert!(changed(&mut receiver).await.is_empty(), "the first answer counts even if empty");
    settle().await;
    let hint = "there is no Service \"runners\" in namespace \"ns\"; create it or correct the target";
    assert_eq!(last_error(&receiver).as_deref(), Some(hint));
    api.service();
    api.slice("a", &[]);
    settle().await;
    assert_eq!(last_error(&receiver), None);
    api.slice("a", &["10.0.0.1"]);
    changed(&mut receiver).await;
    api.state().delete(SLICES, "a");
    assert!(changed(&mut receiver).await.is_empty());
    settle().await;
    assert_eq!(last_error(&receiver), None, "the Service is there");
    assert_eq!(log.count(hint), 1, "{log:?}");

    // Nor is it an error when that may not be looked at.
    let api = Fake::default();
    api.state().forbidden.insert(("get", "services"));
    let mut receiver = spawn(&api);
    assert!(changed(&mut receiver).await.is_empty());
    settle().await;
    assert_eq!(last_error(&receiver), None);
}

/// The log of one test.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn new() -> (Self, impl Sized) {
        let log = Self::default();
        let writer = log.clone();
        let subscriber =
            tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    fn count(&self, text: &str) -> usize {
        self.text().matches(text).count()
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

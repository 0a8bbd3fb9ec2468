//! The watcher with a fake API server, on a paused clock.

mod fake;

use porch_fn_kubernetes::{BETWEEN_WATCHES, READ_TIMEOUT, WATCH_SECONDS};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use self::fake::{ENDPOINTS, FakeApi, Outage, SLICES};
use super::*;
use crate::publish::Snapshot;
use crate::watch::tests::Log;

const SECOND: Duration = Duration::from_secs(1);

/// A watcher of the Service `runners` in namespace `ns`, and its API server.
struct WatchedService {
    api: FakeApi,
    receiver: watch::Receiver<Snapshot>,
    _task: JoinSet<()>,
}

impl WatchedService {
    fn start(api: FakeApi) -> Self {
        let (sender, receiver) = watch::channel(Snapshot::default());
        let publisher = Publisher::new("kubernetes:///ns/runners:9445".to_owned(), Arc::new(sender));
        let client = Client::new(api.clone(), "default");
        let mut task = JoinSet::new();
        task.spawn(follow("ns".to_owned(), "runners".to_owned(), 9445, client, publisher));
        Self { api, receiver, _task: task }
    }

    /// Starts a watcher, and waits until it has found the slice `a` with this address.
    async fn with_address(address: &str) -> Self {
        let api = FakeApi::default();
        api.put_slice("a", &[address]);
        let mut service = Self::start(api);
        service.wait_for(&[address], SECOND).await;
        service
    }

    /// Waits for the next change of the set, at most for `time`. The new set must be `addresses`.
    async fn wait_for(&mut self, addresses: &[&str], time: Duration) {
        let expected: Vec<_> = addresses.iter().map(|address| format!("{address}:9445")).collect();
        let changed = timeout(time, self.receiver.changed()).await;
        assert!(changed.is_ok(), "{addresses:?} within {time:?}");
        assert_eq!(*self.receiver.borrow_and_update().endpoints, *expected);
        settle().await;
    }

    /// Asserts that the set does not change for `time`.
    async fn assert_unchanged_for(&mut self, time: Duration) {
        assert!(timeout(time, self.receiver.changed()).await.is_err(), "{:?}", self.receiver.borrow());
    }

    fn error(&self) -> Option<String> {
        self.receiver.borrow().last_error.as_deref().map(str::to_owned)
    }

    /// How many times the watcher has listed slices.
    fn list_count(&self) -> usize {
        self.api.request_times("list endpointslices").len()
    }
}

/// Lets the watcher process what has happened.
async fn settle() {
    sleep(Duration::from_millis(2)).await;
}

#[tokio::test(start_paused = true)]
async fn every_change_publishes_the_whole_set_at_once() {
    let mut service = WatchedService::with_address("10.0.0.2").await;
    let soon = Duration::from_millis(10);
    service.api.put_slice("b", &["10.0.0.3", "10.0.0.2"]);
    service.wait_for(&["10.0.0.2", "10.0.0.3"], soon).await;
    service.api.state().delete(SLICES, "a");
    settle().await;
    assert!(!service.receiver.has_changed().unwrap(), "the other slice still has it");
    service.api.state().delete(SLICES, "b");
    service.wait_for(&[], soon).await;
    assert_eq!(service.list_count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_list_every_five_minutes_finds_a_change_that_no_watch_reported() {
    let mut service = WatchedService::with_address("10.0.0.1").await;
    let api = service.api.clone();
    tokio::spawn(async move {
        loop {
            sleep(WATCH_SECONDS * SECOND).await;
            api.end_watches(|| None);
        }
    });
    service.assert_unchanged_for(60 * 60 * SECOND).await;
    let lists = service.api.request_times("list endpointslices");
    let mut gaps = lists.windows(2).map(|pair| pair[1] - pair[0]);
    assert!(gaps.all(|gap| (RESYNC.mul_f64(0.8)..=RESYNC).contains(&gap)), "{lists:?}");
    assert_eq!(service.error(), None);

    service.api.state().watches_end_at_once = true;
    service.api.end_watches(|| None);
    service.api.put_slice("a", &["10.0.0.2"]);
    service.wait_for(&["10.0.0.2"], RESYNC).await;
    let before = service.api.request_times("watch endpointslices").len();
    service.assert_unchanged_for(100 * SECOND).await;
    let watches = service.api.request_times("watch endpointslices").len() - before;
    assert!(watches <= 101, "at most one watch per second: {watches}");
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_goes_silent_breaks_or_expires_is_replaced() {
    let mut service = WatchedService::with_address("10.0.0.1").await;
    let _silent = std::mem::take(&mut service.api.state().watches);
    service.api.put_slice("a", &["10.0.0.2"]);
    service.wait_for(&["10.0.0.2"], READ_TIMEOUT + SECOND).await;

    sleep(2 * LIVED).await;
    service.api.break_watches();
    settle().await;
    assert!(service.error().is_some());
    service.api.put_slice("a", &["10.0.0.3"]);
    service.wait_for(&["10.0.0.3"], SECOND).await;
    sleep(2 * LIVED).await;
    assert_eq!(service.error(), None);

    // The second watch expires as soon as it is opened. The watcher then waits up to
    // `BETWEEN_WATCHES` before it lists again.
    for address in ["10.0.0.4", "10.0.0.5"] {
        service.api.expire_watches();
        service.api.put_slice("a", &[address]);
        service.wait_for(&[address], BETWEEN_WATCHES).await;
        assert_eq!(service.error(), None, "expiry is not a failure");
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_keeps_the_last_set_and_is_logged_once() {
    let (log, _guard) = Log::new();
    let mut service = WatchedService::with_address("10.0.0.1").await;
    let outages = [(Outage::Refused, "connection refused"), (Outage::Hanging, "no list within 10s")];
    for (outage, text) in outages {
        service.api.state().outage = Some(outage);
        service.api.break_watches();
        let before = service.list_count();
        service.assert_unchanged_for(600 * SECOND).await;
        assert_eq!(service.receiver.borrow().endpoints.len(), 1);
        let error = service.error().unwrap();
        assert!(error.contains(text), "{error}");
        let lists = service.list_count() - before;
        assert!((25..=125).contains(&lists), "{lists}");
        service.api.state().outage = None;
        service.assert_unchanged_for(50 * SECOND).await;
        assert_eq!(service.error(), None);
    }
    for (text, times) in [
        ("discovery fails: keeping the last endpoints", 2),
        ("kept_endpoints=1", 2),
        ("discovery works again", 2),
        ("endpoints changed", 1),
    ] {
        assert_eq!(log.count(text), times, "{text}\n{}", log.text());
    }

    // Watches that break again and again count as one failure. The pauses between lists get longer.
    let (before, breaking) = (service.list_count(), service.api.clone());
    tokio::spawn(async move {
        loop {
            sleep(LIVED / 2).await;
            breaking.break_watches();
        }
    });
    service.assert_unchanged_for(600 * SECOND).await;
    assert_eq!((log.count("discovery fails"), log.count("discovery works again")), (3, 2), "{}", log.text());
    assert!(service.list_count() - before < 100);
}

#[tokio::test(start_paused = true)]
async fn missing_rights_are_logged_once_and_used_when_they_are_granted() {
    let rights = format!("{RIGHTS} ns");
    let forbidden = format!("reading endpoints is forbidden: {rights}");
    let (list, watch) = (("list", SLICES), ("watch", SLICES));

    // Without rights on slices, the watcher uses the `Endpoints` object.
    let (log, guard) = Log::new();
    let api = FakeApi::default();
    api.put_slice("a", &["10.0.0.9"]);
    api.put_endpoints(&["10.0.0.1"]);
    api.state().forbidden.extend([list, watch]);
    let mut service = WatchedService::start(api);
    service.wait_for(&["10.0.0.1"], SECOND).await;
    service.api.put_endpoints(&["10.0.0.1", "10.0.0.2"]);
    service.wait_for(&["10.0.0.1", "10.0.0.2"], SECOND).await;
    service.assert_unchanged_for(1200 * SECOND).await;
    assert_eq!(service.error(), None);
    assert_eq!(log.count(&format!("reading the Endpoints object instead: {rights}")), 1, "{}", log.text());
    service.api.state().forbidden.clear();
    service.wait_for(&["10.0.0.9"], RESYNC + READ_TIMEOUT).await;
    drop((service, guard));

    // First the watcher has no rights at all, then the right to list, finally also to watch.
    let (log, _guard) = Log::new();
    let api = FakeApi::default();
    api.put_slice("a", &["10.0.0.1"]);
    api.state().forbidden.extend([list, watch, ("list", ENDPOINTS)]);
    let mut service = WatchedService::start(api);
    service.assert_unchanged_for(300 * SECOND).await;
    assert!(!service.receiver.borrow().is_answered);
    service.api.state().forbidden.remove(&list);
    service.wait_for(&["10.0.0.1"], 15 * SECOND).await;
    service.assert_unchanged_for(300 * SECOND).await;
    assert_eq!(service.error().as_ref(), Some(&forbidden));
    service.api.put_slice("a", &["10.0.0.2"]);
    service.wait_for(&["10.0.0.2"], 15 * SECOND).await;
    assert_eq!((log.count(&forbidden), log.count("discovery works again")), (1, 0), "{}", log.text());
    service.api.state().forbidden.clear();
    service.assert_unchanged_for(3 * LIVED).await;
    assert_eq!((service.error(), log.count("discovery works again")), (None, 1), "{}", log.text());
}

#[tokio::test(start_paused = true)]
async fn a_missing_service_is_an_error_and_a_service_without_endpoints_is_not() {
    let (log, _guard) = Log::new();
    let mut service = WatchedService::start(FakeApi::default());
    service.wait_for(&[], SECOND).await;
    let hint = "there is no Service \"runners\" in namespace \"ns\"; create it or correct the target";
    assert_eq!(service.error().as_deref(), Some(hint));
    service.api.put_service();
    service.api.put_slice("a", &[]);
    settle().await;
    assert_eq!(service.error(), None);
    service.api.put_slice("a", &["10.0.0.1"]);
    service.wait_for(&["10.0.0.1"], SECOND).await;
    service.api.state().delete(SLICES, "a");
    service.wait_for(&[], SECOND).await;
    assert_eq!(service.error(), None, "the Service exists");
    assert_eq!(log.count(hint), 1, "{}", log.text());

    // A missing right to read the Service is not an error.
    let api = FakeApi::default();
    api.state().forbidden.insert(("get", "services"));
    let mut service = WatchedService::start(api);
    service.wait_for(&[], SECOND).await;
    assert_eq!(service.error(), None);
}

//! The watcher on a paused clock, in front of a fake API server.

mod fake;

use porch_fn_kubernetes::{BETWEEN_WATCHES, READ_TIMEOUT, WATCH_SECONDS};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use self::fake::{Down, ENDPOINTS, Fake, SLICES};
use super::*;
use crate::publish::Snapshot;
use crate::watch::tests::Log;

const SECOND: Duration = Duration::from_secs(1);

/// Follows the Service `runners` of namespace `ns`.
struct Rig {
    api: Fake,
    receiver: watch::Receiver<Snapshot>,
    _task: JoinSet<()>,
}

impl Rig {
    fn with(api: Fake) -> Self {
        let (sender, receiver) = watch::channel(Snapshot::default());
        let publisher = Publisher::new("kubernetes:///ns/runners:9445".to_owned(), Arc::new(sender));
        let client = Client::new(api.clone(), "default");
        let mut task = JoinSet::new();
        task.spawn(follow("ns".to_owned(), "runners".to_owned(), 9445, client, publisher));
        Self { api, receiver, _task: task }
    }

    /// One that has found a slice `a` of this address, and watches.
    async fn watching(address: &str) -> Self {
        let api = Fake::default();
        api.slice("a", &[address]);
        let mut rig = Self::with(api);
        rig.finds(&[address], SECOND).await;
        rig
    }

    /// Waits until the set changes, which must be to this within `time`.
    async fn finds(&mut self, addresses: &[&str], time: Duration) {
        let expected: Vec<_> = addresses.iter().map(|address| format!("{address}:9445")).collect();
        let changed = timeout(time, self.receiver.changed()).await;
        assert!(changed.is_ok(), "{addresses:?} within {time:?}");
        assert_eq!(*self.receiver.borrow_and_update().endpoints, *expected);
        settle().await;
    }

    /// The set does not change for this time.
    async fn keeps(&mut self, time: Duration) {
        assert!(timeout(time, self.receiver.changed()).await.is_err(), "{:?}", self.receiver.borrow());
    }

    fn error(&self) -> Option<String> {
        self.receiver.borrow().last_error.as_deref().map(str::to_owned)
    }

    fn lists(&self) -> usize {
        self.api.asked("list endpointslices").len()
    }
}

/// Lets the watcher do what is due.
async fn settle() {
    sleep(Duration::from_millis(2)).await;
}

#[tokio::test(start_paused = true)]
async fn every_change_publishes_the_whole_set_at_once() {
    let mut rig = Rig::watching("10.0.0.2").await;
    let soon = Duration::from_millis(10);
    rig.api.slice("b", &["10.0.0.3", "10.0.0.2"]);
    rig.finds(&["10.0.0.2", "10.0.0.3"], soon).await;
    rig.api.state().delete(SLICES, "a");
    settle().await;
    assert!(!rig.receiver.has_changed().unwrap(), "the other slice still has it");
    rig.api.state().delete(SLICES, "b");
    rig.finds(&[], soon).await;
    assert_eq!(rig.lists(), 1);
}

#[tokio::test(start_paused = true)]
async fn all_is_listed_again_within_five_minutes_and_finds_what_a_watch_missed() {
    let mut rig = Rig::watching("10.0.0.1").await;
    let renewing = rig.api.clone();
    tokio::spawn(async move {
        loop {
            sleep(WATCH_SECONDS * SECOND).await;
            renewing.end_watches(|| None);
        }
    });
    rig.keeps(60 * 60 * SECOND).await;
    let lists = rig.api.asked("list endpointslices");
    let gaps: Vec<_> = lists.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.iter().all(|gap| (RESYNC.mul_f64(0.8)..=RESYNC).contains(gap)), "{gaps:?}");
    assert!(gaps.iter().collect::<BTreeSet<_>>().len() > 5, "they are spread: {gaps:?}");
    let watches = rig.api.asked("watch endpointslices").len();
    assert!((60..=90).contains(&watches), "{watches}");
    assert_eq!(rig.error(), None);

    let _silent = std::mem::take(&mut rig.api.state().watches);
    rig.api.slice("a", &["10.0.0.2"]);
    rig.api.state().watches_end = true;
    rig.finds(&["10.0.0.2"], RESYNC).await;
    let before = rig.api.asked("watch endpointslices").len();
    rig.keeps(100 * SECOND).await;
    let flood = rig.api.asked("watch endpointslices").len() - before;
    assert!(flood <= 101, "watches that end at once: {flood}");
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_goes_silent_breaks_or_expires_is_replaced() {
    let mut rig = Rig::watching("10.0.0.1").await;
    let _silent = std::mem::take(&mut rig.api.state().watches);
    rig.api.slice("a", &["10.0.0.2"]);
    rig.finds(&["10.0.0.2"], READ_TIMEOUT + SECOND).await;

    sleep(2 * LIVED).await;
    rig.api.break_watches();
    settle().await;
    assert!(rig.error().is_some());
    rig.api.slice("a", &["10.0.0.3"]);
    rig.finds(&["10.0.0.3"], SECOND).await;
    sleep(2 * LIVED).await;
    assert_eq!(rig.error(), None);

    // The second expires when it is opened, and yet there is no flood.
    for address in ["10.0.0.4", "10.0.0.5"] {
        rig.api.expire_watches();
        rig.api.slice("a", &[address]);
        rig.finds(&[address], BETWEEN_WATCHES).await;
        assert_eq!(rig.error(), None, "it is no failure");
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_keeps_the_last_set_and_is_logged_once() {
    let (log, _guard) = Log::new();
    let mut rig = Rig::watching("10.0.0.1").await;
    for (down, text) in [(Down::Refuses, "connection refused"), (Down::Hangs, "no list within 10s")] {
        rig.api.state().down = Some(down);
        rig.api.break_watches();
        let before = rig.lists();
        rig.keeps(600 * SECOND).await;
        assert_eq!(rig.receiver.borrow().endpoints.len(), 1);
        let error = rig.error().unwrap();
        assert!(error.contains(text), "{error}");
        let lists = rig.lists() - before;
        assert!((25..=125).contains(&lists), "{lists}");
        rig.api.state().down = None;
        rig.keeps(40 * SECOND).await;
        assert_eq!(rig.error(), None);
    }
    for (text, times) in [
        ("discovery fails: keeping the last endpoints", 2),
        ("kept=1", 2),
        ("discovery works again", 2),
        ("endpoints changed", 1),
    ] {
        assert_eq!(log.count(text), times, "{text}\n{}", log.text());
    }

    // Watches that break again and again are one failure, and lists come ever less often.
    let (before, breaking) = (rig.lists(), rig.api.clone());
    tokio::spawn(async move {
        loop {
            sleep(LIVED / 2).await;
            breaking.break_watches();
        }
    });
    rig.keeps(600 * SECOND).await;
    assert_eq!((log.count("discovery fails"), log.count("discovery works again")), (3, 2), "{}", log.text());
    assert!(rig.lists() - before < 100);
}

#[tokio::test(start_paused = true)]
async fn rights_that_are_missing_are_named_once_and_used_when_they_are_given() {
    let rights = format!("{RIGHTS} ns");
    let forbidden = format!("the API server forbids it: {rights}");
    let (list, watch) = (("list", SLICES), ("watch", SLICES));

    // Endpoints instead of slices.
    let (log, guard) = Log::new();
    let api = Fake::default();
    api.slice("a", &["10.0.0.9"]);
    api.endpoints(&["10.0.0.1"]);
    api.state().forbidden.extend([list, watch]);
    let mut rig = Rig::with(api);
    rig.finds(&["10.0.0.1"], SECOND).await;
    rig.api.endpoints(&["10.0.0.1", "10.0.0.2"]);
    rig.finds(&["10.0.0.1", "10.0.0.2"], SECOND).await;
    rig.keeps(1200 * SECOND).await;
    assert_eq!(rig.error(), None);
    assert_eq!(log.count(&format!("trying endpoints instead: {rights}")), 1, "{}", log.text());
    rig.api.state().forbidden.clear();
    rig.finds(&["10.0.0.9"], RESYNC + READ_TIMEOUT).await;
    drop((rig, guard));

    // No right at all, and then all of them.
    let (log, guard) = Log::new();
    let api = Fake::default();
    api.slice("a", &["10.0.0.1"]);
    api.state().forbidden.extend([list, ("list", ENDPOINTS)]);
    let mut rig = Rig::with(api);
    rig.keeps(300 * SECOND).await;
    assert!(!rig.receiver.borrow().is_answered);
    assert_eq!(rig.error().as_ref(), Some(&forbidden));
    assert_eq!(log.count(&forbidden), 1, "{}", log.text());
    rig.api.state().forbidden.clear();
    rig.finds(&["10.0.0.1"], 15 * SECOND).await;
    sleep(2 * LIVED).await;
    assert_eq!(rig.error(), None);
    assert_eq!(log.count("discovery works again"), 1, "{}", log.text());
    drop((rig, guard));

    // Lists do where no watch is allowed.
    let (log, _guard) = Log::new();
    let api = Fake::default();
    api.slice("a", &["10.0.0.1"]);
    api.state().forbidden.extend([watch, ("list", ENDPOINTS)]);
    let mut rig = Rig::with(api);
    rig.finds(&["10.0.0.1"], SECOND).await;
    rig.keeps(300 * SECOND).await;
    assert_eq!(rig.error().as_ref(), Some(&forbidden));
    rig.api.slice("a", &["10.0.0.2"]);
    rig.finds(&["10.0.0.2"], 15 * SECOND).await;
    assert_eq!((log.count("discovery fails"), log.count("discovery works again")), (1, 0), "{}", log.text());
}

#[tokio::test(start_paused = true)]
async fn a_missing_service_is_reported_and_one_without_endpoints_is_not() {
    let (log, _guard) = Log::new();
    let mut rig = Rig::with(Fake::default());
    rig.finds(&[], SECOND).await;
    let hint = "there is no Service \"runners\" in namespace \"ns\"; create it or correct the target";
    assert_eq!(rig.error().as_deref(), Some(hint));
    rig.api.service();
    rig.api.slice("a", &[]);
    settle().await;
    assert_eq!(rig.error(), None);
    rig.api.slice("a", &["10.0.0.1"]);
    rig.finds(&["10.0.0.1"], SECOND).await;
    rig.api.state().delete(SLICES, "a");
    rig.finds(&[], SECOND).await;
    assert_eq!(rig.error(), None, "the Service is there");
    assert_eq!(log.count(hint), 1, "{}", log.text());

    // Nor is it an error when the Service may not be read.
    let api = Fake::default();
    api.state().forbidden.insert(("get", "services"));
    let mut rig = Rig::with(api);
    rig.finds(&[], SECOND).await;
    assert_eq!(rig.error(), None);
}

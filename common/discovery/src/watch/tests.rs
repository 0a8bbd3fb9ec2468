//! Tests of the addresses after each answer of DNS, on a paused clock.

use std::future::{pending, ready};
use std::io;
use std::sync::Mutex;

use tokio::time::Instant;

use super::*;

fn lookup(addresses: &[&str]) -> Lookup {
    let (v4, v6) = addresses.iter().map(|text| text.parse::<IpAddr>().unwrap()).partition(IpAddr::is_ipv4);
    Lookup { addresses: [Some(v4), Some(v6)], name_exists: true }
}

/// The addresses of `runners`, and the receiver of their snapshots.
fn addresses() -> (Addresses, watch::Receiver<Snapshot>) {
    let (sender, receiver) = watch::channel(Snapshot::default());
    let publisher = Publisher::new("dns:///runners:9445".to_owned(), Arc::new(sender));
    let name = HostPort::parse("runners", 9445).unwrap();
    (Addresses { name, publisher, known: [Vec::new(), Vec::new()] }, receiver)
}

#[tokio::test(start_paused = true)]
async fn each_answer_changes_the_snapshot() {
    const FAILED: &str = "the lookup of \"runners\" failed";
    const MISSING: &str = "the name \"runners\" does not exist in DNS; correct the target";
    let (mut addresses, mut receiver) = addresses();
    assert!(!receiver.borrow().is_answered);
    let [one, both] = [&["10.0.0.1:9445"][..], &["10.0.0.2:9445", "[fd00::1]:9445"]];
    let only_v4 = Lookup { addresses: [lookup(&["10.0.0.2"]).addresses[0].clone(), None], ..lookup(&[]) };
    let missing = Lookup { name_exists: false, ..lookup(&[]) };
    // An answer; then the endpoints, whether the receiver is notified, and the error.
    for (what, answer, endpoints, notified, error) in [
        ("an empty answer is an answer", Ok(lookup(&[])), &[][..], true, None),
        (
            "addresses are sorted, without duplicates",
            Ok(lookup(&["fd00::1", "10.0.0.2", "10.0.0.2"])),
            both,
            true,
            None,
        ),
        ("a failure keeps the last set", Err(FAILED.to_owned()), both, false, Some(FAILED)),
        ("a second failure changes nothing", Err(FAILED.to_owned()), both, false, Some(FAILED)),
        ("the same set again", Ok(lookup(&["fd00::1", "10.0.0.2"])), both, false, None),
        ("without an answer, a family keeps its addresses", Ok(only_v4), both, false, None),
        ("an answer for both families replaces all", Ok(lookup(&["10.0.0.1"])), one, true, None),
        ("no such name", Ok(missing), &[], true, Some(MISSING)),
        ("the name exists again", Ok(lookup(&["10.0.0.1"])), one, true, None),
    ] {
        addresses.update(ready(answer)).await;
        assert_eq!(receiver.has_changed().unwrap(), notified, "{what}");
        let snapshot = receiver.borrow_and_update();
        assert_eq!(*snapshot.endpoints, *endpoints, "{what}");
        assert_eq!(snapshot.last_error.as_deref(), error, "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn lookups_repeat_after_a_pause_that_doubles_with_each_failure() {
    let (mut addresses, _receiver) = addresses();
    for (found, wait) in [(&[][..], EMPTY_PAUSE), (&["10.0.0.1"], LOOKUP_PAUSE)] {
        assert_eq!(addresses.update(ready(Ok(lookup(found)))).await, wait, "{found:?}");
    }
    for failed in [12, 1] {
        for attempt in 0..failed {
            let wait = addresses.update(ready(Err("no".to_owned()))).await;
            let mean = Duration::from_millis((500 << attempt).min(10_000));
            assert!((mean / 2..=mean * 3 / 2).contains(&wait), "{attempt}: {wait:?}");
        }
        addresses.update(ready(Ok(lookup(&[])))).await;
    }
    // A lookup that hangs fails.
    let began = Instant::now();
    addresses.update(pending()).await;
    assert_eq!(began.elapsed(), LOOKUP_TIMEOUT);
    assert!(addresses.publisher.failing.is_some());
}

#[tokio::test(start_paused = true)]
async fn static_targets_are_known_at_once_and_end_with_the_last_receiver() {
    for (text, expected) in [
        ("static:///b:2,a:1,b:2,localhost", &["a:1", "b:2", "localhost:9445"][..]),
        ("static:///[::1]:7", &["[::1]:7"]),
        ("127.0.0.1:7", &["127.0.0.1:7"]),
        ("dns:///[::1]", &["[::1]:9445"]),
    ] {
        let target = Target::parse(text, 9445).unwrap();
        let (task, receiver) = watch(target, None, "test").await.unwrap();
        assert!(receiver.borrow().is_answered);
        assert_eq!(*receiver.borrow().endpoints, *expected, "{text}");
        let task = tokio::spawn(task);
        sleep(Duration::from_secs(100)).await;
        assert!(!task.is_finished());
        drop(receiver);
        timeout(Duration::from_secs(1), task).await.expect("the task ends").unwrap();
    }
}

/// Collects the log of one test.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    pub(crate) fn new() -> (Self, impl Sized) {
        let log = Self::default();
        let writer = log.clone();
        let subscriber =
            tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    pub(crate) fn count(&self, text: &str) -> usize {
        self.text().matches(text).count()
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

//! Steady traffic while a test kills and stops things, and an account of what became of each call.
//!
//! Closed loop: each caller has one call in flight and starts the next when it is answered, so a server that
//! slows down is not buried. Bounded in callers and, should a test forget to stop it, in time.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::Code;

use crate::client::Client;

/// A load ends by itself after this long.
const LONGEST: Duration = Duration::from_mins(3);
/// Connections that the callers share. Porch has one per process.
const CONNECTIONS: usize = 4;
/// Failures of which the text is kept.
const KEPT_FAILURES: usize = 5;

/// Callers at work.
#[derive(Debug)]
pub struct Load {
    callers: JoinSet<Report>,
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
}

/// What became of all calls.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Calls answered with OK and the bytes they sent.
    pub succeeded: usize,
    /// All others, by what was wrong.
    pub failed: BTreeMap<String, usize>,
    /// The longest that a caller waited.
    pub slowest: Duration,
    texts: Vec<String>,
}

impl Load {
    /// Starts `callers` callers of `images` at the router or runner at `address`. The functions must echo
    /// their input.
    pub fn start(address: SocketAddr, callers: usize, images: &[String]) -> Self {
        let images: Arc<[String]> = images.into();
        let clients: Vec<_> = (0..CONNECTIONS).map(|_| Arc::new(Client::new(address))).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let answered = Arc::new(AtomicUsize::new(0));
        let callers = (0..callers)
            .map(|caller| {
                let client = Arc::clone(&clients[caller % CONNECTIONS]);
                let work =
                    work(caller, client, Arc::clone(&images), Arc::clone(&stop), Arc::clone(&answered));
                Box::pin(work) as std::pin::Pin<Box<dyn Future<Output = Report> + Send>>
            })
            .collect();
        Self { callers, stop, answered }
    }

    /// Calls answered so far.
    pub fn answered(&self) -> usize {
        self.answered.load(Ordering::Relaxed)
    }

    /// Lets the calls in flight finish and returns the account.
    pub async fn stop(self) -> Report {
        self.stop.store(true, Ordering::Relaxed);
        self.callers.join_all().await.into_iter().fold(Report::default(), Report::merge)
    }
}

async fn work(
    caller: usize,
    client: Arc<Client>,
    images: Arc<[String]>,
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
) -> Report {
    let started = Instant::now();
    let mut report = Report::default();
    for call in 0.. {
        if stop.load(Ordering::Relaxed) || started.elapsed() > LONGEST {
            break;
        }
        // Each caller walks the images in a stride of its own.
        let image = &images[(caller * 7 + call * (2 * caller + 1)) % images.len()];
        let input = Bytes::from(format!("kind: ResourceList\n# caller {caller}, call {call}\n"));
        let began = Instant::now();
        let outcome = match client.try_call(image, input.clone(), None).await {
            Ok(answer) if answer.code != Code::Ok => Err((format!("{:?}", answer.code), answer.message)),
            Ok(answer) if answer.resource_list != input => Err(("another answer".to_owned(), answer.log())),
            Ok(_) => Ok(()),
            Err(error) => Err(("no status".to_owned(), error.to_string())),
        };
        report.slowest = report.slowest.max(began.elapsed());
        answered.fetch_add(1, Ordering::Relaxed);
        match outcome {
            Ok(()) => report.succeeded += 1,
            Err((kind, text)) => {
                *report.failed.entry(kind).or_default() += 1;
                report.texts.push(text);
                report.texts.truncate(KEPT_FAILURES);
            }
        }
    }
    report
}

// === impl Report ===

impl Report {
    fn merge(mut self, other: Self) -> Self {
        self.succeeded += other.succeeded;
        for (kind, count) in other.failed {
            *self.failed.entry(kind).or_default() += count;
        }
        self.slowest = self.slowest.max(other.slowest);
        self.texts.extend(other.texts);
        self.texts.truncate(KEPT_FAILURES);
        self
    }

    /// Asserts that there were calls and none failed.
    ///
    /// # Panics
    /// When one did.
    #[track_caller]
    pub fn all_succeeded(&self) {
        assert!(self.succeeded > 0, "there was no load");
        assert!(
            self.failed.is_empty(),
            "{:?} failed beside {} calls: {:?}",
            self.failed,
            self.succeeded,
            self.texts
        );
    }
}

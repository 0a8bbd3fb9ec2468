//! The list of FunctionConfigs and the watch after it, again and again, and when they end.

use std::time::Duration;

use futures_util::FutureExt;
use kube::api::{Api, DynamicObject};
use porch_fn_backoff::spread;
use porch_fn_kubernetes::{Change, FollowError, Follower, Page, Restarts, Selection};
use tokio::time::{Instant, sleep_until};

use super::super::client::{Causes, has_no_such_kind};
use super::write::Object;
use super::{Followed, GROUP, PLURAL, RIGHTS, VERSION};

/// Some of the objects may be large.
const PAGE: Page = Page { limit: Some(100), timeout: Duration::from_secs(30) };
/// The longest pause before the first answer, which every function's first pod waits for.
const LAST_PAUSE_AT_START: Duration = Duration::from_secs(1);
/// Most changes that are taken together.
const CHUNK: usize = 256;

/// What a watch reports: a change, or its end.
pub(super) type WatchEvent = Result<Change<DynamicObject>, FollowError>;

pub(super) struct Watch {
    api: Api<DynamicObject>,
    follower: Option<Follower<DynamicObject>>,
    /// When the next follower starts.
    start_at: Instant,
    backoff: Restarts,
    /// How the last watches ended, and how many of them in a row.
    last_end: (End, u32),
}

/// How a watch ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The cluster has no such kind.
    Missing,
    Forbidden,
    Failed,
}

// === impl Watch ===

impl Watch {
    pub(super) fn new(api: Api<DynamicObject>) -> Self {
        let (start_at, backoff) = (Instant::now(), Restarts::default());
        Self { api, follower: None, start_at, backoff, last_end: (End::Failed, 0) }
    }

    /// The next event. A dropped future loses none.
    pub(super) async fn next(&mut self) -> WatchEvent {
        if self.follower.is_none() {
            sleep_until(self.start_at).await;
        }
        let new = || Follower::new(self.api.clone(), Selection::default(), PAGE, |_| ());
        self.follower.get_or_insert_with(new).next().await
    }

    /// Counts how often it ended like this in a row. A watch that worked begins anew.
    fn record_end(&mut self, end: End) -> u32 {
        let (last, times) = self.last_end;
        let in_a_row = if last == end && self.backoff.failures() > 1 { times.saturating_add(1) } else { 1 };
        self.last_end = (end, in_a_row);
        in_a_row
    }
}

// === impl Followed ===

impl Followed {
    /// Takes an event, and the ones that are ready behind it.
    pub(super) async fn take(&mut self, watch: &mut Watch, event: WatchEvent) {
        let (mut event, mut complete) = (event, false);
        for _ in 0..CHUNK {
            match event {
                Ok(Change::Applied(object)) => {
                    if let Some(object) = Object::new(object) {
                        self.objects.apply(object);
                    }
                }
                Ok(Change::Deleted(object)) => self.objects.remove(&object.metadata.name.unwrap_or_default()),
                Ok(Change::Listed(list)) => {
                    self.read_schema().await;
                    self.objects.replace_all(list);
                    complete = true;
                }
                Ok(Change::Expired) => {}
                Err(error) => {
                    complete |= self.end(watch, &error).await;
                    break;
                }
            }
            match watch.next().now_or_never() {
                Some(next) => event = next,
                None => break,
            }
        }
        self.publish(complete);
    }

    /// Decides when the next list is due. Returns whether it is known by this end which objects exist.
    async fn end(&mut self, watch: &mut Watch, error: &FollowError) -> bool {
        let listed_for = watch.follower.take().and_then(|follower| follower.listed_for());
        let mut pause = watch.backoff.after(listed_for);
        if self.state.borrow().is_none() {
            pause = pause.min(spread(LAST_PAUSE_AT_START, 1.0..1.5));
        }
        let end = self.kind_of_end(error).await;
        let times = watch.record_end(end);
        let error = Causes(error).to_string();
        let mut complete = false;
        // So that runners do not come back in step.
        let retry = spread(self.options.retry_every, 1.0..1.5);
        match end {
            End::Missing => {
                // Objects go with their kind.
                self.objects.replace_all(Vec::new());
                self.is_schema_missing = false;
                (pause, complete) = (retry, true);
                if times == 1 {
                    tracing::info!(
                        "the cluster has no FunctionConfigs: functions run as flags and files say"
                    );
                }
            }
            // The right may be granted at this moment.
            End::Forbidden if times == 1 => {}
            End::Forbidden => {
                (pause, complete) = (retry, true);
                if times > 2 {
                    tracing::debug!(error, "FunctionConfigs are still not watched");
                } else {
                    let how = if listed_for.is_some() { "only listed now and then" } else { "not seen" };
                    tracing::warn!(error, "FunctionConfigs are {how}; {RIGHTS}: list and watch on {PLURAL}");
                }
            }
            End::Failed if times > 1 => {
                tracing::debug!(error, "the watch of FunctionConfigs is still broken");
            }
            End::Failed => {
                tracing::warn!(error, "the watch of FunctionConfigs broke; what is known stays in effect");
            }
        }
        watch.start_at = Instant::now() + pause;
        complete
    }

    async fn kind_of_end(&self, error: &FollowError) -> End {
        let api_version = format!("{GROUP}/{VERSION}");
        let is_missing = || has_no_such_kind(&self.options.client, &api_version, PLURAL);
        match (error, error.code()) {
            // A 404 alone may come from an API server that does not know the kind yet. After a watch
            // a list follows, which shows it.
            (FollowError::List(_), Some(404)) | (_, Some(403)) if is_missing().await => End::Missing,
            (_, Some(403)) => End::Forbidden,
            _ => End::Failed,
        }
    }
}

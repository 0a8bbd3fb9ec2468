//! The list of FunctionConfigs and the watch after it, again and again.

use std::time::Duration;

use futures_util::StreamExt;
use kube::runtime::watcher::{self, watcher};
use tokio::time::{Instant, sleep, timeout};

use super::super::client::{Causes, WATCH_SECONDS, has_no_such_kind};
use super::known::MAX_OBJECTS;
use super::work::Object;
use super::{Followed, GROUP, PLURAL, RIGHTS, SettingSource, Told, VERSION};

/// How long one page of a list may take.
const PAGE_TIMEOUT: Duration = Duration::from_secs(30);
/// Objects of one page: some of them may be large.
const PAGE: u32 = 100;
/// Events that are taken together when there are many.
const CHUNK: usize = 256;
/// Pauses between attempts to watch, doubling.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LAST_PAUSE: Duration = Duration::from_secs(5);
/// As good as never.
const A_YEAR: Duration = Duration::from_hours(365 * 24);
/// A watch that lived for so long has worked.
const LIVED: Duration = Duration::from_secs(10);

/// Why a watch ended.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("the cluster has no FunctionConfigs")]
    Missing,
    #[error("{0}")]
    Forbidden(String),
    #[error("no list in time")]
    Slow,
    #[error("it is over")]
    Over,
    #[error("it is time to list again")]
    Due,
    #[error("{0}")]
    Failed(String),
}

impl Followed {
    /// Never ends.
    pub(super) async fn look(&self, retry_every: Duration, relist_every: Duration) {
        let mut pause = FIRST_PAUSE;
        // How the last ones ended, and how many of them so.
        let (mut last, mut in_a_row) = (None, 0_u32);
        loop {
            let mut listed_at = None;
            let ended = self.until_end(&mut listed_at, retry_every, relist_every).await;
            if listed_at.is_some_and(|at: Instant| at.elapsed() > LIVED) {
                (pause, last) = (FIRST_PAUSE, None);
            }
            let this = std::mem::discriminant(&ended);
            in_a_row = if last.replace(this) == Some(this) { in_a_row.saturating_add(1) } else { 1 };
            let again = in_a_row > 1;
            let wait = match &ended {
                Ended::Missing => {
                    // If ever there were some, they went with their kind.
                    self.take_up(|inner| {
                        inner.warned = false;
                        inner.listed(Vec::new(), 0)
                    });
                    if again {
                        tracing::debug!("still no FunctionConfigs");
                    } else {
                        tracing::info!(
                            "the cluster has no FunctionConfigs: functions run as flags and files say"
                        );
                    }
                    retry_every
                }
                Ended::Due => FIRST_PAUSE,
                // Rights may be given anew at this moment; without them all is known, which is nothing.
                Ended::Forbidden(_) if !again => FIRST_PAUSE,
                Ended::Forbidden(error) => {
                    self.take_up(|_| Told::All);
                    if in_a_row > 2 {
                        tracing::debug!(error, "FunctionConfigs are still not watched");
                    } else {
                        let how = if listed_at.is_some() { "only listed now and then" } else { "not seen" };
                        tracing::warn!(
                            error,
                            "FunctionConfigs are {how}; {RIGHTS}: list and watch on {PLURAL}"
                        );
                    }
                    retry_every
                }
                Ended::Slow | Ended::Over | Ended::Failed(_) => {
                    if again {
                        tracing::debug!(error = %ended, "the watch of FunctionConfigs is still broken");
                    } else {
                        tracing::warn!(error = %ended, "the watch of FunctionConfigs broke; what is known stays in effect");
                    }
                    let wait = pause;
                    pause = (pause * 2).min(LAST_PAUSE);
                    wait
                }
            };
            // Up to a half more, so that runners do not come back in step.
            sleep(wait.max(FIRST_PAUSE).mul_f64(1.0 + fastrand::f64() / 2.0)).await;
        }
    }

    /// One list and the watch after it.
    async fn until_end(
        &self,
        listed_at: &mut Option<Instant>,
        retry_every: Duration,
        relist_every: Duration,
    ) -> Ended {
        let config = watcher::Config::default().timeout(WATCH_SECONDS).page_size(PAGE);
        let mut stream = std::pin::pin!(watcher(self.api.clone(), config).ready_chunks(CHUNK));
        // Objects of the list that is under way, and how many there are beyond those that are taken.
        let mut list = Some((Vec::new(), 0));
        // Only the schema is a reason to list again.
        let mut due = Instant::now() + A_YEAR;
        loop {
            // A watch is bounded by its own timeout and the client's, a list by nothing else.
            let limit =
                if list.is_some() { PAGE_TIMEOUT } else { due.saturating_duration_since(Instant::now()) };
            let events = match timeout(limit, stream.next()).await {
                Ok(Some(events)) => events,
                Ok(None) => return Ended::Over,
                Err(_) if list.is_some() => return Ended::Slow,
                Err(_) => return Ended::Due,
            };
            if self.asks_schema && events.iter().any(|event| matches!(event, Ok(watcher::Event::InitDone))) {
                self.learn_semantics().await;
                let unknown = self.inner.lock().known.semantics().source == SettingSource::NoSchema;
                due = Instant::now() + if unknown { retry_every } else { relist_every };
            }
            let mut failed = None;
            self.take_up(|inner| {
                let mut told = Told::Some;
                for event in events {
                    match event {
                        Ok(watcher::Event::Apply(object)) => inner.seen(Object::new(object)),
                        Ok(watcher::Event::Delete(object)) => inner.gone(object.metadata.name),
                        Ok(watcher::Event::Init) => list = Some((Vec::new(), 0)),
                        Ok(watcher::Event::InitApply(object)) => {
                            let (objects, beyond) = list.get_or_insert_default();
                            if objects.len() < MAX_OBJECTS {
                                objects.extend(Object::new(object));
                            } else {
                                *beyond += 1;
                            }
                        }
                        Ok(watcher::Event::InitDone) => {
                            let (objects, beyond) = list.take().unwrap_or_default();
                            tracing::debug!(objects = objects.len(), "listed");
                            told = inner.listed(objects, beyond);
                            *listed_at = Some(Instant::now());
                        }
                        Err(error) => {
                            failed = Some(error);
                            break;
                        }
                    }
                }
                told
            });
            if let Some(error) = failed {
                return self.why(error).await;
            }
        }
    }

    async fn why(&self, error: watcher::Error) -> Ended {
        let code = match &error {
            watcher::Error::InitialListFailed(kube::Error::Api(status))
            | watcher::Error::WatchStartFailed(kube::Error::Api(status))
            | watcher::Error::WatchFailed(kube::Error::Api(status))
            | watcher::Error::WatchError(status) => Some(status.code),
            _ => None,
        };
        match code {
            // Of a watch it means that the kind is going; the next list tells. One answer alone may be that of an API
            // server that has not heard of the kind yet, and all objects would go with it.
            Some(404) if !matches!(error, watcher::Error::InitialListFailed(_)) => {
                Ended::Failed(Causes(&error).to_string())
            }
            Some(403 | 404) if self.has_no_such_kind().await => Ended::Missing,
            Some(403) => Ended::Forbidden(Causes(&error).to_string()),
            _ => Ended::Failed(Causes(&error).to_string()),
        }
    }

    async fn has_no_such_kind(&self) -> bool {
        has_no_such_kind(&self.client, &format!("{GROUP}/{VERSION}"), PLURAL).await
    }
}

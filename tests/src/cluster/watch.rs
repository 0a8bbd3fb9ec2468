//! Watches objects: waits for them and records their changes.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use crate::process::PATIENCE;

/// An object that can be watched.
pub trait Object: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static {}

impl<K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static> Object for K {}

/// What happened to an object.
#[derive(Debug, Clone, PartialEq)]
pub enum Change<K> {
    /// The object was created or changed, or existed when the recording began.
    Applied(K),
    /// The object is gone. This is its last state.
    Deleted(K),
}

/// Changes, and the times when the watch reported them.
type Changes<K> = Vec<(Instant, Change<K>)>;

/// Records all changes to the objects of a kind.
#[derive(Debug)]
pub struct Recorder<K> {
    changes: Arc<Mutex<Changes<K>>>,
    recorded: Arc<Notify>,
    task: JoinHandle<()>,
}

/// Waits until `look` returns a value for the existing objects, which are ordered by name.
pub async fn wait_until<K: Object, T>(
    api: Api<K>,
    what: &str,
    within: Duration,
    mut look: impl FnMut(&[K]) -> Option<T>,
) -> T {
    let recorder = Recorder::start(api).await;
    let found = timeout(within, recorder.find(&mut look)).await;
    found.unwrap_or_else(|_| {
        let mut objects = BTreeMap::new();
        recorder.changes().iter().for_each(|(_, change)| apply(&mut objects, change));
        panic!("not within {within:?}: {what}; the objects are {:#?}", objects.values())
    })
}

fn apply<K: Object>(objects: &mut BTreeMap<String, K>, change: &Change<K>) {
    match change {
        Change::Applied(object) => drop(objects.insert(object.name_any(), object.clone())),
        Change::Deleted(object) => drop(objects.remove(&object.name_any())),
    }
}

/// The existing objects, and all later changes. `None` follows each complete list. Changes during
/// an outage of the API server are reported after the outage.
fn changes<K: Object>(api: Api<K>) -> impl Stream<Item = Option<Change<K>>> {
    let mut known = BTreeMap::<String, K>::new();
    let mut listed = BTreeMap::new();
    watcher(api, watcher::Config::default()).default_backoff().flat_map(move |event| {
        let mut changes = Vec::new();
        match event {
            Err(_) => {}
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(object)) => drop(listed.insert(object.name_any(), object)),
            Ok(Event::InitDone) => {
                let before = std::mem::replace(&mut known, std::mem::take(&mut listed));
                let gone = before
                    .into_iter()
                    .filter(|(name, object)| known.get(name).is_none_or(|now| now.uid() != object.uid()));
                changes.extend(gone.map(|(_, object)| Some(Change::Deleted(object))));
                changes.extend(known.values().cloned().map(Change::Applied).map(Some));
                changes.push(None);
            }
            Ok(Event::Apply(object)) => {
                known.insert(object.name_any(), object.clone());
                changes.push(Some(Change::Applied(object)));
            }
            Ok(Event::Delete(object)) => {
                known.remove(&object.name_any());
                changes.push(Some(Change::Deleted(object)));
            }
        }
        futures_util::stream::iter(changes)
    })
}

// === impl Recorder ===

impl<K: Object> Recorder<K> {
    /// Starts recording. All changes after this function returns are recorded.
    pub async fn start(api: Api<K>) -> Self {
        let all = Arc::new(Mutex::new(Vec::new()));
        let recorded = Arc::new(Notify::new());
        let (begun, beginning) = oneshot::channel();
        let task = tokio::spawn({
            let (all, recorded) = (Arc::clone(&all), Arc::clone(&recorded));
            async move {
                let mut begun = Some(begun);
                let mut changes = pin!(changes(api));
                while let Some(change) = changes.next().await {
                    match change {
                        Some(change) => {
                            let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                            all.push((Instant::now(), change));
                            recorded.notify_waiters();
                        }
                        None => drop(begun.take().map(|begun| begun.send(()))),
                    }
                }
            }
        });
        let begun = timeout(PATIENCE, beginning).await;
        begun.expect("the watch begins in a minute").expect("the watch does not end");
        Self { changes: all, recorded, task }
    }

    /// Waits until the recorder knows that all objects are gone. Other watches, such as a runner's,
    /// may have reported that earlier.
    pub async fn wait_all_gone(&self) {
        let mut empty = |objects: &[K]| objects.is_empty().then_some(());
        timeout(PATIENCE, self.find(&mut empty)).await.expect("all objects are gone within a minute");
    }

    /// Waits until `look` returns a value for the existing objects.
    async fn find<T>(&self, look: &mut impl FnMut(&[K]) -> Option<T>) -> T {
        let mut objects = BTreeMap::new();
        let mut seen = 0;
        loop {
            let mut more = pin!(self.recorded.notified());
            more.as_mut().enable();
            let changes = self.changes();
            changes[seen..].iter().for_each(|(_, change)| apply(&mut objects, change));
            seen = changes.len();
            let now: Vec<K> = objects.values().cloned().collect();
            if let Some(found) = look(&now) {
                return found;
            }
            more.await;
        }
    }

    /// All changes until now, and the times when the watch reported them.
    pub fn changes(&self) -> Vec<(Instant, Change<K>)> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The largest number of `counted` objects that existed at the same time.
    pub fn most_at_once(&self, counted: impl Fn(&K) -> bool) -> usize {
        let mut objects = BTreeMap::new();
        let changes = self.changes();
        let states = changes.iter().map(|(_, change)| {
            apply(&mut objects, change);
            objects.values().filter(|object| counted(object)).count()
        });
        states.max().unwrap_or_default()
    }
}

impl<K> Drop for Recorder<K> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

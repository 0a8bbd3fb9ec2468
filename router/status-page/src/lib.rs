//! The router's pages: the status page for people, its data `/status.json`, and `/shards`.
//!
//! The status page shows more than `/shards`: what the runners report of themselves. They are asked only while
//! somebody looks. The page loads nothing but its own data, and changes nothing.

mod answers;
mod ask;
mod html;
mod notes;
mod picture;
mod shards;
mod status;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use futures_util::FutureExt;
use futures_util::future::ready;
use parking_lot::Mutex;
use porch_fn_admin::failures::Failure;
use porch_fn_admin::{HTML, JSON, Page};
use porch_fn_grpc_client::conn::Connection;
use porch_fn_ring::{Identity, Ring};

pub use self::answers::FailureInfo;
use self::ask::Asker;
use self::picture::Picture;
pub use self::shards::{ImageInfo, MAX_IMAGES, RingInfo, ShardInfo, Shards};
pub use self::status::{ImageStatus, RingStatus, ShardStatus, Status, Totals};

/// What the router knows at one moment.
#[derive(Debug)]
pub struct Known {
    /// The `/shards` page.
    pub shards: Shards,
    /// The ring. Its nodes are in the order of the runners in `shards`.
    pub ring: Arc<Ring>,
    /// The runners that can be asked what they hold.
    pub reachable: Vec<(Identity, Arc<Connection>)>,
    /// The router's own recent failures.
    pub failures: Vec<Failure>,
}

/// The pages for the admin port: `/`, `/status`, `/status.json` and `/shards`. `known` is called for each request.
pub fn pages(known: impl Fn() -> Known + Clone + Send + Sync + 'static) -> Vec<Page> {
    let html = |path| Page {
        path,
        content_type: HTML,
        policy: Some(html::policy()),
        content: Box::new(|_| ready(Ok(html::page())).boxed()),
    };
    let json = |path, content| Page { path, content_type: JSON, policy: None, content };
    // Strings and numbers only: serialising cannot fail.
    let text = |known: Known| serde_json::to_string_pretty(&known.shards).unwrap_or_default();
    let (cache, status) = (Arc::new(Cache::default()), known.clone());
    vec![
        html("/"),
        html("/status"),
        json(
            "/status.json",
            Box::new(move |_| {
                let (cache, known) = (Arc::clone(&cache), status.clone());
                async move { Ok(cache.status(known).await) }.boxed()
            }),
        ),
        json("/shards", Box::new(move |_| ready(Ok(text(known()))).boxed())),
    ]
}

/// What is too expensive to make for each viewer.
#[derive(Debug, Default)]
struct Cache {
    asker: Asker,
    /// Of the ring that it was drawn for.
    picture: Mutex<Option<(Arc<Ring>, Arc<Picture>)>>,
}

// === impl Cache ===

impl Cache {
    /// The data of this moment, as JSON.
    async fn status(&self, known: impl Fn() -> Known) -> String {
        let answers = self.asker.ask(known().reachable).await;
        // Asking takes up to seconds: what the router knows is taken after it.
        let known = known();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let at_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let picture = self.picture(&known.ring);
        // Strings and numbers only: serialising cannot fail.
        serde_json::to_string(&Status::of(known, &picture, &answers, at_ms)).unwrap_or_default()
    }

    fn picture(&self, ring: &Arc<Ring>) -> Arc<Picture> {
        let mut drawn = self.picture.lock();
        match &*drawn {
            Some((of, picture)) if Arc::ptr_eq(of, ring) => Arc::clone(picture),
            _ => {
                let picture = Arc::new(Picture::of(ring));
                *drawn = Some((Arc::clone(ring), Arc::clone(&picture)));
                picture
            }
        }
    }
}

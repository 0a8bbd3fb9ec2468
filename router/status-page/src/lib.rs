//! The router's pages: the status page for people, its data `/status.json` and `/image.json`,
//! `/shards`, and `/config`.
//!
//! The status page also displays what the runners and the other routers report. The router asks
//! them only while somebody has the page open. The page loads only its own files and data, and
//! changes nothing.

mod answers;
mod ask;
mod image;
mod notes;
mod peers;
mod picture;
mod recent;
mod shards;
mod status;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{join, ready};
use http::HeaderValue;
use porch_fn_admin::failures::{Failure, now_ms};
use porch_fn_admin::{HTML, JSON, Page};
use porch_fn_grpc_client::conn::Connection;
pub use porch_fn_numbers::Numbers;
use porch_fn_numbers::Recorded;
use porch_fn_ring::Ring;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;
use tokio::time::Instant;

use self::answers::Answers;
pub use self::answers::StartError;
use self::ask::{ask, ask_routers};
use self::image::Images;
pub use self::image::{ImageDetail, LastErrorDetail, PodDetail};
pub use self::peers::{Peers, RouterInfo};
use self::recent::recent;
pub use self::shards::{ImageInfo, MAX_IMAGES, RingInfo, ShardInfo, Shards};
pub use self::status::{ImageStatus, RingStatus, RouterStatus, ShardStatus, Status, Totals};

/// How long the status data is cached for all viewers.
const HOLDS: Duration = Duration::from_secs(2);
/// A page with more bytes is large (see [`recent`]): one of about 300 runners or 500 images.
const LARGE_TEXT: usize = 64 * 1024;
/// With more runners and images, the router's data is large.
const LARGE: usize = 500;

/// The query of `/status.json` with which a router asks another one for only its own data.
const OWN: &str = "own";

const PAGE: &str = include_str!("page.html");
const SCRIPT: &str = concat!(
    "\"use strict\";\n",
    include_str!("format.js"),
    include_str!("problems.js"),
    include_str!("spark.js"),
    include_str!("rows.js"),
    include_str!("ring.js"),
    include_str!("tables.js"),
    include_str!("detail.js"),
    include_str!("page.js")
);

/// The page's Content-Security-Policy: its own files and data, nothing else. Callers choose the
/// image names. If a browser parsed an image name as HTML, this policy would stop any script in it.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);

/// What the router knows at one moment.
#[derive(Debug)]
pub struct Known {
    /// The `/shards` page.
    pub shards: Shards,
    /// The ring. Its nodes are in the order of the runners in `shards`.
    pub ring: Arc<Ring>,
    /// The runners that can be asked for a report.
    pub reachable: Vec<(Arc<str>, Arc<Connection>)>,
    /// The router's own recent failures.
    pub failures: Vec<Failure>,
    /// This router and its peers.
    pub router: RouterInfo,
    /// The calls of the router. Only the status data has them: they are read under a lock that each
    /// call takes.
    pub recorded: Recordings,
}

/// The calls of a router.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Recordings {
    /// Calls by image. The empty name has the calls of all images without numbers of their own.
    pub by_image: BTreeMap<Arc<str>, Recorded>,
    /// Calls by the address of the runner that served them.
    pub by_runner: HashMap<String, Recorded>,
}

/// The data of the status page and its time. The lock is held while the runners are asked, so that
/// other viewers wait for the same data.
type Cache = Mutex<Option<(Instant, Bytes)>>;

/// The pages for the admin port. `known` is called for each request, and `recorded` for each that
/// needs the router's calls; large results are kept for a moment. `default_prefix` is
/// `--default-image-prefix`.
pub fn pages(
    known: impl Fn() -> Known + Clone + Send + Sync + 'static,
    recorded: impl Fn() -> Recordings + Clone + Send + Sync + 'static,
    default_prefix: String,
) -> Vec<Page> {
    let file = |path, content_type, policy, text: &'static str| Page {
        path,
        content_type,
        policy,
        content: Box::new(move |_| ready(Ok(text.into())).boxed()),
    };
    let json = |path, content| Page { path, content_type: JSON, policy: None, content };
    // Routers on one host have the same name.
    let instance: Arc<str> = format!("{:016x}", fastrand::u64(..)).into();
    let (status, calls, name) = (known.clone(), recorded.clone(), Arc::clone(&instance));
    let own = move || text(&own_status(Known { recorded: calls(), ..status() }, &name));
    let own = recent(own, |text| text.len() > LARGE_TEXT);
    let (cache, images, status) = (Arc::new(Cache::default()), Images::new(default_prefix), known.clone());
    let is_large = |known: &Arc<Known>| known.shards.shards.len() + known.shards.images.len() > LARGE;
    let known = Arc::new(recent(move || Arc::new(known()), is_large));
    let (configs, of_config, of_shards) = (Arc::clone(&images), Arc::clone(&known), Arc::clone(&known));
    vec![
        file("/", HTML, Some(POLICY), PAGE),
        file("/status", HTML, Some(POLICY), PAGE),
        file("/status.css", "text/css", None, include_str!("page.css")),
        file("/status.js", "text/javascript", None, SCRIPT),
        json(
            "/status.json",
            Box::new(move |query| {
                if query == OWN {
                    return ready(Ok(own())).boxed();
                }
                let (cache, known, recorded) = (Arc::clone(&cache), status.clone(), recorded.clone());
                let instance = Arc::clone(&instance);
                async move { Ok(status_json(&cache, known, recorded, &instance).await) }.boxed()
            }),
        ),
        json(
            "/image.json",
            Box::new(move |query: &str| {
                let (images, query, known) = (Arc::clone(&images), query.to_owned(), known());
                async move { images.detail(&query, &known).await }.boxed()
            }),
        ),
        json(
            "/config",
            Box::new(move |query: &str| {
                let (images, query, known) = (Arc::clone(&configs), query.to_owned(), of_config());
                async move { images.config(&query, &known).await }.boxed()
            }),
        ),
        json("/shards", Box::new(move |_| ready(Ok(shards(&of_shards()))).boxed())),
    ]
}

/// The JSON of `content`. Serialising strings, numbers and JSON values does not fail.
fn text(content: &impl Serialize) -> Bytes {
    serde_json::to_vec(content).unwrap_or_default().into()
}

fn shards(known: &Known) -> Bytes {
    // Serialising strings and numbers does not fail.
    serde_json::to_vec_pretty(&known.shards).unwrap_or_default().into()
}

/// What only this router knows. Asks nobody, so that routers do not ask each other in circles.
fn own_status(known: Known, instance: &str) -> Status {
    let recorded = Some(known.recorded.clone());
    let status = Status::of(known, &Answers::default(), now_ms());
    Status { instance: instance.to_owned(), recorded, ..status }
}

/// What all routers and runners know.
async fn status_json(
    cache: &Cache,
    known: impl Fn() -> Known,
    recorded: impl Fn() -> Recordings,
    instance: &str,
) -> Bytes {
    let mut last = cache.lock().await;
    if let Some((at, json)) = &*last
        && at.elapsed() < HOLDS
    {
        return json.clone();
    }
    let Known { reachable, router, .. } = known();
    let routers = router.peers.map(|peers| peers.addresses).unwrap_or_default();
    let (answers, routers) = join(ask(reachable), ask_routers(routers.to_vec())).await;
    // The runners may take seconds to answer, so the router's own data is read after that.
    let mut known = Known { recorded: recorded(), ..known() };
    let (routers, notes) = peers::join(&mut known, instance, routers);
    let mut status = Status::of(known, &answers, now_ms());
    (status.instance, status.routers) = (instance.to_owned(), routers);
    status.notes.extend(notes);
    let json = text(&status);
    *last = Some((Instant::now(), json.clone()));
    json
}

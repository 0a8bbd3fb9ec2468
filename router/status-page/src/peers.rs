//! Joins the data of several routers. Each router knows only its own calls; everything else on the
//! page is the same at all routers. No I/O.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use porch_fn_admin::failures::Failure;

use crate::answers::{MAX_OF_ONE, bounded};
use crate::shards::{ImageInfo, MAX_IMAGES};
use crate::status::RouterStatus;
use crate::{Known, Recordings, Status};

/// Maximum number of other routers that are asked.
pub(crate) const MAX_ROUTERS: usize = 64;
/// Maximum number of routers that a note names.
const MAX_NAMED: usize = 3;

/// Who this router is, and which others there are.
#[derive(Debug, Clone, Default)]
pub struct RouterInfo {
    /// The name of its pod or host.
    pub name: String,
    /// The address of its admin port.
    pub address: String,
    /// Number of routers with the same runners: `--router-count`.
    pub count: usize,
    /// The members of `--router-peers`; `None` without the flag.
    pub peers: Option<Peers>,
}

/// The routers that discovery has found, which may include this one.
#[derive(Debug, Clone, Default)]
pub struct Peers {
    /// Addresses of admin ports.
    pub addresses: Arc<[String]>,
    /// Discovery's last error.
    pub error: Option<String>,
}

/// The data of one router, or the reason why there is none.
pub(crate) type Answer = Result<Status, String>;

/// Adds the calls and failures of the other routers to `known`. Returns all routers, this one
/// first, and notes about the part that is missing. `instance` identifies this router among
/// `answers`, which are by address.
pub(crate) fn join(
    known: &mut Known,
    instance: &str,
    answers: Vec<(String, Answer)>,
) -> (Vec<RouterStatus>, Vec<String>) {
    let Some(peers) = known.router.peers.clone() else {
        return (Vec::new(), alone(known.router.count));
    };
    let mut own = RouterStatus {
        name: known.router.name.clone(),
        address: known.router.address.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        state: "included".to_owned(),
    };
    let mut others = Vec::new();
    let mut errors = Vec::new();
    // A router may have two addresses.
    let mut seen = HashSet::from([instance.to_owned()]);
    for (address, answer) in answers {
        let (peer, state) = match answer {
            Ok(peer) if peer.instance == instance => {
                own.address = address;
                continue;
            }
            Ok(peer) if peer.instance.is_empty() => (Some(peer), "older"),
            Ok(peer) if !seen.insert(peer.instance.clone()) => continue,
            Ok(peer) => (Some(peer), "included"),
            Err(error) => {
                errors.push(format!("{address}: {error}"));
                (None, "unreachable")
            }
        };
        let (name, version) =
            peer.as_ref().map(|peer| (bounded(&peer.router), bounded(&peer.version))).unwrap_or_default();
        if let Some(peer) = peer.filter(|_| state == "included") {
            add(known, &name, peer);
        }
        others.push(RouterStatus { name, address, version, state: state.to_owned() });
    }
    let unasked = peers.addresses.len().saturating_sub(MAX_ROUTERS);
    let mut notes = notes(&others, &errors, unasked, peers.error.as_deref());
    if peers.addresses.is_empty() && peers.error.is_none() {
        notes.push(
            "The numbers of calls are those of this router, because discovery finds no ready router, not even this \
             one. Check --router-peers."
                .to_owned(),
        );
    }
    let routers = std::iter::once(own).chain(others).collect();
    (routers, notes)
}

/// Adds what only the router `name` knows. Its runners that this router does not know are left out.
fn add(known: &mut Known, name: &str, peer: Status) {
    let mut shards: HashMap<_, _> =
        known.shards.shards.iter_mut().map(|shard| (shard.address.clone(), shard)).collect();
    for theirs in peer.shards {
        if let Some(shard) = shards.get_mut(&theirs.info.address) {
            shard.in_flight = shard.in_flight.saturating_add(theirs.info.in_flight);
            shard.calls = shard.calls.saturating_add(theirs.info.calls);
            shard.failures = shard.failures.saturating_add(theirs.info.failures);
        }
    }
    let mut places: HashMap<_, _> =
        known.shards.images.iter().enumerate().map(|(place, image)| (image.image.clone(), place)).collect();
    // The entry with the empty name has the calls of all other images, which `recorded` has too.
    let images = peer.images.into_iter().filter(|theirs| !theirs.info.image.is_empty());
    for theirs in images.take(MAX_IMAGES) {
        let (image, in_flight) = (bounded(&theirs.info.image), theirs.info.in_flight);
        let place = *places.entry(image).or_insert_with_key(|image| {
            let owner = known.ring.owner(image).map(ToString::to_string).unwrap_or_default();
            if let Some(shard) = shards.get_mut(&owner) {
                shard.owned += 1;
            }
            known.shards.images.push(ImageInfo { image: image.clone(), owner, in_flight: 0 });
            known.shards.images.len() - 1
        });
        let image = &mut known.shards.images[place];
        image.in_flight = image.in_flight.saturating_add(in_flight);
    }
    let Recordings { by_image, by_runner } = peer.recorded.unwrap_or_default();
    for (image, recorded) in by_image.into_iter().take(MAX_OF_ONE) {
        known.recorded.by_image.entry(bounded(&image).into()).or_default().merge(&recorded);
    }
    for (runner, recorded) in by_runner.into_iter().take(MAX_OF_ONE) {
        known.recorded.by_runner.entry(bounded(&runner)).or_default().merge(&recorded);
    }
    let failures = peer.failures.into_iter().take(MAX_OF_ONE).map(|failure| Failure {
        at_ms: failure.at_ms,
        count: failure.count,
        by: "router".to_owned(),
        router: name.to_owned(),
        shard: bounded(&failure.shard),
        image: bounded(&failure.image),
        code: bounded(&failure.code),
        text: bounded(&failure.text),
    });
    known.failures.extend(failures);
}

/// Without `--router-peers`, this router knows only that there are others.
fn alone(count: usize) -> Vec<String> {
    let note = format!(
        "The numbers of calls are those of this router, one of {count} (--router-count). Set --router-peers to see \
         all."
    );
    Vec::from_iter((count > 1).then_some(note))
}

fn notes(others: &[RouterStatus], errors: &[String], unasked: usize, discovery: Option<&str>) -> Vec<String> {
    let mut notes = Vec::new();
    let total = 1 + others.len() + unasked;
    let included = 1 + others.iter().filter(|router| router.state == "included").count();
    let part = format!("The numbers of calls are those of {included} of {total} routers");
    if !errors.is_empty() {
        let named = errors.iter().take(MAX_NAMED).map(String::as_str).collect::<Vec<_>>().join("; ");
        let more = errors.len().saturating_sub(MAX_NAMED);
        let more = if more > 0 { format!("; and {more} more") } else { String::new() };
        notes.push(format!(
            "{part}, because routers do not answer ({named}{more}). Check that these pods run and are not older than \
             0.2.0, that --router-peers has the port of --admin-port, and that NetworkPolicies let routers reach it."
        ));
    }
    let older: Vec<_> = others.iter().filter(|router| router.state == "older").collect();
    if let Some(first) = older.first() {
        let their =
            if older.len() == 1 { "1 router is".to_owned() } else { format!("{} routers are", older.len()) };
        notes.push(format!(
            "{part}, because {their} of an older version, such as {} at {}. Upgrade them.",
            if first.version.is_empty() { "one" } else { &first.version },
            first.address,
        ));
    }
    if unasked > 0 {
        notes.push(format!(
            "{part}, because at most {MAX_ROUTERS} others are asked. Add up the metrics instead."
        ));
    }
    if let Some(error) = discovery {
        notes.push(format!("Routers may be missing: {error}. Check --router-peers."));
    }
    notes
}

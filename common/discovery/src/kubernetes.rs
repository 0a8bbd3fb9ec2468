//! Finds a Service's endpoints by watching its EndpointSlices.
//!
//! Each change publishes the whole set. Every few minutes the watcher lists all objects again, in
//! case the watch missed a change. If the Role does not allow EndpointSlices, the watcher follows
//! the older `Endpoints` object: the Role of Porch's own runner allows only that.

mod endpoints;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Service;
use kube::api::ListParams;
use kube::{Api, Client, Resource, ResourceExt};
use porch_fn_kubernetes::{Change, FollowError, Follower, TIMEOUT, bounded};
use porch_fn_telemetry::Causes;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, sleep_until};

use self::endpoints::{Candidate, endpoints_of, of_endpoints, of_slice};
use crate::publish::Publisher;

/// Maximum time until all objects are listed again. The actual time is up to a fifth shorter, at
/// random, so that processes do not list at the same moment.
const RESYNC: Duration = Duration::from_mins(5);

/// After a failure, discovery counts as working again if a list succeeds and no error occurs within
/// this time. A watch request without an answer has failed by then: its [`TIMEOUT`] is shorter.
const LIVED: Duration = Duration::from_secs(12);

const RIGHTS: &str =
    "grant this process's account get, list and watch on endpointslices.discovery.k8s.io in namespace";

/// Publishes the endpoints of the Service `name` until the future is dropped. Each endpoint gets
/// `port`; the Service's own ports are ignored.
pub(super) async fn follow(namespace: String, name: String, port: u16, client: Client, publisher: Publisher) {
    let proven = BTreeSet::new();
    let mut watcher = Watcher { namespace, name, port, client, publisher, proven, warned: false };
    loop {
        // Boxed, because the client's futures are large.
        if let Err(error) = watcher.round().boxed().await {
            let text = match error.code() {
                Some(403) => format!("reading endpoints is forbidden: {RIGHTS} {}", watcher.namespace),
                _ => Causes(&error).to_string(),
            };
            sleep(watcher.publisher.record_failure(&text)).await;
        }
    }
}

struct Watcher {
    namespace: String,
    name: String,
    port: u16,
    client: Client,
    publisher: Publisher,
    /// Addresses that have been ready before and are still listed.
    proven: BTreeSet<IpAddr>,
    /// Whether the warning about forbidden EndpointSlices was logged.
    warned: bool,
}

impl Watcher {
    /// Follows the endpoints until it is time to list again. Each round tries EndpointSlices first,
    /// because somebody may have granted the rights meanwhile.
    async fn round(&mut self) -> Result<(), FollowError> {
        let slices = ListParams::default().labels(&format!("kubernetes.io/service-name={}", self.name));
        match self.follow(slices, of_slice).await {
            Err(error) if error.code() == Some(403) => {}
            ended => {
                self.warned = false;
                return ended;
            }
        }
        if !std::mem::replace(&mut self.warned, true) {
            let (discovery, namespace) = (&*self.publisher.label, &self.namespace);
            tracing::warn!(
                discovery,
                "EndpointSlices are forbidden, reading the Endpoints object instead: {RIGHTS} {namespace}"
            );
        }
        let endpoints = ListParams::default().fields(&format!("metadata.name={}", self.name));
        self.follow(endpoints, of_endpoints).await
    }

    /// Lists the selected objects of one kind, and follows them until it is time to list again.
    async fn follow<K>(
        &mut self,
        selection: ListParams,
        candidates_of: fn(&K) -> Vec<Candidate>,
    ) -> Result<(), FollowError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: Clone + DeserializeOwned + fmt::Debug + Send + 'static,
    {
        let resync = Instant::now() + RESYNC.mul_f64(1.0 - 0.2 * fastrand::f64());
        let api: Api<K> = Api::namespaced(self.client.clone(), &self.namespace);
        let mut follower = Follower::new(api, selection, TIMEOUT, |_| ());
        let mut known = BTreeMap::new();
        let (mut hint, mut works_at) = (None, resync);
        loop {
            let change = tokio::select! {
                change = follower.next() => change?,
                () = sleep_until(works_at), if self.publisher.failing.is_some() => {
                    self.publisher.record_success(hint.clone());
                    continue;
                }
                () = sleep_until(resync) => return Ok(()),
            };
            match change {
                Change::Listed(objects) => {
                    known = objects.iter().map(|object| (object.name_any(), candidates_of(object))).collect();
                    works_at = Instant::now() + LIVED;
                }
                Change::Applied(object) => drop(known.insert(object.name_any(), candidates_of(&object))),
                Change::Deleted(object) => drop(known.remove(&object.name_any())),
                // The follower lists again. Expiry is normal and not a failure.
                Change::Expired => continue,
            }
            let candidates: Vec<_> = known.values().flatten().copied().collect();
            self.publisher.publish(endpoints_of(&candidates, self.port, &mut self.proven));
            hint = if known.is_empty() { self.missing().await } else { None };
            // After a failure, a list does not prove that watches work.
            if self.publisher.failing.is_none() {
                self.publisher.record_success(hint.clone());
            }
        }
    }

    /// Returns a hint if the Service does not exist. An empty list of slices does not prove this: a
    /// Service may have no pods. `None`: the Service exists, or the request failed.
    async fn missing(&self) -> Option<Arc<str>> {
        let Self { namespace, name, .. } = self;
        let services: Api<Service> = Api::namespaced(self.client.clone(), namespace);
        let None = bounded(services.get_opt(name)).await.ok()? else { return None };
        let hint = format!(
            "there is no Service {name:?} in namespace {namespace:?}; create it or correct the target"
        );
        Some(hint.into())
    }
}

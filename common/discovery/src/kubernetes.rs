//! A Service's endpoints, by watching its EndpointSlices.
//!
//! Any change publishes the whole set. After some minutes all is listed again, so that a missed
//! change is repaired soon. Without rights to EndpointSlices, `endpoints` are followed, the older kind
//! of object: an older Role has rights to those alone.

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
use k8s_openapi::api::core::v1::{Endpoints, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, sleep_until};

use self::endpoints::{Candidate, endpoints_of, of_endpoints, of_slice, remember_ready};
use super::publish::Publisher;
use porch_fn_kubernetes::{Change, FollowError, Follower, Page, Selection, TIMEOUT, bounded};
use porch_fn_telemetry::Causes;

/// All is listed again after this time at the latest, and at the earliest a fifth sooner: not by all at once.
const RESYNC: Duration = Duration::from_mins(5);

/// A watch that lived for so long after a failure works.
const LIVED: Duration = Duration::from_secs(5);

/// A Service whose pods are the endpoints.
#[derive(Debug, Clone)]
pub(super) struct ServiceRef {
    pub(super) namespace: String,
    pub(super) name: String,
    /// Of the endpoints; the Service's own ports do not count.
    pub(super) port: u16,
}

/// Follows a Service's endpoints for ever.
pub(super) async fn follow(service: ServiceRef, client: Client, publisher: Publisher) {
    let mut watcher = Watcher { service, client, publisher, proven: BTreeSet::new(), told_of_slices: false };
    loop {
        // Boxed, since the client's futures are large.
        if let Err(failure) = watcher.round().boxed().await {
            sleep(watcher.publisher.failed(&failure)).await;
        }
    }
}

struct Watcher {
    service: ServiceRef,
    client: Client,
    publisher: Publisher,
    /// Addresses that were ready at some time and are still listed.
    proven: BTreeSet<IpAddr>,
    /// Whether the log says that EndpointSlices may not be seen.
    told_of_slices: bool,
}

/// Why it is not known what the endpoints are.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(
        "the API server forbids it: grant this process's account get, list and watch on {} in namespace {namespace}",
        EndpointSlice::RESOURCE
    )]
    Forbidden { namespace: String },
    #[error("{}", Causes(.0))]
    Follow(#[from] FollowError),
}

/// A kind of object that has endpoints.
trait HasEndpoints:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + DeserializeOwned
    + fmt::Debug
    + Send
    + 'static
{
    /// As rights name it.
    const RESOURCE: &'static str;

    /// The objects of a Service.
    fn selection(service: &str) -> Selection;

    fn candidates(&self) -> Vec<Candidate>;
}

// === impl HasEndpoints ===

impl HasEndpoints for EndpointSlice {
    const RESOURCE: &'static str = "endpointslices.discovery.k8s.io";

    fn selection(service: &str) -> Selection {
        Selection { labels: Some(format!("kubernetes.io/service-name={service}")), fields: None }
    }

    fn candidates(&self) -> Vec<Candidate> {
        of_slice(self)
    }
}

impl HasEndpoints for Endpoints {
    const RESOURCE: &'static str = "endpoints";

    fn selection(service: &str) -> Selection {
        Selection { labels: None, fields: Some(format!("metadata.name={service}")) }
    }

    fn candidates(&self) -> Vec<Candidate> {
        of_endpoints(self)
    }
}

// === impl Failure ===

impl Failure {
    fn is_forbidden(&self) -> bool {
        matches!(self, Self::Follow(error) if error.code() == Some(403))
    }
}

// === impl Watcher ===

impl Watcher {
    /// Until it is time to list again. What may not be seen is tried each time: rights are given later, too.
    async fn round(&mut self) -> Result<(), Failure> {
        match self.look::<EndpointSlice>().await {
            Err(failure) if failure.is_forbidden() => {}
            ended => {
                self.told_of_slices = false;
                return ended;
            }
        }
        let namespace = self.service.namespace.clone();
        if !std::mem::replace(&mut self.told_of_slices, true) {
            tracing::warn!(
                discovery = self.publisher.label(),
                "EndpointSlices may not be seen, trying endpoints instead: grant this process's account get, list and watch \
                 on {} in namespace {namespace}",
                EndpointSlice::RESOURCE
            );
        }
        match self.look::<Endpoints>().await {
            Err(failure) if failure.is_forbidden() => Err(Failure::Forbidden { namespace }),
            ended => ended,
        }
    }

    /// Lists objects of one kind, and follows them until it is time to list again.
    async fn look<K: HasEndpoints>(&mut self) -> Result<(), Failure> {
        let resync = Instant::now() + RESYNC.mul_f64(1.0 - 0.2 * fastrand::f64());
        let api: Api<K> = Api::namespaced(self.client.clone(), &self.service.namespace);
        let page = Page { limit: None, timeout: TIMEOUT };
        let mut follower = Follower::new(api, K::selection(&self.service.name), page, |_| ());
        let mut known = BTreeMap::new();
        let (mut hint, mut check) = (None, resync);
        loop {
            let change = tokio::select! {
                change = follower.next() => change?,
                () = sleep_until(check), if self.publisher.is_failing() => {
                    if follower.is_watching() {
                        self.publisher.works(hint.clone());
                    }
                    check = Instant::now() + LIVED;
                    continue;
                }
                () = sleep_until(resync) => return Ok(()),
            };
            match change {
                Change::Listed(objects) => {
                    known = objects.iter().map(|object| (object.name_any(), object.candidates())).collect();
                    check = Instant::now() + LIVED;
                }
                Change::Applied(object) => drop(known.insert(object.name_any(), object.candidates())),
                Change::Deleted(object) => drop(known.remove(&object.name_any())),
            }
            hint = self.show(&known).await;
        }
    }

    /// Publishes what is known. Returns why there is nothing, if that is clear.
    async fn show(&mut self, known: &BTreeMap<String, Vec<Candidate>>) -> Option<Arc<str>> {
        let candidates = known.values().flatten();
        remember_ready(&mut self.proven, &candidates);
        self.publisher.publish(endpoints_of(&candidates, self.service.port, &self.proven));
        let hint = if known.is_empty() { self.missing().await } else { None };
        // After a failure, a list alone does not say that all is well.
        if !self.publisher.is_failing() {
            self.publisher.works(hint.clone());
        }
        hint
    }

    /// What to say if there is no such Service, which looks like one without endpoints. Nothing if that is not known.
    async fn missing(&self) -> Option<Arc<str>> {
        let ServiceRef { namespace, name, .. } = &self.service;
        let services: Api<Service> = Api::namespaced(self.client.clone(), namespace);
        let service = bounded(services.get_opt(name)).await.ok()?;
        service.is_none().then(|| {
            format!(
                "there is no Service {name:?} in namespace {namespace:?}; create it or correct the target"
            )
            .into()
        })
    }
}

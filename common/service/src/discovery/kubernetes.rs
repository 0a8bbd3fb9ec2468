//! A Service's endpoints, by watching its EndpointSlices.
//!
//! Any change publishes the whole set, and after some minutes all is listed again, so that nothing that was missed stays
//! so for long. Where EndpointSlices may not be seen, `endpoints` are taken instead, the older kind of object: a Role
//! from before may have rights to those alone.

mod endpoints;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Endpoints, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, sleep_until};

use self::endpoints::{Candidate, endpoints_of, of_endpoints, of_slice, remember_ready};
use super::publish::Publisher;
use crate::kubernetes::{Causes, READ_TIMEOUT, RequestError, WATCH_SECONDS, bounded};

/// All is listed again after this time at the latest, and at the earliest a fifth sooner: not by all at once.
const RESYNC: Duration = Duration::from_mins(5);

/// A watch that lived for so long after a failure works.
const LIVED: Duration = Duration::from_secs(5);

/// From the begin of one watch request to the next, at least: one that ends at once must not become a flood.
const BETWEEN_WATCHES: Duration = Duration::from_secs(1);

/// "Gone": the version to begin from is no longer kept.
const EXPIRED: u16 = 410;

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
    Request(#[from] RequestError),
    #[error("a watch went silent: check the network to the API server")]
    Silent,
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

    /// Label and field selectors for those of a Service.
    fn selectors(service: &str) -> (Option<String>, Option<String>);

    fn candidates(&self) -> Vec<Candidate>;
}

/// All has to be listed again, which is in the nature of watches and no failure.
async fn relist_at(time: Instant) -> Result<(), Failure> {
    sleep_until(time).await;
    Ok(())
}

// === impl HasEndpoints ===

impl HasEndpoints for EndpointSlice {
    const RESOURCE: &'static str = "endpointslices.discovery.k8s.io";

    fn selectors(service: &str) -> (Option<String>, Option<String>) {
        (Some(format!("kubernetes.io/service-name={service}")), None)
    }

    fn candidates(&self) -> Vec<Candidate> {
        of_slice(self)
    }
}

impl HasEndpoints for Endpoints {
    const RESOURCE: &'static str = "endpoints";

    fn selectors(service: &str) -> (Option<String>, Option<String>) {
        (None, Some(format!("metadata.name={service}")))
    }

    fn candidates(&self) -> Vec<Candidate> {
        of_endpoints(self)
    }
}

// === impl Failure ===

impl Failure {
    fn is_forbidden(&self) -> bool {
        matches!(self, Self::Request(error) if error.code() == Some(403))
    }
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        RequestError::from(error).into()
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
        let (label_selector, field_selector) = K::selectors(&self.service.name);
        let all = ListParams {
            label_selector: label_selector.clone(),
            field_selector: field_selector.clone(),
            ..ListParams::default()
        };
        let changes = WatchParams {
            label_selector,
            field_selector,
            timeout: Some(WATCH_SECONDS),
            ..WatchParams::default()
        };

        let list = bounded(api.list(&all)).await?;
        let mut version = list.metadata.resource_version.unwrap_or_default();
        let mut known: BTreeMap<_, _> =
            list.items.iter().map(|object| (object.name_any(), object.candidates())).collect();
        let mut hint = self.show(&known).await;

        let mut lived = None;
        loop {
            let opened = Instant::now();
            let next = (opened + BETWEEN_WATCHES).min(resync);
            let mut events = match bounded(api.watch(&changes, &version)).await {
                Err(error) if error.code() == Some(EXPIRED) => return relist_at(next).await,
                events => pin!(events?),
            };
            let lived = *lived.get_or_insert_with(|| Instant::now() + LIVED);
            loop {
                let event = tokio::select! {
                    event = events.next() => event,
                    () = sleep_until(lived), if self.publisher.is_failing() => {
                        self.publisher.works(hint.clone());
                        continue;
                    }
                    () = sleep_until(resync) => return Ok(()),
                    () = sleep_until(opened + READ_TIMEOUT) => return Err(Failure::Silent),
                };
                match event {
                    Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object))) => {
                        version = object.resource_version().unwrap_or_default();
                        known.insert(object.name_any(), object.candidates());
                        hint = self.show(&known).await;
                    }
                    Some(Ok(WatchEvent::Deleted(object))) => {
                        version = object.resource_version().unwrap_or_default();
                        known.remove(&object.name_any());
                        hint = self.show(&known).await;
                    }
                    Some(Ok(WatchEvent::Bookmark(bookmark))) => version = bookmark.metadata.resource_version,
                    Some(Ok(WatchEvent::Error(status))) if status.code == EXPIRED => {
                        return relist_at(next).await;
                    }
                    Some(Ok(WatchEvent::Error(status))) => return Err(kube::Error::Api(status).into()),
                    Some(Err(error)) => return Err(error.into()),
                    // Its time was over.
                    None => break,
                }
            }
            sleep_until(next).await;
            if next == resync {
                return Ok(());
            }
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

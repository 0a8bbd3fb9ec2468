//! The last reported state of the Services of function pods.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::Service;
use porch_fn_pool::Uid;

use super::{Store, is_older};

/// A Service that a runner manages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::pods::kubernetes) struct KnownService {
    pub(in crate::pods::kubernetes) uid: String,
    /// The pod that the Service belongs to; `None` if it has no owner or is being deleted.
    owner: Option<Uid>,
    resource_version: String,
    ip: Option<IpAddr>,
    /// The Service has no cluster IP: its DNS name resolves to the pod's address.
    headless: bool,
}

impl Store {
    pub(in crate::pods::kubernetes) fn record_service(&self, service: &Service) {
        let Some((name, seen)) = known_service(service) else { return };
        let services = &mut self.state.lock().services;
        let newer = |known: &KnownService| is_older(&seen.resource_version, &known.resource_version);
        if !services.get(&name).is_some_and(newer) {
            services.insert(name, seen);
        }
    }

    /// Removes a deleted Service. The watch may not have reported the deletion yet.
    pub(in crate::pods::kubernetes) fn remove_service(&self, name: &str, uid: &str) {
        let services = &mut self.state.lock().services;
        if services.get(name).is_some_and(|known| known.uid == uid) {
            services.remove(name);
        }
    }

    /// Replaces all Services by the full list. This forgets a Service that is newer than the list,
    /// but the watch reports that Service again.
    pub(in crate::pods::kubernetes) fn replace_services(&self, services: &[Service]) {
        self.state.lock().services = services.iter().filter_map(known_service).collect();
        self.services_listed.send_replace(true);
    }

    /// Waits for the first list.
    pub(in crate::pods::kubernetes) async fn services_known(&self) {
        // This cannot fail: `self` owns the sender.
        let _ = self.services_listed.subscribe().wait_for(|listed| *listed).await;
    }

    /// The Service of this name.
    pub(in crate::pods::kubernetes) fn service(&self, name: &str) -> Option<KnownService> {
        self.state.lock().services.get(name).cloned()
    }
}

impl KnownService {
    /// Whether the Service belongs to this pod, and not to an earlier pod with the same name.
    pub(in crate::pods::kubernetes) fn belongs_to(&self, uid: &Uid) -> bool {
        self.owner.as_ref() == Some(uid)
    }

    /// The address to dial for the pod with the address `pod`.
    pub(super) fn address(&self, pod: IpAddr) -> Option<IpAddr> {
        if self.headless { Some(pod) } else { self.ip }
    }
}

fn known_service(service: &Service) -> Option<(String, KnownService)> {
    let metadata = &service.metadata;
    let owner = metadata.owner_references.iter().flatten().find(|owner| owner.kind == "Pod");
    let is_terminating = metadata.deletion_timestamp.is_some();
    let ip = service.spec.as_ref().and_then(|spec| spec.cluster_ip.as_deref());
    let known = KnownService {
        uid: metadata.uid.clone()?,
        owner: owner.filter(|_| !is_terminating).map(|owner| Uid::from(owner.uid.as_str())),
        resource_version: metadata.resource_version.clone()?,
        ip: ip.and_then(|ip| ip.parse().ok()),
        headless: ip == Some("None"),
    };
    Some((metadata.name.clone()?, known))
}

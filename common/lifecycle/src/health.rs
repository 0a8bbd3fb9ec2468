//! gRPC health (`grpc.health.v1`) of a server and of the names that it reports.
//!
//! tonic-health ends the `Watch` stream of an unknown name. The protocol requires that the stream
//! stays open with `SERVICE_UNKNOWN`, for example for a runner that the router does not know yet.
//! So this module implements the service, with tonic-health's generated types.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::{Stream, stream};
use tokio::sync::watch;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health as HealthService;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

/// The name of the whole server. Probes ask for it.
pub const SERVER: &str = "";

/// The health of this process and of the parts that it reports by name. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Health {
    state: Arc<watch::Sender<State>>,
}

#[derive(Debug, Default)]
struct State {
    serving: BTreeMap<String, bool>,
    /// Draining has begun. The whole server stays `NOT_SERVING`, even if it is set to serving.
    stopping: bool,
    /// All `Watch` streams have ended, so that their connections can close.
    closed: bool,
}

impl Health {
    /// The whole server is `NOT_SERVING` until [`set`](Self::set) changes it.
    pub fn new() -> Self {
        let serving = BTreeMap::from([(SERVER.to_owned(), false)]);
        Self { state: Arc::new(watch::Sender::new(State { serving, ..State::default() })) }
    }

    /// Sets the health of `name`, and sends it to its watchers if it changed.
    pub fn set(&self, name: &str, serving: bool) {
        self.state.send_if_modified(|state| {
            let serving = serving && !(name == SERVER && state.stopping);
            if state.serving.get(name) == Some(&serving) {
                return false;
            }
            state.serving.insert(name.to_owned(), serving);
            true
        });
    }

    /// Removes `name`: its watchers get `SERVICE_UNKNOWN`.
    pub fn remove(&self, name: &str) {
        self.state.send_if_modified(|state| state.serving.remove(name).is_some());
    }

    /// Sets the whole server to `NOT_SERVING` permanently. The first step of a drain.
    pub fn stop(&self) {
        self.state.send_modify(|state| {
            state.stopping = true;
            state.serving.insert(SERVER.to_owned(), false);
        });
    }

    /// Ends all `Watch` streams. Call it when the server stops accepting.
    pub fn close(&self) {
        self.state.send_modify(|state| state.closed = true);
    }

    /// Whether the server as a whole is SERVING.
    pub fn is_serving(&self) -> bool {
        self.state.borrow().serving.get(SERVER) == Some(&true)
    }
}

impl Default for Health {
    fn default() -> Self {
        Self::new()
    }
}

impl State {
    fn status(&self, name: &str) -> ServingStatus {
        match self.serving.get(name) {
            Some(true) => ServingStatus::Serving,
            Some(false) => ServingStatus::NotServing,
            None => ServingStatus::ServiceUnknown,
        }
    }
}

fn answer(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

#[tonic::async_trait]
impl HealthService for Health {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        match self.state.borrow().status(&request.get_ref().service) {
            ServingStatus::ServiceUnknown => Err(Status::not_found(
                "unknown service; ask for \"\" (the server) or, on the router, for shard/<address>",
            )),
            status => Ok(Response::new(answer(status))),
        }
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let name = request.into_inner().service;
        let receiver = self.state.subscribe();
        let stream = stream::unfold((receiver, None), move |(mut receiver, last)| {
            let name = name.clone();
            async move {
                let status = receiver
                    .wait_for(|state| state.closed || Some(state.status(&name)) != last)
                    .await
                    .ok()
                    .and_then(|state| (Some(state.status(&name)) != last).then(|| state.status(&name)))?;
                Some((Ok(answer(status)), (receiver, Some(status))))
            }
        });
        Ok(Response::new(Box::pin(stream)))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt, StreamExt};

    use super::*;

    async fn watch(health: &Health, name: &str) -> impl Stream<Item = ServingStatus> + use<> {
        let request = Request::new(HealthCheckRequest { service: name.to_owned() });
        let stream = HealthService::watch(health, request).await.unwrap().into_inner();
        stream.map(|item| item.unwrap().status())
    }

    #[tokio::test]
    async fn watchers_get_each_change_of_their_name_until_a_drain_ends_the_streams() {
        let health = Health::new();
        assert!(!health.is_serving());
        let mut seen = watch(&health, "shard/x").await;
        assert_eq!(seen.next().await, Some(ServingStatus::ServiceUnknown));
        health.set("shard/x", true);
        assert_eq!(seen.next().await, Some(ServingStatus::Serving));
        health.set("", true);
        assert!(seen.next().now_or_never().is_none(), "changes of other names are not sent");
        health.remove("shard/x");
        assert_eq!(seen.next().await, Some(ServingStatus::ServiceUnknown));

        let mut seen = watch(&health, "").await;
        assert_eq!(seen.next().await, Some(ServingStatus::Serving));
        health.stop();
        assert_eq!(seen.next().await, Some(ServingStatus::NotServing));
        health.set("", true);
        assert!(!health.is_serving(), "a draining server stays NOT_SERVING");
        assert!(seen.next().now_or_never().is_none());
        health.close();
        assert_eq!(seen.next().await, None);
    }
}

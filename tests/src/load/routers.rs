//! Callers that have more than one router to choose from, as behind a Service: a connection stays with its router until
//! that hangs up, and the next one goes to a router that takes part then.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use bytes::Bytes;
use porch_fn_grpc_client::unary::CallError;

use crate::client::{Answer, Client};

/// The routers that take part, as a Service has its endpoints. Clones share them.
#[derive(Debug, Clone)]
pub struct Routers(Arc<RwLock<Vec<SocketAddr>>>);

#[derive(Debug)]
pub(super) struct Line {
    routers: Routers,
    number: usize,
    current: Mutex<(SocketAddr, Arc<Client>)>,
}

// === impl Routers ===

impl Routers {
    pub fn new(addresses: impl IntoIterator<Item = SocketAddr>) -> Self {
        Self(Arc::new(RwLock::new(addresses.into_iter().collect())))
    }

    /// These from now on. Connections to others go on until they are hung up.
    pub fn set(&self, addresses: impl IntoIterator<Item = SocketAddr>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = addresses.into_iter().collect();
    }

    pub fn now(&self) -> Vec<SocketAddr> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

// === impl Line ===

impl Line {
    /// The `number`th of all connections, which spread over the routers.
    pub(super) fn new(routers: Routers, number: usize) -> Self {
        let addresses = routers.now();
        let address = addresses[number % addresses.len()];
        let client = Arc::new(Client::new(address));
        Self { routers, number, current: Mutex::new((address, client)) }
    }

    /// Calls `image`, without a deadline. What was not sent, since the router hung up, is sent to another, as gRPC's
    /// clients do.
    pub(super) async fn call(&self, image: &str, input: Bytes) -> Result<Answer, CallError> {
        let mut left = self.routers.now().len();
        loop {
            let (address, client) = self.current.lock().unwrap_or_else(PoisonError::into_inner).clone();
            match client.try_call(image, input.clone(), None).await {
                Err(CallError::Connect(_) | CallError::NotSent) if left > 0 => {
                    left -= 1;
                    self.leave(address);
                }
                ended => return ended,
            }
        }
    }

    /// Chooses another router than this one, if there is another, unless somebody else has done so.
    fn leave(&self, address: SocketAddr) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let mut others = self.routers.now();
        if others.len() > 1 {
            others.retain(|&other| other != address);
        }
        if current.0 == address && !others.is_empty() {
            let next = others[self.number % others.len()];
            *current = (next, Arc::new(Client::new(next)));
        }
    }
}

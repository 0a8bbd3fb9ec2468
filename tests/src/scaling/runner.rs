//! One runner, and whether it takes part.

use std::net::{IpAddr, SocketAddr};

use serde_json::{Value, json};

use super::{Host, PORT};
use crate::process::Server;

/// Whether a runner takes part, in the `EndpointSlice`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listed {
    /// It exists but is not ready: down, or starting.
    NotReady,
    Ready,
    Terminating,
}

#[derive(Debug)]
pub struct Runner {
    pub server: Server,
    pub host: Host,
    /// Whether it takes part. What was changed counts after [`Tier::publish`](super::Tier::publish).
    pub listed: Listed,
}

// === impl Runner ===

impl Runner {
    pub fn name(&self) -> String {
        SocketAddr::new(IpAddr::V4(self.host.address()), PORT).to_string()
    }

    /// Its entry in the `EndpointSlice`.
    pub(super) fn endpoint(&self) -> Value {
        let (ready, serving, terminating) = match self.listed {
            Listed::NotReady => (false, false, false),
            Listed::Ready => (true, true, false),
            Listed::Terminating => (false, true, true),
        };
        let conditions = json!({"ready": ready, "serving": serving, "terminating": terminating});
        json!({"addresses": [self.host.address()], "conditions": conditions})
    }
}

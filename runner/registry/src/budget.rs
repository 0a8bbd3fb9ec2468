//! Bounds what all lookups hold in memory together: few may hold much at once, so that many may hold little.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::RegistryError;

/// What every lookup may hold.
const LITTLE: usize = 256 << 10;

/// One lookup's part.
#[derive(Debug)]
pub(crate) struct Budget {
    large: Arc<Semaphore>,
    held: Option<OwnedSemaphorePermit>,
}

impl Budget {
    /// `large` has a permit for each lookup that may hold much.
    pub(crate) fn new(large: Arc<Semaphore>) -> Self {
        Self { large, held: None }
    }

    /// Waits until the lookup may hold so much.
    pub(crate) async fn hold(&mut self, bytes: usize) -> Result<(), RegistryError> {
        if bytes > LITTLE && self.held.is_none() {
            let permit = Arc::clone(&self.large).acquire_owned().await;
            // Nothing closes the semaphore.
            self.held = Some(permit.map_err(|_| RegistryError::Unreachable)?);
        }
        Ok(())
    }
}

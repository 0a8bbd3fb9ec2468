//! The images that can have local pods: those with a command, and with sandboxes all others.

use std::future::pending;

use porch_fn_image::{Constraint, Image};
use porch_fn_pool::{ImageKey, PodRecipe};
use porch_fn_registry::ResolveError;
use tokio::sync::broadcast;
use tonic::async_trait;

use super::LocalCluster;
use crate::pods::backend::Catalog;
use crate::pods::configure::{OriginOf, Origins, next_image};
use crate::settings::CurrentSettings;

/// The configuration of all sandboxes. Its own flags change only with the process.
const VERSION: &str = "sandbox";

/// Knows which images can have local pods, and what their pods are made of.
#[derive(Debug)]
pub(crate) struct LocalImages {
    cluster: LocalCluster,
    changes: Option<broadcast::Receiver<ImageKey>>,
}

// === impl LocalImages ===

impl LocalImages {
    pub(crate) fn new(cluster: &LocalCluster) -> Self {
        let changes = cluster.sandboxes().map(|sandboxes| sandboxes.changes());
        Self { cluster: cluster.clone(), changes }
    }
}

#[async_trait]
impl Catalog for LocalImages {
    /// With sandboxes, only the creation of a pod shows whether an image exists.
    fn knows(&self, image: &Image) -> bool {
        self.cluster.sandboxes().is_some() || self.cluster.functions().knows(image)
    }

    fn listed(&self) -> Option<Vec<&str>> {
        self.cluster.sandboxes().is_none().then(|| self.cluster.functions().images())
    }

    async fn resolve(&self, image: &Image, constraint: &Constraint) -> Result<Image, ResolveError> {
        match (self.cluster.functions().highest(image, constraint), self.cluster.sandboxes()) {
            (Some(listed), _) => Ok(listed),
            (None, Some(sandboxes)) => sandboxes.resolve(image, constraint).await,
            (None, None) => Err(ResolveError::NoMatch),
        }
    }
}

impl Origins for LocalImages {
    fn origins(&mut self, _: &CurrentSettings) -> OriginOf {
        let cluster = self.cluster.clone();
        Box::new(move |image| {
            let recipe = cluster.functions().recipe(image);
            recipe.or_else(|| {
                let content = cluster.sandboxes()?.content(image);
                Some(PodRecipe { content, ..PodRecipe::of(VERSION, None) })
            })
        })
    }

    async fn changed(&mut self) -> Option<ImageKey> {
        match &mut self.changes {
            None => pending().await,
            Some(changes) => next_image(changes).await,
        }
    }
}

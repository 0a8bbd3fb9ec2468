//! The images that can have local pods: those with a command, and with sandboxes all others.

use std::future::pending;
use std::sync::Arc;

use porch_fn_image::{Constraint, Image};
use porch_fn_pool::{ImageKey, PodRecipe};
use porch_fn_registry::ResolveError;
use tokio::sync::broadcast;
use tonic::async_trait;

use super::{LocalCluster, Sandboxes};
use crate::pods::backend::Catalog;
use crate::pods::commands::ImageCommands;
use crate::pods::configure::{OriginOf, Origins, next_image};
use crate::settings::CurrentSettings;

/// The configuration of all sandboxes. Its own flags change only with the process.
const VERSION: &str = "sandbox";

/// Knows which images can have local pods, and what their pods are made of.
#[derive(Debug)]
pub(crate) struct LocalImages {
    commands: ImageCommands,
    sandboxes: Option<Arc<dyn Sandboxes>>,
    changes: Option<broadcast::Receiver<ImageKey>>,
}

// === impl LocalImages ===

impl LocalImages {
    pub(crate) fn new(cluster: &LocalCluster) -> Self {
        let sandboxes = cluster.sandboxes().cloned();
        let changes = sandboxes.as_deref().map(Sandboxes::changes);
        Self { commands: cluster.functions().clone(), sandboxes, changes }
    }
}

#[async_trait]
impl Catalog for LocalImages {
    /// With sandboxes, only the creation of a pod shows whether an image exists.
    fn knows(&self, image: &Image) -> bool {
        self.sandboxes.is_some() || self.commands.knows(image)
    }

    fn listed(&self) -> Option<Vec<&str>> {
        self.sandboxes.is_none().then(|| self.commands.images())
    }

    async fn resolve(&self, image: &Image, constraint: &Constraint) -> Result<Image, ResolveError> {
        match (self.commands.highest(image, constraint), &self.sandboxes) {
            (Some(listed), _) => Ok(listed),
            (None, Some(sandboxes)) => sandboxes.resolve(image, constraint).await,
            (None, None) => Err(ResolveError::NoMatch),
        }
    }
}

impl Origins for LocalImages {
    fn origins(&mut self, _: &CurrentSettings) -> OriginOf {
        let (commands, sandboxes) = (self.commands.clone(), self.sandboxes.clone());
        Box::new(move |image| {
            let recipe = commands.recipe(image);
            recipe.or_else(|| {
                let content = sandboxes.as_ref()?.content(image);
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

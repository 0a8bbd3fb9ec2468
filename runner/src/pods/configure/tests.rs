//! A pool that begins before its settings are complete would start and collect the wrong pods.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use porch_fn_image::Constraint;
use porch_fn_settings::CacheConfig;
use tokio::sync::mpsc::UnboundedReceiver;

use super::super::backend::Unresolved;
use super::*;
use crate::settings::tests::settings;

/// Pods that are made from nothing.
struct Nothing;

impl Making for Nothing {
    fn made_from(&mut self, _: &Current) -> MadeFrom {
        Box::new(|_| None)
    }

    async fn changed(&mut self) -> Changed {
        std::future::pending().await
    }
}

#[derive(Debug)]
struct Everything;

impl Catalog for Everything {
    fn knows(&self, _: &Image) -> bool {
        true
    }

    fn resolve<'a>(&'a self, _: &'a Image, _: &'a Constraint) -> BoxFuture<'a, Result<Image, Unresolved>> {
        std::future::ready(Err(Unresolved::NoMatch)).boxed()
    }
}

fn current(cache: &str, complete: bool) -> Current {
    let cache = CacheConfig::parse(cache, "example.com").unwrap();
    Current { settings: Arc::new(settings(cache)), time: None, complete }
}

async fn max_pods(events: &mut UnboundedReceiver<Event>) -> u32 {
    let Some(Event::Configure(config)) = events.recv().await else { panic!("no configuration") };
    config.overrides.find(&ImageKey::from("example.com/f:v1")).max_pods
}

#[tokio::test]
async fn nothing_is_warmed_up_or_owned_before_settings_are_complete() {
    let (sender, receiver) = watch::channel(current("[]", false));
    let (events, mut told) = mpsc::unbounded_channel();
    let (configured, is_configured) = watch::channel(false);
    let warm_up = Some(WarmUp::new(Arc::new(Everything)));
    let (_, resolved) = watch::channel(Resolved::default());
    tokio::spawn(follow(Config::default(), Nothing, receiver, resolved, warm_up, configured, events));

    sender.send_replace(current("- {name: 'f:v1', maxReplicas: 2}", false));
    assert_eq!(max_pods(&mut told).await, 2, "limits hold for the calls there are");
    assert!(told.is_empty() && !*is_configured.borrow());

    sender.send_replace(current("- {name: 'f:v1', maxReplicas: 3}", true));
    // What is owned is told by another: it must not come before this.
    assert_eq!(max_pods(&mut told).await, 3);
    let Some(Event::Warm { image, .. }) = told.recv().await else { panic!("it was not warmed up") };
    assert_eq!(image, ImageKey::from("example.com/f:v1"));
    assert!(*is_configured.borrow());
}

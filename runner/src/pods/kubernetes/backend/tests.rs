//! Tests that one time limit covers all waits of a create. Otherwise callers would wait longer than
//! documented.

use porch_fn_flags::LogFormat;
use porch_fn_settings::CacheConfig;
use tokio::sync::mpsc;

use super::*;
use crate::pods::kubernetes::blueprint::{NoTemplate, PodFlags, TemplateState};
use crate::pods::kubernetes::fake::{self, FakeRegistry, IMAGE};
use crate::pods::kubernetes::store::Connect;
use crate::pods::kubernetes::template::Template;

/// Returns the result of a create and its duration in seconds. The API server never answers; the
/// registry answers after `registry` seconds.
async fn create(registry: u64, template: TemplateState) -> (Creation, u64) {
    let flags = PodFlags { max_message: 1024, pull_secret: None, log_format: LogFormat::Text };
    let settings = Arc::new(crate::settings::tests::settings(CacheConfig::default()));
    let blueprint = Blueprint::new(template, flags, settings, Time::default(), None);
    let delay = Duration::from_secs(registry);
    let (images, _) = fake::images(FakeRegistry { delay, ..FakeRegistry::default() });
    let (events, _received) = mpsc::unbounded_channel();
    let (_blueprints, blueprint) = watch::channel(Arc::new(blueprint));
    let shared = KubernetesBackend {
        cluster: Cluster::new(fake::client(|_, _, _| None), "functions"),
        store: Arc::new(Store::new(Connect::PodIp, None, images, events)),
        blueprint,
        pull_secret: None,
        refused: Mutex::default(),
    };
    let name = PodName { image: IMAGE.into(), slot: 0, past: None };
    let began = Instant::now();
    (shared.create(&name, &"key".into(), Time::default()).await, began.elapsed().as_secs())
}

#[tokio::test(start_paused = true)]
async fn one_time_limit_covers_all_waits_of_a_create() {
    let template = || Ok(Arc::new(Template::built_in("w:v1").unwrap()));
    let unreachable = refused("registry", RegistryError::Unreachable.to_string());
    let unread = refused("template", NoTemplate::Unread.to_string());
    let limit = CREATE_TIMEOUT.as_secs();
    assert!(CREATE_TIMEOUT < Duration::from_mins(1), "the pool gives up then");
    assert_eq!(create(3600, template()).await, (unreachable, limit));
    assert_eq!(create(45, template()).await, (Creation::Unknown, limit));
    assert_eq!(create(45, Err(NoTemplate::Unread)).await, (unread.clone(), limit));
    assert_eq!(create(0, Err(NoTemplate::Unread)).await, (unread, TEMPLATE_TIMEOUT.as_secs()));
}

//! Tests which events reach the pool, and in which order. With an incomplete configuration the pool
//! would start and collect the wrong pods.

use porch_fn_settings::CacheConfig;
use tokio::sync::mpsc::UnboundedReceiver;

use super::*;
use crate::pods::ImageCommands;

fn current(cache: &str, complete: bool) -> CurrentSettings {
    crate::settings::tests::current(CacheConfig::parse(cache, "example.com").unwrap(), complete)
}

async fn max_pods(events: &mut UnboundedReceiver<Event>) -> u32 {
    let Some(Event::Configure(config)) = events.recv().await else { panic!("no configuration") };
    limit(&config)
}

fn limit(config: &Config) -> u32 {
    config.overrides.find(&ImageKey::from("example.com/f:v1")).unwrap().limits.max_pods
}

#[tokio::test]
async fn the_pool_gets_complete_settings_first_then_owned_images_and_images_to_warm_up() {
    let (sender, receiver) = watch::channel(current("- {name: 'f:v1', maxReplicas: 1}", false));
    let (events, mut sent) = mpsc::unbounded_channel();
    let (owns, owned) = watch::channel(OwnedShards::None);
    let mut file = ImageCommands::default();
    file.add("f:v1", vec!["cat".to_owned()], "example.com").unwrap();
    let mut desired = Desired {
        base: Config::default(),
        origins: Box::new(|_, ()| Box::new(|_, _| PodRecipe::default())),
        template: watch::channel(()).1,
        owned,
        images: Arc::new(ImageSource { file, registries: None }),
        warm_up: true,
        warmed_up: HashSet::new(),
    };
    let first = desired.config(&receiver.borrow(), &Resolved::default());
    let image = ImageKey::from("example.com/f:v1");
    assert_eq!(limit(&first), 1, "incomplete settings limit pods too");
    let (_, resolved) = watch::channel(Resolved::default());
    tokio::spawn(desired.follow(receiver, resolved, events));
    for _ in 0..3 {
        tokio::task::yield_now().await;
    }
    sender.send_replace(current("- {name: 'f:v1', maxReplicas: 2}", false));
    owns.send_replace(OwnedShards::All);
    for _ in 0..3 {
        tokio::task::yield_now().await;
    }
    assert!(sent.is_empty());

    sender.send_replace(current("- {name: 'f:v1', maxReplicas: 3}", true));
    assert_eq!(max_pods(&mut sent).await, 3);
    assert!(matches!(sent.recv().await, Some(Event::Own(OwnedShards::All))));
    let Some(Event::Warm { image: warmed, .. }) = sent.recv().await else { panic!("not warmed up") };
    assert_eq!(warmed, image);
    owns.send_replace(OwnedShards::None);
    assert!(matches!(sent.recv().await, Some(Event::Own(OwnedShards::None))));
    sender.send_replace(current("- {name: 'f:v1', maxReplicas: 4}", true));
    assert_eq!(max_pods(&mut sent).await, 4);
    assert!(sent.is_empty(), "warmed up only once");
}

//! Tests of the number of lookups: in total, and at the same time.

use super::*;
use crate::images::limiter::LOOKUPS;

#[tokio::test(start_paused = true)]
async fn concurrent_first_calls_share_one_lookup_per_image() {
    let (fake, images) = images();
    fake.0.lock().delay = SECOND;
    let all: Vec<Image> = (0..50).map(|index| image(&format!("a.b/fn-{index:02}:v1"))).collect();
    for image in &all {
        fake.set_digest(image.as_str(), image.name());
        fake.set_tags(image.repository(), Ok(&["v1"]));
    }
    let calls = (0..1000).map(|call| {
        let (images, image) = (&images, &all[call % all.len()]);
        async move {
            let resolved = images.resolve(image, &constraint(["v1", "*"][call % 2])).await.unwrap();
            assert_eq!(resolved, *image);
            assert_eq!(&*images.metadata(image).await.unwrap().digest, image.name());
        }
    });
    join_all(calls).await;
    let requests = fake.requests();
    assert!(
        requests.len() == 100 && requests.iter().all(|request| request.starts_with("1 ")),
        "{requests:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn concurrent_lookups_are_limited() {
    let (fake, images) = images();
    fake.0.lock().delay = SECOND;
    // Two calls per image share one lookup.
    let ask = async |all: &[Image]| {
        let answers = join_all(all.iter().chain(all).map(|image| images.metadata(image))).await;
        assert!(answers.iter().all(|answer| *answer == Err(RegistryError::NotFound)));
        assert_eq!(fake.requests().len(), all.len());
        std::mem::take(&mut fake.0.lock().most_at_once)
    };
    let of_one: Vec<Image> =
        (0..LOOKUPS.per_registry * 3).map(|index| image(&format!("a.b/fn-{index}:v1"))).collect();
    assert_eq!(ask(&of_one).await, LOOKUPS.per_registry);
    let of_many = |name: &str| -> Vec<Image> {
        (0..LOOKUPS.all * 2).map(|index| image(&format!("r{index}.b/{name}:v1"))).collect()
    };
    assert_eq!(ask(&of_many("one")).await, LOOKUPS.all / 2, "none of them has ever answered");
    assert_eq!(ask(&of_many("two")).await, LOOKUPS.all);
    let of_a_domain: Vec<Image> =
        (0..LOOKUPS.per_domain * 2).map(|index| image(&format!("r{index}.a.b:5000/fn:v1"))).collect();
    assert_eq!(ask(&of_a_domain).await, LOOKUPS.per_domain);
}

/// Calls to registries outside the hanging domain do not wait, even if the registry is new. No
/// caller waits for several lookups in a row.
#[tokio::test(start_paused = true)]
async fn a_hanging_domain_does_not_delay_other_registries() {
    let (fake, images) = images();
    let hosts: Vec<_> = (0..16).map(|index| format!("r{index}.hung.example")).collect();
    fake.0.lock().hanging.clone_from(&hosts);
    fake.set_digest("known.example/fn:v1", "one");
    images.metadata(&image("known.example/fn:v1")).await.unwrap();
    let began = Instant::now();
    let calls = (0..320).map(|index| {
        let (images, image) = (&images, image(&format!("{}/fn-{index}:v1", hosts[index % 16])));
        async move {
            if index % 3 == 0 {
                let resolved = images.resolve(&image, &constraint("*")).await;
                assert_eq!(resolved, Err(RegistryError::Unreachable));
            } else {
                assert_eq!(images.metadata(&image).await, Err(RegistryError::Unreachable));
            }
        }
    });
    let others = async {
        settle().await;
        for first in ["known.example/other:v1", "new.example/fn:v1", "r.another.example/fn:v1"] {
            fake.set_digest(first, "two");
            images.metadata(&image(first)).await.unwrap();
        }
        assert_eq!(began.elapsed(), Duration::ZERO);
        assert_eq!(fake.0.lock().most_at_once, LOOKUPS.per_domain + 1);
    };
    tokio::join!(join_all(calls), others);
    // The domain's registries take turns. Each gets lookups until its first timeout.
    assert!(began.elapsed() <= GIVES_UP * 16 / (LOOKUPS.per_domain / LOOKUPS.per_registry) as u32);
}

#[tokio::test(start_paused = true)]
async fn a_registry_cools_down_after_a_timeout_but_not_after_refused_connections() {
    let (fake, images) = images();
    let (hung, other) = (image("hung.one/fn:v1"), image("hung.one/other:v1"));
    fake.set_digest("hung.one/fn:v1", "one");
    let known = images.metadata(&hung).await.unwrap();
    fake.0.lock().hanging = vec!["hung.one".into()];
    images.metadata(&other).await.unwrap_err();
    fake.requests();
    advance(SECOND * 2).await;
    let asked = Instant::now();
    assert_eq!(images.metadata(&other).await, Err(RegistryError::Unreachable));
    images.distrust(&hung);
    assert_eq!(images.metadata(&hung).await.unwrap(), known);
    assert_eq!((asked.elapsed(), fake.requests()), (Duration::ZERO, vec![]));

    // The registry answers again.
    fake.0.lock().hanging.clear();
    advance(SECOND).await;
    assert_eq!(images.metadata(&other).await, Err(RegistryError::NotFound));
    assert_eq!(images.metadata(&hung).await.unwrap(), known);
    assert_eq!(fake.requests(), ["1 digest hung.one/fn:v1", "1 metadata hung.one/other:v1"]);

    for index in 0..10 {
        let image = image(&format!("a.b/fn-{index}:v1"));
        fake.set(image.as_str(), Err(RegistryError::Unreachable));
        images.metadata(&image).await.unwrap_err();
    }
    assert_eq!(fake.requests().len(), 10);
}

#[tokio::test(start_paused = true)]
async fn a_lookup_continues_after_its_caller_leaves() {
    let (fake, images) = images();
    fake.set_digest("a.b/fn:v1", "one");
    fake.0.lock().delay = SECOND;
    let fn_v1 = image("a.b/fn:v1");
    assert!(timeout(SECOND / 2, images.metadata(&fn_v1)).await.is_err());
    let asked = Instant::now();
    assert_eq!(&*images.metadata(&fn_v1).await.unwrap().digest, "one");
    assert_eq!(asked.elapsed(), SECOND / 2);
    assert_eq!(fake.requests(), ["1 metadata a.b/fn:v1"]);
}

#[tokio::test(start_paused = true)]
async fn a_lookup_can_be_repeated_after_a_panic() {
    let (fake, images) = images();
    fake.set_digest("a.b/fn:v1", "one");
    fake.0.lock().panics = true;
    assert_eq!(images.metadata(&image("a.b/fn:v1")).await, Err(RegistryError::Unreachable));
    fake.0.lock().panics = false;
    images.metadata(&image("a.b/fn:v1")).await.unwrap();
}

//! Constraints, and the lists of tags that they choose from.

use super::*;

#[tokio::test(start_paused = true)]
async fn constraints_of_one_repository_share_its_list() {
    let (fake, images) = images();
    fake.takes(SECOND);
    fake.has_tags("a.b/fn", Ok(&["v0.4.1", "v0.4.3", "latest", "v0.5.0", "v0.4.9-git-abc", "1.0.0+x", "v1"]));
    let resolve = async |of: &str, text: &str| {
        let resolved = images.resolve(&image(of), &constraint(text)).await;
        resolved.map_or_else(|error| error.to_string(), |image| image.to_string())
    };
    let no_match = ResolveError::NoMatch.to_string();
    let digest = format!("a.b/fn@{SHA256}");
    let resolved = tokio::join!(
        resolve("a.b/fn:v1", "~0.4"),
        resolve(&digest, "<1"),
        resolve("a.b/fn", ">0"),
        resolve("a.b/fn", "~0.4"),
        resolve("a.b/fn", "2"),
    );
    let expected = ["a.b/fn:v0.4.3", "a.b/fn:v0.5.0", "a.b/fn:v1", "a.b/fn:v0.4.3", &no_match];
    assert_eq!(<[String; 5]>::from(resolved), expected);
    assert_eq!(fake.requests(), ["1 tags a.b/fn"]);
    assert_eq!(fake.requests(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn an_old_list_serves_while_one_question_refreshes_it() {
    let (fake, images) = images();
    let (fn_, all) = (image("a.b/fn"), constraint("*"));
    fake.has_tags("a.b/fn", Ok(&["v1"]));
    images.resolve(&fn_, &all).await.unwrap();
    fake.requests();
    fake.has_tags("a.b/fn", Ok(&["v1", "v2"]));
    fake.takes(SECOND);
    advance(TTL.saturating_sub(SECOND)).await;
    images.resolve(&fn_, &all).await.unwrap();
    settle().await;
    assert_eq!(fake.requests(), [""; 0], "fresh");

    advance(SECOND).await;
    for _ in 0..100 {
        let resolved = images.resolve(&fn_, &all).now_or_never().expect("nobody waits");
        assert_eq!(resolved.unwrap().tag(), Some("v1"));
    }
    settle().await;
    assert_eq!(fake.requests(), ["1 tags a.b/fn"]);
    sleep(SECOND).await;
    settle().await;
    for _ in 0..100 {
        let resolved = images.resolve(&fn_, &all).now_or_never().expect("nobody waits");
        assert_eq!(resolved.unwrap().tag(), Some("v2"));
    }
    settle().await;
    assert_eq!(fake.requests(), [""; 0], "fresh again");
}

#[tokio::test(start_paused = true)]
async fn an_old_list_outlives_a_registry_that_fails() {
    let (fake, images) = images();
    let (fn_, all) = (image("a.b/fn"), constraint("*"));
    fake.has_tags("a.b/fn", Ok(&["v1"]));
    images.resolve(&fn_, &all).await.unwrap();
    fake.requests();
    fake.has_tags("a.b/fn", Err(RegistryError::Unreachable));
    advance(TTL).await;
    for _ in 0..60 {
        let resolved = images.resolve(&fn_, &all).now_or_never().expect("nobody waits");
        assert_eq!(resolved.unwrap().tag(), Some("v1"));
        settle().await;
        advance(SECOND).await;
    }
    assert_eq!(fake.requests(), ["6 tags a.b/fn"], "every ten seconds");
    let other = images.resolve(&fn_, &constraint("2")).await;
    assert_eq!(other, Err(RegistryError::Unreachable.into()), "such a tag may be there by now");
}

#[tokio::test(start_paused = true)]
async fn no_match_is_remembered_for_a_while() {
    let (fake, images) = images();
    let (fn_, two) = (image("a.b/fn"), constraint("2"));
    fake.has_tags("a.b/fn", Ok(&["v1"]));
    for _ in 0..100 {
        assert_eq!(images.resolve(&fn_, &two).await, Err(ResolveError::NoMatch));
    }
    assert_eq!(fake.requests(), ["1 tags a.b/fn"]);
    fake.has_tags("a.b/fn", Ok(&["v1", "v2"]));
    advance(NEGATIVE_TTL.saturating_sub(SECOND)).await;
    assert_eq!(images.resolve(&fn_, &two).await, Err(ResolveError::NoMatch));
    assert_eq!(fake.requests(), [""; 0]);
    advance(SECOND).await;
    assert_eq!(images.resolve(&fn_, &two).await.unwrap().tag(), Some("v2"));
    assert_eq!(fake.requests(), ["1 tags a.b/fn"]);
}

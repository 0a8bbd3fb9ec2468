//! Which image and owner a request selects, and the JSON of an answer.

use porch_fn_grpc_client::conn::{Connection, Options};
use porch_fn_proto::shard::{ImagePod, LastError};
use porch_fn_ring::Ring;

use super::*;
use crate::tests::{IMAGE, info, known, known_of, ring};

const REPOSITORY: &str = "example.com/fn/set-labels";

fn images() -> Arc<Images> {
    Images::new("example.com/fn".to_owned())
}

/// What the router knows: two runners, and calls of these images.
fn called(images: &[&str]) -> Known {
    let images = images.iter().map(|image| known(image, "", 1));
    known_of(vec![info("a:1", "healthy"), info("b:1", "unreachable")], images.collect())
}

#[test]
fn images_are_completed_like_those_of_calls() {
    let owner = |key: &str| ring().owner(key).map(ToString::to_string);
    let latest = format!("{REPOSITORY}:latest");
    for (calls, query, image, key) in [
        (&[][..], "image=set-labels:v1", IMAGE, IMAGE),
        (&[], "image=set-labels", &latest, &latest),
        (&[], "image=example.com%2Ffn%2Fset-labels", &latest, &latest),
        // The status page's rows have no default tag.
        (&[], "image=example.com%2Ffn%2Fset-labels&exact", REPOSITORY, REPOSITORY),
        (&[], "image=set-labels:v1&exact", IMAGE, IMAGE),
        (&[], "image=set-labels&exact", &latest, &latest),
        // Calls with a tag constraint select the repository.
        (&[REPOSITORY], "image=example.com/fn/set-labels", REPOSITORY, REPOSITORY),
        (&[REPOSITORY], "image=set-labels:v1", IMAGE, REPOSITORY),
        (&[REPOSITORY, IMAGE], "image=set-labels:v1", IMAGE, IMAGE),
    ] {
        let asked = images().asked(query, "/image.json", &called(calls), true);
        assert_eq!(asked, Ok(Asked { image: image.to_owned(), owner: owner(key) }), "{query} {calls:?}");
    }
    // A repository has no configuration of its own.
    let asked = images().asked("image=example.com/fn/set-labels", "/config", &called(&[REPOSITORY]), false);
    assert_eq!(asked.unwrap().image, latest);
}

#[tokio::test]
async fn a_query_without_a_valid_image_is_refused() {
    let images = images();
    for (query, expected) in
        [("", "write /config?image=IMAGE"), ("image=Not+An+Image", "has a malformed repository part")]
    {
        let (status, error) = images.config(query, &called(&[])).await.unwrap_err();
        assert_eq!(status, StatusCode::BAD_REQUEST);
        let error: Value = serde_json::from_str(&error).unwrap();
        let text = error["error"].as_str().unwrap();
        assert!(text.contains(expected), "{text}");
        images.detail(query, &called(&[])).await.unwrap_err();
    }
}

#[tokio::test]
async fn an_owner_that_cannot_be_asked_is_named() {
    let images = images();
    // Neither runner has a connection.
    let owner = ring().owner(IMAGE).unwrap().to_string();
    let state = if owner == "a:1" { "healthy" } else { "unreachable" };
    let query = format!("image={IMAGE}");
    let error = format!(
        "runner {owner}, the image's owner, is {state} and cannot be asked: check that its pod runs and that the \
         router reaches it; other runners serve the image's calls"
    );
    let text = images.detail(&query, &called(&[])).await.unwrap();
    let detail: ImageDetail = serde_json::from_slice(&text).unwrap();
    let expected =
        ImageDetail { image: IMAGE.to_owned(), owner, error: Some(error.clone()), ..ImageDetail::default() };
    assert_eq!(detail, expected);
    let unavailable = (StatusCode::SERVICE_UNAVAILABLE, json!({ "error": error }).to_string());
    assert_eq!(images.config(&query, &called(&[])).await, Err(unavailable));
    let nobody = Known { ring: Arc::new(Ring::new(None::<&str>)), ..called(&[]) };
    let text = images.config(&query, &nobody).await.unwrap_err().1;
    assert!(text.contains("there is no runner"), "{text}");
}

#[test]
fn the_answer_has_the_documented_fields_and_is_bounded() {
    let asked = || Asked { image: IMAGE.to_owned(), owner: Some("a:1".to_owned()) };
    let pod = ImagePod { name: "f-v1-0".to_owned(), state: "ready".to_owned(), age_ms: 5, calls: 2 };
    let answer = DescribeImageResponse {
        name: "function-runner-0".to_owned(),
        pods: vec![pod.clone()],
        last_error: Some(LastError { at_ms: 7, code: "INTERNAL".to_owned(), text: "a\nb".to_owned() }),
        config: r#"{"image": "x", "settings": []}"#.into(),
    };
    let expected = json!({
        "image": IMAGE, "owner": "a:1", "owner_name": "function-runner-0",
        "pods": [{"name": "f-v1-0", "state": "ready", "age_ms": 5, "calls": 2}],
        "last_error": {"at_ms": 7, "code": "INTERNAL", "text": "a\nb"},
        "config": {"image": "x", "settings": []},
    });
    assert_eq!(serde_json::to_value(detail(asked(), Ok(answer))).unwrap(), expected);
    let empty = detail(asked(), Ok(DescribeImageResponse::default()));
    let json = serde_json::to_value(&empty).unwrap();
    assert_eq!((&json["last_error"], &json["config"]), (&Value::Null, &Value::Null));

    let last_error = LastError { text: "x".repeat(MAX_ERROR + 1), ..LastError::default() };
    let pods = vec![ImagePod { name: "x".repeat(5000), ..pod }; 1000];
    let big = DescribeImageResponse { pods, last_error: Some(last_error), ..Default::default() };
    let big = detail(asked(), Ok(big));
    assert_eq!((big.pods.len(), big.last_error.unwrap().text.len()), (MAX_PODS, MAX_ERROR));
    assert!(big.pods[0].name.len() < 1000);
}

#[tokio::test]
async fn more_images_at_once_than_the_limit_are_asked_for_later() {
    let (images, runner) = (images(), ring().owner(IMAGE).unwrap().to_owned());
    let _asked = images.permits.acquire_many(u32::try_from(AT_ONCE).unwrap()).await.unwrap();
    let second = std::time::Duration::from_secs(1);
    let options = Options { connect_timeout: second, ping: None, user_timeout: second, keepalive: None };
    let connection = Arc::new(Connection::new(&*runner, options, None).unwrap());
    let known = Known { reachable: vec![(runner.into(), connection)], ..called(&[]) };
    let refused = images.config(&format!("image={IMAGE}"), &known).await.unwrap_err();
    let text = r#"{"error":"the router already asks for 16 images: try again"}"#;
    assert_eq!(refused, (StatusCode::SERVICE_UNAVAILABLE, text.to_owned()));
}

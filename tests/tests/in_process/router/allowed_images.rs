//! `--allowed-images`: what is not allowed is refused before a runner hears of it.

use porch_fn_tests::fleet::Fleet;
use tonic::Code;

#[tokio::test]
async fn what_is_not_allowed_reaches_no_runner() {
    let patterns = ["--allowed-images=set-*:v1,*.example.com/**", "--allowed-images=quay.io/fn/*"];
    let fleet = Fleet::with(1, &patterns).await;
    let caller = fleet.caller().await;
    let allowed = [
        "set-image:v1",
        "a.example.com/x/y:v2",
        "quay.io/fn/f@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    ];
    for image in allowed {
        caller.evaluate(image, "package").await.unwrap();
    }
    assert_eq!(fleet.taken(), [3]);
    for (image, shown) in [
        ("set-image:v2", "ghcr.io/kptdev/krm-functions-catalog/set-image:v2"),
        ("quay.io/fn/x/y:v1", "quay.io/fn/x/y:v1"),
        ("quay.io/other", "quay.io/other:latest"),
    ] {
        let status = caller.evaluate(image, "package").await.unwrap_err();
        assert_eq!(status.code(), Code::PermissionDenied);
        let expected = format!(
            "image \"{shown}\" is not allowed: no pattern of the function runner's --allowed-images fits it"
        );
        assert_eq!(status.message(), expected);
    }
    let status = caller.evaluate("Not An Image", "package").await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied, "{status:?}");
    assert_eq!(fleet.taken(), [3], "a runner heard of a refused call");
}

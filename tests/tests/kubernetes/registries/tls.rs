//! TLS by a private authority, and tokens.

use porch_fn_tests::registry::{Authority, Kind, User, docker_config};

use super::private::until_copied;
use super::*;

const UNTRUSTED: &str = "the certificate of the image's registry is not trusted: add its CA with \
                         --enable-private-registries-tls and --tls-secret-path, or name the registry in \
                         --insecure-registries if it speaks plain HTTP";

/// Names and contents.
type Files<'a> = &'a [(&'a str, &'a [u8])];

/// The directory of `--tls-secret-path` with these files.
fn trusting(stand: &Stand, name: &str, files: Files<'_>) -> Vec<String> {
    for (file, content) in files {
        stand.sandbox.write(&format!("{name}/{file}"), content);
    }
    vec![
        "--enable-private-registries-tls".to_owned(),
        path_flag("tls-secret-path", &stand.sandbox.path(name)),
    ]
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_private_authority_is_trusted_by_ca_crt_or_else_ca_pem() {
    let Some(stand) = Stand::start().await else { return };
    let authority = Authority::create(&stand.sandbox, "ours").await;
    let other = Authority::create(&stand.sandbox, "other").await;
    let user = User::new("runner", "a planted password");
    let access = Access { user: Some(user.clone()), tls: Some(authority.clone()) };
    let place = stand.registry("secure", access).await;
    let host = place.registry.address().to_string();
    let config = docker_config([(host.as_str(), &user)]);
    let file = stand.sandbox.write("config-secret/.dockerconfigjson", &config);
    let private = ["--enable-private-registries".to_owned(), path_flag("registry-auth-secret-path", &file)];
    let mut images = Vec::new();
    for name in ["team/a:v1", "team/b:v1"] {
        images.push(place.push(name, "word").await);
    }

    let (runner, client) = stand.runner(&private).await;
    fails_at_once(&client, &images[0], "TLS by an unknown authority", UNTRUSTED).await;
    drop(runner);

    let (good, bad) = (std::fs::read(authority.path()).unwrap(), std::fs::read(other.path()).unwrap());
    let table: [(&str, Files<'_>, bool); 4] = [
        ("both", &[("ca.crt", &good), ("ca.pem", &bad)], true),
        ("pem", &[("ca.pem", &good)], true),
        ("other", &[("ca.crt", &bad), ("ca.pem", &good)], false),
        ("bundle", &[("ca.crt", &[bad.clone(), good.clone()].concat())], true),
    ];
    for (name, files, trusted) in table {
        let flags = [&private[..], &trusting(&stand, name, files)].concat();
        let (runner, client) = stand.runner(&flags).await;
        if trusted {
            for image in &images {
                runs_with(&client, image, "word").await;
            }
        } else {
            let image = place.registry.image("unseen:v1");
            fails_at_once(&client, &image, "TLS by another authority than ca.crt's", UNTRUSTED).await;
        }
        drop(runner);
        // So that the next runner has to ask.
        let pods = stand.namespace.api::<Pod>();
        let now = kube::api::DeleteParams::default().grace_period(0);
        pods.delete_collection(&now, &kube::api::ListParams::default()).await.unwrap();
        stand.namespace.until("the pods are gone", |pods: &[Pod]| pods.is_empty().then_some(())).await;
    }
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn tokens_are_got_used_again_and_renewed() {
    let Some(stand) = Stand::start().await else { return };
    let place = stand.registry("behind", Access::default()).await;
    let lifetime = Duration::from_mins(5);
    let proxy = stand.proxy(&place, Auth::Token { lifetime }).await;
    node::plain(&stand.own, proxy.address());
    let mut images = Vec::new();
    for name in ["team/a:v1", "team/a:v2", "team/b:v1"] {
        place.push(name, &name.replace([':', '/'], "-")).await;
        images.push(proxy.image(name));
    }
    let user = User::new("runner", "a planted password");
    proxy.set_users(&[&user]);
    let host = proxy.address().to_string();
    let config = docker_config([(host.as_str(), &user)]);
    let file = stand.sandbox.write("config-secret/.dockerconfigjson", &config);
    let flags = [
        insecure(proxy.address()),
        "--enable-private-registries".to_owned(),
        path_flag("registry-auth-secret-path", &file),
    ];
    let (_runner, client) = stand.runner(&flags).await;
    runs_with(&client, &images[0], "team-a-v1").await;
    runs_with(&client, &images[1], "team-a-v2").await;
    until_copied(&stand, "auth-secret", &config).await;
    let refused =
        proxy.asked().iter().filter(|asked| asked.kind != Kind::Token && asked.status == 401).count();
    figure(&format!(
        "two images of one repository, by runner and node: {} tokens, {refused} refusals",
        proxy.count(Kind::Token)
    ));

    // The server forgets its tokens: the runner gets another when its own is refused.
    proxy.revoke();
    runs_with(&client, &images[2], "team-b-v1").await;

    // And one without a password has none.
    proxy.set_users(&[]);
    proxy.revoke();
    place.push("team/c:v1", "word").await;
    let (answer, took) = timed(&client, &proxy.image("team/c:v1")).await;
    assert!(answer.message.contains("refuses access"), "{}", answer.message);
    assert!(took < AT_ONCE, "{took:?}");
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn an_identity_token_gets_tokens() {
    let Some(stand) = Stand::start().await else { return };
    let place = stand.registry("behind", Access::default()).await;
    let proxy = stand.proxy(&place, Auth::Token { lifetime: Duration::from_mins(5) }).await;
    // Kubelets know no identity tokens: the node goes past the proxy.
    node::instead(&stand.own, proxy.address(), &place.registry.address().to_string());
    place.push("team/a:v1", "word").await;
    let image = proxy.image("team/a:v1");
    proxy.set_identities(&["an-identity"]);
    let auths = serde_json::json!({"auths": {proxy.address().to_string(): {"identitytoken": "an-identity"}}});
    let file = stand.sandbox.write("config-secret/.dockerconfigjson", auths.to_string());
    let flags = [
        insecure(proxy.address()),
        "--enable-private-registries".to_owned(),
        path_flag("registry-auth-secret-path", &file),
    ];
    let (_runner, client) = stand.runner(&flags).await;
    runs_with(&client, &image, "word").await;
}

//! No secret of a registry is in a log, on a page or in an error's text, however much is logged.

use porch_fn_tests::process::eventually;
use porch_fn_tests::registry::{User, base64, basic, docker_config, replace};

use super::private::{Private, until_copied};
use super::*;

/// Fails if one of the secrets is in one of the texts.
fn none_in(texts: &[(&str, String)], secrets: &[String]) {
    for (what, text) in texts {
        for secret in secrets {
            let line = text.lines().find(|line| line.contains(secret.as_str()));
            assert!(line.is_none(), "{secret:?} is in {what}: {line:?}");
        }
    }
}

async fn pages(runner: &Server) -> Vec<(&'static str, String)> {
    let mut texts = vec![("the log", runner.log())];
    for page in ["/metrics", "/pods", "/config", "/shards"] {
        texts.push((page, runner.page(page).await.1));
    }
    texts
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn no_secret_of_a_registry_is_in_any_log_page_or_error() {
    let Some(stand) = Stand::start().await else { return };
    let mut private = Private::start(&stand).await;
    let lifetime = Duration::from_mins(5);
    let behind = stand.registry("behind", Access::default()).await;
    let proxy = stand.proxy(&behind, Auth::Token { lifetime }).await;
    // Kubelets know no identity tokens: the node goes past the proxy.
    node::instead(&stand.own, proxy.address(), &behind.registry.address().to_string());
    behind.push("team/tokens:v1", "word").await;
    behind.push("team/identity:v1", "word").await;
    let mut images = Vec::new();
    for name in ["team/a:v1", "team/b:v1", "team/c:v1", "team/d:v1"] {
        images.push(private.place.push(name, "word").await);
    }
    let tokens = [proxy.image("team/tokens:v1"), proxy.image("team/identity:v1")];

    let old = User::new("planted-user", "planted-password-one");
    let new = User::new("planted-user", "planted-password-two");
    let wrong = User::new("planted-user", "planted-password-wrong");
    let (here, there) = (private.place.registry.address().to_string(), proxy.address().to_string());
    let config = |user: &User| docker_config([(here.as_str(), user), (there.as_str(), user)]);
    // What must not be read anywhere.
    let secrets = |tokens: &[String]| {
        let users = [&old, &new, &wrong];
        let of = |user: &User| [user.password.clone(), basic(user), base64(&config(user))];
        let own = users.into_iter().flat_map(of).chain(["planted-identity".to_owned()]);
        own.chain(tokens.iter().cloned()).collect::<Vec<_>>()
    };
    private.place.registry.set_users(&[&old]).await;
    proxy.set_users(&[&old, &new]);
    replace(&private.file, config(&old));
    let insecure = format!("--insecure-registries={here},{there}");
    let level = "--log-level=5".to_owned();
    let flags: Vec<_> = private.flags().into_iter().skip(1).chain([insecure, level]).collect();
    let (runner, client) = stand.runner(&flags).await;
    let mut errors = String::new();

    // Success, by password and by token.
    runs_with(&client, &images[0], "word").await;
    runs_with(&client, &tokens[0], "word").await;
    // Refused, and refused again with what the file has.
    replace(&private.file, config(&wrong));
    until_copied(&stand, "auth-secret", &config(&wrong)).await;
    let answer = client.call(&images[1], INPUT).await;
    assert!(answer.message.contains("refuses access"), "{}", answer.message);
    errors += &answer.message;
    // Rotated.
    private.place.registry.set_users(&[&new]).await;
    replace(&private.file, config(&new));
    until_copied(&stand, "auth-secret", &config(&new)).await;
    succeeds_soon(&client, &images[1], &mut errors).await;
    // Broken, with the secret where a parser would quote it.
    let auth = basic(&new);
    let broken = [
        format!("{{\"auths\": {{\"{here}\": {{\"auth\": \"{auth}\" \"{}\"", new.password),
        format!("{{\"auths\": {{\"{here}\": {{\"auth\": \"{}\"}}}}}}", new.password),
        format!("{{\"auths\": {{\"{here}\": \"{}\"}}}}", new.password),
        format!(
            "{{\"auths\": {{\"{here}\": {{\"username\": \"u\", \"password\": [\"{}\"]}}}}}}",
            new.password
        ),
        new.password.clone(),
    ];
    for text in &broken {
        let seen = runner.log().len();
        replace(&private.file, text);
        errors += &client.call(&images[2], INPUT).await.message;
        eventually("the runner says that the file is broken", async || {
            (runner.log().len() > seen).then_some(())
        })
        .await;
        // Another runner has no good one to fall back on, and no pod of this image.
        let (fresh, caller) = stand.runner(&flags).await;
        let answer = caller.call(&images[3], INPUT).await;
        assert_eq!(answer.code, Code::Unknown, "{text}: {}", answer.message);
        assert!(answer.message.contains("--registry-auth-secret-path"), "{text}: {}", answer.message);
        errors += &answer.message;
        none_in(&pages(&fresh).await, &secrets(&proxy.tokens()));
    }
    // By identity token.
    proxy.set_identities(&["planted-identity"]);
    let identity = serde_json::json!({"auths": {there.as_str(): {"identitytoken": "planted-identity"}}});
    replace(&private.file, identity.to_string());
    until_copied(&stand, "auth-secret", &identity.to_string()).await;
    proxy.revoke();
    succeeds_soon(&client, &tokens[1], &mut errors).await;

    let given = proxy.tokens();
    assert!(!given.is_empty());
    let mut texts = pages(&runner).await;
    assert!(texts[0].1.contains("DEBUG") || texts[0].1.contains("TRACE"), "little is logged");
    figure(&format!(
        "searched for secrets: {} bytes of log at level 5, {} bytes of errors",
        texts[0].1.len(),
        errors.len()
    ));
    texts.push(("the errors", errors));
    none_in(&texts, &secrets(&given));
}

/// A failure is told again for some seconds; its text is kept.
async fn succeeds_soon(client: &Client, image: &str, errors: &mut String) {
    eventually("the call succeeds", async || {
        let answer = client.call(image, INPUT).await;
        *errors += &answer.message;
        (answer.code == Code::Ok).then_some(())
    })
    .await;
}

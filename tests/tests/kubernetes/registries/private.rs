//! Registries that want a password: the runner's credentials, and the node's, which are a copy of them.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::ResourceExt;
use porch_fn_tests::process::eventually;
use porch_fn_tests::registry::{User, docker_config, replace};
use serde_json::json;

use super::*;

/// The copy's name when no flag says another.
const COPY: &str = "auth-secret";
const REFUSED: &str = "the image's registry refuses access to it: give credentials with --enable-private-registries and \
                       --registry-auth-secret-path";

/// A registry with one user, and a file with that user's credentials.
pub(crate) struct Private<'a> {
    pub(crate) place: Place<'a>,
    pub(crate) user: User,
    pub(crate) file: PathBuf,
}

impl<'a> Private<'a> {
    pub(crate) async fn start(stand: &'a Stand) -> Self {
        let user = User::new("runner", "a planted password");
        let access = Access { user: Some(user.clone()), tls: None };
        let place = stand.registry("private", access).await;
        let config = docker_config([(place.registry.address().to_string().as_str(), &user)]);
        let file = stand.sandbox.write("config-secret/.dockerconfigjson", config);
        Self { place, user, file }
    }

    /// The file's content with another user, or none of use.
    pub(crate) fn config(&self, user: &User) -> String {
        docker_config([(self.place.registry.address().to_string().as_str(), user)])
    }

    pub(crate) fn flags(&self) -> Vec<String> {
        vec![
            self.place.insecure(),
            "--enable-private-registries".to_owned(),
            path_flag("registry-auth-secret-path", &self.file),
        ]
    }
}

/// Waits until the copy holds this.
pub(crate) async fn until_copied(stand: &Stand, name: &str, content: &str) -> Secret {
    let copied = |secrets: &[Secret]| {
        let secret = secrets.iter().find(|secret| secret.name_any() == name)?;
        let data = secret.data.as_ref()?.get(".dockerconfigjson")?;
        (data.0 == content.as_bytes()).then(|| secret.clone())
    };
    stand.namespace.until("the pull secret has the file's content", copied).await
}

fn pull_secrets(pod: &Pod) -> Vec<String> {
    let secrets = pod.spec.as_ref().unwrap().image_pull_secrets.as_ref();
    secrets.into_iter().flatten().map(|secret| secret.name.clone()).collect()
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_private_registrys_images_run_with_a_copy_of_the_credentials_that_follows_the_file() {
    let Some(stand) = Stand::start().await else { return };
    let private = Private::start(&stand).await;
    let (first, second) =
        (private.place.push("team/a:v1", "one").await, private.place.push("team/b:v1", "two").await);
    let (runner, client) = stand.runner(&private.flags()).await;
    runs_with(&client, &first, "one").await;
    let config = private.config(&private.user);
    let secret = until_copied(&stand, COPY, &config).await;
    assert_eq!(secret.type_.as_deref(), Some("kubernetes.io/dockerconfigjson"));
    let pods = stand.namespace.pods().await;
    assert_eq!(pods.len(), 1);
    assert_eq!(pull_secrets(&pods[0]), [COPY]);

    // The same content, also seen by another runner and after the file was written anew: nothing is written.
    replace(&private.file, &config);
    let (other, another) = stand.runner(&private.flags()).await;
    runs_with(&another, &second, "two").await;
    let same = until_copied(&stand, COPY, &config).await;
    assert_eq!(same.resource_version(), secret.resource_version());
    drop((other, runner));

    // Another one's Secret of that name would not be ours to change, but this one is.
    let (_runner, _client) = stand.runner(&private.flags()).await;
    let new = private.config(&User::new("runner", "another planted password"));
    replace(&private.file, &new);
    let changed = until_copied(&stand, COPY, &new).await;
    assert_eq!(changed.uid(), secret.uid(), "it was changed in place");
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn the_copy_is_named_once_whatever_the_template_names() {
    let Some(stand) = Stand::start().await else { return };
    let private = Private::start(&stand).await;
    let image = private.place.push("team/a:v1", "one").await;
    let mount = json!([{"name": "tools", "mountPath": "/tools"}]);
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "spec": {
            "imagePullSecrets": [{"name": "another"}, {"name": "of-ours"}],
            "volumes": [{"name": "tools", "emptyDir": {}}],
            "initContainers": [{
                "name": "copy", "image": stand.cluster.wrapper_image(), "volumeMounts": mount,
                "command": ["cp", "-a", "/wrapper-server/.", "/tools"],
            }],
            "containers": [{
                "name": "function", "image": "replaced", "volumeMounts": mount,
                "command": ["/tools/wrapper-server"],
            }],
        },
    });
    let map = json!({"metadata": {"name": "template"}, "data": {"template": pod.to_string()}});
    stand.namespace.make::<ConfigMap>(map).await;
    let more = [
        "--registry-auth-secret-name=of-ours".to_owned(),
        "--function-pod-template=template".to_owned(),
        format!("--namespace={}", stand.namespace.name()),
    ];
    let flags: Vec<_> = private.flags().into_iter().chain(more).collect();
    let (_runner, client) = stand.runner(&flags).await;
    runs_with(&client, &image, "one").await;
    until_copied(&stand, "of-ours", &private.config(&private.user)).await;
    assert_eq!(pull_secrets(&stand.namespace.pods().await[0]), ["another", "of-ours"]);
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn access_that_is_refused_is_told_at_once() {
    let Some(stand) = Stand::start().await else { return };
    let private = Private::start(&stand).await;
    let image = private.place.push("team/a:v1", "one").await;
    let (runner, client) = stand.runner(&[private.place.insecure()]).await;
    fails_at_once(&client, &image, "a private registry without credentials", REFUSED).await;
    drop(runner);

    replace(&private.file, private.config(&User::new("runner", "wrong")));
    let (runner, client) = stand.runner(&private.flags()).await;
    fails_at_once(&client, &image, "a private registry with a wrong password", REFUSED).await;
    drop(runner);

    // Credentials for another registry are none for this one.
    replace(&private.file, docker_config([("registry.example.com", &private.user)]));
    let (_runner, client) = stand.runner(&private.flags()).await;
    fails_at_once(&client, &image, "credentials for another registry", REFUSED).await;
    // And the next ones are found without a restart.
    replace(&private.file, private.config(&private.user));
    succeeds_soon(&client, &image).await;
    assert_eq!(stand.namespace.pods().await.len(), 1);
}

/// A failure is told again for some seconds.
async fn succeeds_soon(client: &Client, image: &str) {
    eventually("the call succeeds", async || {
        let answer = client.call(image, INPUT).await;
        (answer.code == Code::Ok).then_some(())
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_file_that_cannot_be_used_is_told_with_what_to_do() {
    let Some(stand) = Stand::start().await else { return };
    let private = Private::start(&stand).await;
    let image = private.place.push("team/a:v1", "one").await;
    let good = private.config(&private.user);
    std::fs::remove_file(&private.file).unwrap();
    let (_runner, client) = stand.runner(&private.flags()).await;
    let path = private.file.display().to_string();
    let contents = [
        ("no file", None, "there is no such file"),
        ("broken JSON", Some("{\"auths\": {\"10.250.0.1\": {\"auth\": \"cGxhbnRlZA==\"}"), "line 1"),
        ("a helper", Some("{\"credsStore\": \"desktop\"}"), "credsStore"),
    ];
    for (what, content, part) in contents {
        if let Some(content) = content {
            replace(&private.file, content);
        }
        let start = Instant::now();
        let told = eventually("the flaw is told", async || {
            let answer = client.call(&image, INPUT).await;
            assert_eq!(answer.code, Code::Unknown);
            answer.message.contains(part).then_some(answer.message)
        });
        let told = told.await;
        figure(&format!("{what}: told after {:.1?}: {told}", start.elapsed()));
        assert!(told.contains(&path) && told.contains("--registry-auth-secret-path"), "{told}");
        assert!(!told.contains("cGxhbnRlZA=="), "{told}");
    }
    replace(&private.file, good);
    succeeds_soon(&client, &image).await;
}

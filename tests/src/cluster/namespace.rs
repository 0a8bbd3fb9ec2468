//! The namespace of a test, and accounts with few rights.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::{self as core, Pod, Service, ServiceAccount};
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::task::JoinHandle;

use super::watch::Object;
use super::{Cluster, ENTRYPOINT, Recorder, config, kubelet, wait_until};
use crate::process::{PATIENCE, Sandbox, Server, eventually, flag};

/// A kind of object that belongs to a namespace.
pub trait Namespaced: Object + Resource<Scope = NamespaceResourceScope> {}

impl<K: Object + Resource<Scope = NamespaceResourceScope>> Namespaced for K {}

/// The namespace of a test. It is deleted when this value is dropped.
pub struct Namespace {
    cluster: Cluster,
    name: String,
    kubelet: Option<JoinHandle<()>>,
}

/// A `ServiceAccount`. At first it has no rights.
pub struct Account<'a> {
    home: &'a Namespace,
    name: String,
}

// === impl Namespace ===

impl Namespace {
    pub(super) async fn create(cluster: Cluster) -> Self {
        let all: Api<core::Namespace> = Api::all(cluster.client());
        let wish = object(json!({"metadata": {"generateName": "test-"}}));
        let made = all.create(&PostParams::default(), &wish).await.expect("the namespace is created");
        let mut namespace = Self { cluster, name: made.name_any(), kubelet: None };
        // Without a default account, the API server refuses pods.
        namespace
            .wait_until("there is a default account", |accounts: &[ServiceAccount]| {
                accounts.iter().any(|account| account.name_any() == "default").then_some(())
            })
            .await;
        if !namespace.cluster.machine().has_node() {
            namespace.kubelet = Some(tokio::spawn(kubelet::run(namespace.api())));
        }
        namespace
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Access to the namespace's objects of one kind, with the administrator's rights.
    pub fn api<K: Namespaced>(&self) -> Api<K> {
        Api::namespaced(self.cluster.client(), &self.name)
    }

    pub async fn make<K: Namespaced + Serialize>(&self, wish: Value) -> K {
        let made = self.api::<K>().create(&PostParams::default(), &object(wish)).await;
        made.unwrap_or_else(|error| panic!("{} is refused: {error}", K::kind(&())))
    }

    pub async fn list<K: Namespaced>(&self) -> Vec<K> {
        self.api::<K>().list(&ListParams::default()).await.expect("a list").items
    }

    pub async fn pods(&self) -> Vec<Pod> {
        self.list().await
    }

    pub async fn services(&self) -> Vec<Service> {
        self.list().await
    }

    /// Waits until `look` returns a value for the objects of one kind, for a minute at most.
    pub async fn wait_until<K: Namespaced, T>(&self, what: &str, look: impl FnMut(&[K]) -> Option<T>) -> T {
        wait_until(self.api(), what, PATIENCE, look).await
    }

    /// Waits until there is no object of a kind.
    pub async fn wait_empty<K: Namespaced>(&self, within: Duration) {
        let empty = |objects: &[K]| objects.is_empty().then_some(());
        wait_until(self.api(), &format!("no {} is left", K::kind(&())), within, empty).await;
    }

    /// Records all changes to the objects of one kind from now on.
    pub async fn record<K: Namespaced>(&self) -> Recorder<K> {
        Recorder::start(self.api::<K>()).await
    }

    /// Creates an account without rights.
    pub async fn account(&self, name: &str) -> Account<'_> {
        self.make::<ServiceAccount>(json!({"metadata": {"name": name}})).await;
        Account { home: self, name: name.into() }
    }

    /// Starts a runner with the administrator's rights. Its function pods are in this namespace.
    /// `images` are the functions in its image metadata.
    pub async fn runner(&self, sandbox: &Sandbox, images: &[&str], more: &[&str]) -> Server {
        self.runner_as(sandbox, self.cluster.kubeconfig(), images, more).await
    }

    /// Like [`runner`](Self::runner), with the rights of a kubeconfig.
    pub async fn runner_as(
        &self,
        sandbox: &Sandbox,
        kubeconfig: PathBuf,
        images: &[&str],
        more: &[&str],
    ) -> Server {
        let images: Vec<_> =
            images.iter().map(|image| json!({"image": image, "entrypoint": [ENTRYPOINT]})).collect();
        let metadata = json!({ "images": images }).to_string();
        let metadata = flag("image-metadata", sandbox.write("image-metadata.yaml", metadata));
        let flags = [metadata].into_iter().chain(more.iter().map(Into::into));
        self.runner_with_flags(sandbox, kubeconfig, flags).await
    }

    /// Starts a runner with these flags. Without `--image-metadata` the runner queries registries.
    /// `DOCKER_CONFIG` names a missing folder, so only flags provide credentials.
    pub async fn runner_with_flags(
        &self,
        sandbox: &Sandbox,
        kubeconfig: PathBuf,
        more: impl IntoIterator<Item = OsString>,
    ) -> Server {
        let own = [
            "--pod-backend=kubernetes".into(),
            flag("kubeconfig", kubeconfig),
            flag("pod-namespace", self.name()),
        ];
        let (wrapper, nothing) = (self.cluster.wrapper_image(), sandbox.path("no-docker-config"));
        let prepare = |command: &mut Command| {
            command.env("WRAPPER_SERVER_IMAGE", wrapper).env("DOCKER_CONFIG", nothing);
        };
        sandbox.server_with("porch-fn-runner", own.into_iter().chain(more), prepare).await
    }

    /// Deletes the namespace with all its objects, and waits until it is gone.
    pub async fn finish(self) {
        delete(self.cluster.client(), &self.name).await.expect("it can be deleted");
        let all: Api<core::Namespace> = Api::all(self.cluster.client());
        // Kubernetes may need minutes to delete a namespace with many objects.
        wait_until(all, "the namespace is gone", 5 * PATIENCE, |there| {
            there.iter().all(|namespace| namespace.name_any() != self.name).then_some(())
        })
        .await;
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Some(kubelet) = &self.kubelet {
            kubelet.abort();
        }
        // The test's own runtime may be shutting down, so a new runtime sends the request.
        let config = self.cluster.config.clone();
        let name = self.name.clone();
        let deleted = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let limit = Duration::from_secs(10);
            runtime.block_on(async {
                let client = Client::try_from(config).map_err(std::io::Error::other)?;
                let deleted = tokio::time::timeout(limit, delete(client, &name)).await?;
                deleted.map_err(std::io::Error::other)
            })
        });
        if let Ok(Err(error)) = deleted.join() {
            eprintln!("namespace {} is left behind: {error}", self.name);
        }
    }
}

/// Deletes a namespace if it exists. Its pods get no grace period, so that they do not disturb
/// other tests.
async fn delete(client: Client, name: &str) -> kube::Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), name);
    pods.delete_collection(&DeleteParams::default().grace_period(0), &ListParams::default()).await?;
    match Api::<core::Namespace>::all(client).delete(name, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => Ok(()),
        deleted => deleted.map(drop),
    }
}

// === impl Account ===

impl Account<'_> {
    /// The account's name in the audit log.
    pub fn user(&self) -> String {
        format!("system:serviceaccount:{}:{}", self.home.name, self.name)
    }

    /// Grants the rights of some rules in a namespace, and waits until they are in effect. The API
    /// server applies them a moment after it has stored them.
    pub async fn allow(&self, namespace: &Namespace, rules: &[PolicyRule]) {
        let role: Role =
            namespace.make(json!({"metadata": {"generateName": self.name}, "rules": rules})).await;
        let binding = json!({
            "metadata": {"name": role.name_any()},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role.name_any()},
            "subjects": [{"kind": "ServiceAccount", "name": self.name, "namespace": self.home.name}],
        });
        namespace.make::<RoleBinding>(binding).await;
        let reviews: Api<SubjectAccessReview> = Api::all(self.home.cluster.client());
        for right in rules.iter().flat_map(|rule| rights(namespace, rule)) {
            let review = object(json!({"spec": {"user": self.user(), "resourceAttributes": right}}));
            eventually(&format!("{} may {right}", self.user()), async || {
                let answer = reviews.create(&PostParams::default(), &review).await.ok()?;
                answer.status?.allowed.then_some(())
            })
            .await;
        }
    }

    /// Writes a kubeconfig with a token of this account into the sandbox.
    pub async fn kubeconfig(&self, sandbox: &Sandbox) -> PathBuf {
        let accounts: Api<ServiceAccount> = self.home.api();
        let wish: TokenRequest = object(json!({"spec": {"audiences": [], "expirationSeconds": 7200}}));
        let given = accounts.create_token_request(&self.name, &PostParams::default(), &wish).await;
        let given = given.expect("a token is given").status.expect("a token is given").token;

        // Copies the administrator's kubeconfig, and replaces the user.
        let admin = kube::config::Kubeconfig::read_from(self.home.cluster.kubeconfig());
        let admin = admin.expect("the administrator's kubeconfig");
        let mut written = serde_json::to_value(admin).expect("a kubeconfig can be written");
        written["users"] = json!([{"name": "account", "user": {"token": given}}]);
        for context in written["contexts"].as_array_mut().into_iter().flatten() {
            context["context"]["user"] = json!("account");
        }
        let path = sandbox.write(&format!("{}.conf", self.name), written.to_string());
        let read = config(&path).await;
        assert!(read.auth_info.token.is_some(), "{} has the token", path.display());
        path
    }
}

/// All rights of a rule in a namespace, as the `resourceAttributes` of access
/// reviews. A `*` is copied unchanged.
fn rights(namespace: &Namespace, rule: &PolicyRule) -> Vec<Value> {
    let any = [String::new()];
    let names = rule.resource_names.as_deref().filter(|names| !names.is_empty()).unwrap_or(&any);
    let mut all = Vec::new();
    for group in rule.api_groups.iter().flatten() {
        for resource in rule.resources.iter().flatten() {
            let (kind, part) = resource.split_once('/').unwrap_or((resource, ""));
            for (verb, name) in rule.verbs.iter().flat_map(|verb| names.iter().map(move |name| (verb, name)))
            {
                all.push(json!({
                    "namespace": namespace.name, "group": group, "resource": kind, "subresource": part,
                    "verb": verb, "name": name,
                }));
            }
        }
    }
    all
}

/// An object from its JSON.
fn object<K: serde::de::DeserializeOwned>(wish: Value) -> K {
    serde_json::from_value(wish).unwrap_or_else(|error| panic!("no valid object: {error}"))
}

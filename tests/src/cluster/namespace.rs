//! Namespaces of one test each, and accounts with few rights.

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
use super::{Cluster, ENTRYPOINT, Recorder, config, kubelet, until};
use crate::process::{PATIENCE, Sandbox, Server, eventually, flag};

/// A namespace of the test's own. Dropping it deletes it.
pub struct Namespace {
    cluster: Cluster,
    name: String,
    kubelet: Option<JoinHandle<()>>,
}

/// A `ServiceAccount`, which may do nothing at first.
pub struct Account<'a> {
    home: &'a Namespace,
    name: String,
}

// === impl Namespace ===

impl Namespace {
    pub(super) async fn create(cluster: Cluster) -> Self {
        let all: Api<core::Namespace> = Api::all(cluster.client());
        let wish = object(json!({"metadata": {"generateName": "test-"}}));
        let made = all.create(&PostParams::default(), &wish).await.expect("a namespace can be made");
        let mut namespace = Self { cluster, name: made.name_any(), kubelet: None };
        // Without it, pods of the namespace are refused.
        namespace
            .until("there is a default account", |accounts: &[ServiceAccount]| {
                accounts.iter().any(|account| account.name_any() == "default").then_some(())
            })
            .await;
        if !namespace.cluster.own().has_node() {
            namespace.kubelet = Some(tokio::spawn(kubelet::run(namespace.api())));
        }
        namespace
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Its objects of one kind, with all rights.
    pub fn api<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(&self) -> Api<K> {
        Api::namespaced(self.cluster.client(), &self.name)
    }

    /// Makes an object.
    pub async fn make<K>(&self, wish: Value) -> K
    where
        K: Object + Resource<Scope = NamespaceResourceScope> + Serialize,
    {
        let made = self.api::<K>().create(&PostParams::default(), &object(wish)).await;
        made.unwrap_or_else(|error| panic!("{} is refused: {error}", K::kind(&())))
    }

    /// Its objects of one kind now.
    pub async fn list<K: Object + Resource<Scope = NamespaceResourceScope>>(&self) -> Vec<K> {
        self.api::<K>().list(&ListParams::default()).await.expect("a list").items
    }

    /// Its pods now.
    pub async fn pods(&self) -> Vec<Pod> {
        self.list().await
    }

    /// Its Services now.
    pub async fn services(&self) -> Vec<Service> {
        self.list().await
    }

    /// Waits until `look` finds something in its objects of one kind, for a minute at most.
    pub async fn until<K, T>(&self, what: &str, look: impl FnMut(&[K]) -> Option<T>) -> T
    where
        K: Object + Resource<Scope = NamespaceResourceScope>,
    {
        self.until_within(PATIENCE, what, look).await
    }

    /// The same, with a limit of one's own.
    pub async fn until_within<K, T>(
        &self,
        within: Duration,
        what: &str,
        look: impl FnMut(&[K]) -> Option<T>,
    ) -> T
    where
        K: Object + Resource<Scope = NamespaceResourceScope>,
    {
        until(self.api::<K>(), what, within, look).await
    }

    /// Records what happens to its objects of one kind from now on.
    pub async fn record<K: Object + Resource<Scope = NamespaceResourceScope>>(&self) -> Recorder<K> {
        Recorder::start(self.api::<K>()).await
    }

    /// A new account in it, without rights.
    pub async fn account(&self, name: &str) -> Account<'_> {
        self.make::<ServiceAccount>(json!({"metadata": {"name": name}})).await;
        Account { home: self, name: name.into() }
    }

    /// Starts a runner whose function pods live here, with all rights. `images` are functions that
    /// it may start.
    pub async fn runner(&self, sandbox: &Sandbox, images: &[&str], more: &[&str]) -> Server {
        self.runner_as(sandbox, self.cluster.kubeconfig(), images, more).await
    }

    /// The same, with a kubeconfig of one's own.
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
        let own = [
            "--pod-backend=kubernetes".into(),
            flag("kubeconfig", kubeconfig),
            flag("pod-namespace", self.name()),
            flag("image-metadata", sandbox.write("image-metadata.yaml", metadata)),
        ];
        let flags = own.into_iter().chain(more.iter().map(Into::into));
        let wrapper = self.cluster.wrapper_image();
        let prepare = |command: &mut Command| {
            command.env("WRAPPER_SERVER_IMAGE", wrapper);
        };
        sandbox.server_with("porch-fn-runner", flags, prepare).await
    }

    /// Deletes it with all that is in it, and waits until it is gone.
    pub async fn finish(self) {
        delete(self.cluster.client(), &self.name).await.expect("it can be deleted");
        let all: Api<core::Namespace> = Api::all(self.cluster.client());
        // Kubernetes takes its time for a namespace that is full, and nothing is proved by it.
        until(all, "the namespace is gone", 5 * PATIENCE, |there| {
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
        // The test's own runtime may be ending, so another one does it.
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

/// Deletes a namespace, if it is there. Its pods get no grace, so that they are out of the way of
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
    /// Its name as a user, which the audit log has.
    pub fn user(&self) -> String {
        format!("system:serviceaccount:{}:{}", self.home.name, self.name)
    }

    /// Lets it do what the rules say in a namespace, and waits until the API server judges by them:
    /// it hears of them a moment after it has stored them.
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

    /// A kubeconfig with a token of this account, in the sandbox.
    pub async fn kubeconfig(&self, sandbox: &Sandbox) -> PathBuf {
        let accounts: Api<ServiceAccount> = self.home.api();
        let wish: TokenRequest = object(json!({"spec": {"audiences": [], "expirationSeconds": 7200}}));
        let given = accounts.create_token_request(&self.name, &PostParams::default(), &wish).await;
        let given = given.expect("a token is given").status.expect("a token is given").token;

        // The administrator's, with another user.
        let admin = self.home.cluster.kubeconfig();
        let mut written = serde_json::to_value(
            kube::config::Kubeconfig::read_from(admin).expect("the administrator's kubeconfig"),
        )
        .expect("a kubeconfig can be written");
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

/// All that a rule allows in a namespace, as the `resourceAttributes` of reviews. A `*` stands for
/// itself in them.
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
    serde_json::from_value(wish).unwrap_or_else(|error| panic!("no such object: {error}"))
}

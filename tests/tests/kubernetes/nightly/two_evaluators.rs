//! Our runners and an evaluator of Porch's in one namespace, for the same images, while both make, use and delete pods:
//! neither touches the other's.
//!
//! Porch's evaluator is played by [`Evaluator`], which names, labels and deletes as Porch's does: the pod's label and its
//! Service's name are the id, the pod's own name is generated, at its start it adopts the pods of its template's version,
//! and before it makes a pod it deletes all of that id.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodTemplate, Service};
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt};
use porch_fn_tests::client::Client;
use porch_fn_tests::cluster::{Cluster, Discovery, Installation, Namespace, Plan};
use porch_fn_tests::load::{self, Load, Routers};
use porch_fn_tests::process::{eventually, figure};
use serde_json::json;
use tokio::process::Command;
use tokio::time::{Instant, interval};
use tonic::Code;

use crate::rig::INPUT;

/// How long both are at work.
const LONG: Duration = Duration::from_mins(10);
/// Within which an unused pod of ours is gone.
const COLLECTED: Duration = Duration::from_mins(4);
/// The label of both.
const ID: &str = "fn.kpt.dev/image";
const VERSION: &str = "fn.kpt.dev/template-version";
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Calls of one life of the evaluator, and how they follow each other: then it is started anew, without some pods.
const CALLS: usize = 60;
const PACE: Duration = Duration::from_millis(200);

/// Porch's pod evaluator.
struct Evaluator<'a> {
    namespace: &'a Namespace,
    wrapper: String,
    /// The resourceVersion of its template.
    version: String,
    /// By image.
    pods: BTreeMap<String, (String, Client)>,
    /// What it has made and deleted, by name.
    made: BTreeSet<String>,
    deleted: BTreeSet<String>,
}

// === impl Evaluator ===

impl<'a> Evaluator<'a> {
    fn new(namespace: &'a Namespace, wrapper: String, version: String) -> Self {
        let (pods, made, deleted) = Default::default();
        Self { namespace, wrapper, version, pods, made, deleted }
    }

    fn api(&self) -> Api<Pod> {
        self.namespace.api()
    }

    /// The program begins anew: it adopts the pods of its template's version.
    async fn restarts(&mut self, ids: &BTreeMap<String, String>) {
        self.pods.clear();
        let labelled = self.api().list(&ListParams::default().labels(ID)).await.unwrap();
        for pod in labelled.items {
            let alive = pod.metadata.deletion_timestamp.is_none();
            if alive && pod.annotations().get(VERSION) == Some(&self.version) {
                let id = &pod.labels()[ID];
                let (image, _) = ids
                    .iter()
                    .find(|(_, of_image)| *of_image == id)
                    .unwrap_or_else(|| panic!("it adopts pods of its own alone, not {}", pod.name_any()));
                let client = self.connect(id).await;
                self.pods.insert(image.clone(), (pod.name_any(), client));
            }
        }
    }

    async fn evaluates(&mut self, image: &str, id: &str) {
        if !self.pods.contains_key(image) {
            self.deletes(id).await;
            let name = self.makes(image, id).await;
            let client = self.connect(id).await;
            self.pods.insert(image.to_owned(), (name, client));
        }
        let client = &self.pods[image].1;
        let answer = eventually("its pod answers", async || {
            client.try_call(image, INPUT, None).await.ok().filter(|answer| answer.code == Code::Ok)
        });
        assert_eq!(answer.await.output(), INPUT);
    }

    /// All pods of the id, also those that it has not made.
    async fn deletes(&mut self, id: &str) {
        let of_id = ListParams::default().labels(&format!("{ID}={id}"));
        for pod in self.api().list(&of_id).await.unwrap() {
            self.deleted.insert(pod.name_any());
            self.api().delete(&pod.name_any(), &DeleteParams::default().grace_period(1)).await.unwrap();
        }
        let api = self.api();
        eventually("its pods of the id are gone", async || {
            api.list(&of_id).await.unwrap().items.is_empty().then_some(())
        })
        .await;
    }

    async fn makes(&mut self, image: &str, id: &str) -> String {
        let tools = json!([{"name": "wrapper-server-tools", "mountPath": "/wrapper-server-tools"}]);
        let pod: Pod = self
            .namespace
            .make(json!({
                "metadata": {
                    "generateName": format!("{id}-"), "labels": {ID: id}, "annotations": {VERSION: self.version},
                },
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "initContainers": [{
                        "name": "copy-wrapper-server", "image": self.wrapper, "volumeMounts": tools,
                        "command": ["cp", "-a", "/home/nonroot/wrapper-server/.", "/wrapper-server-tools"],
                    }],
                    "containers": [{
                        "name": "function", "image": image, "volumeMounts": tools,
                        "command": ["/wrapper-server-tools/wrapper-server"],
                        "args": ["--port", "9446", "--max-request-body-size", "6291456", "--", "/function"],
                    }],
                    "volumes": [{"name": "wrapper-server-tools", "emptyDir": {}}],
                },
            }))
            .await;
        self.made.insert(pod.name_any());
        let services: Api<Service> = self.namespace.api();
        if services.get_opt(id).await.unwrap().is_none() {
            let ports = json!([{"port": 9446, "targetPort": 9446}]);
            let service = json!({"metadata": {"name": id}, "spec": {"selector": {ID: id}, "ports": ports}});
            let _: Service = self.namespace.make(service).await;
        }
        pod.name_any()
    }

    /// By the Service, which leads to its pods alone.
    async fn connect(&self, id: &str) -> Client {
        let services: Api<Service> = self.namespace.api();
        let service = services.get(id).await.unwrap();
        let ip = service.spec.unwrap().cluster_ip.unwrap();
        Client::new(SocketAddr::new(ip.parse().unwrap(), 9446))
    }

    /// What it no longer uses goes.
    async fn collects(&mut self, image: &str, id: &str) {
        self.pods.remove(image);
        self.deletes(id).await;
    }
}

/// Porch's id of a pod: name, tag, number, the first of the image's digest.
async fn id(image: &str) -> String {
    let mut crane = Command::new("crane");
    let ended = crane.args(["digest", "--insecure", image]).stderr(Stdio::null()).output().await.unwrap();
    let digest = String::from_utf8(ended.stdout).unwrap();
    let (name, tag) = image.rsplit('/').next().unwrap().split_once(':').unwrap();
    format!("{name}-{tag}-1-{}", &digest["sha256:".len()..][..8])
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn neither_touches_the_others_pods() {
    let cluster = Cluster::connect().await;
    let images = ["both/set-labels:v1", "both/set-image:v2"].map(|name| cluster.function_named(name));
    let images: Vec<_> = futures_util::future::join_all(images).await;
    let mut ids = BTreeMap::new();
    for image in &images {
        ids.insert(image.clone(), id(image).await);
    }
    // Ours come and go as well. A pod is kept for as long as a call without a deadline may take.
    let mut plan = Plan::new(&cluster, Discovery::EndpointSlices, 2);
    let timeout = "--request-timeout=20s".to_owned();
    plan.router_flags = vec![timeout.clone()];
    plan.runner_flags = vec![timeout, "--pod-ttl=20s".into(), "--scan-interval=5s".into()];
    let installation = Installation::new(&cluster, &plan).await;
    installation.routers_agree().await;
    let functions = &installation.functions;
    // The template that both go by, as Porch makes it.
    let template: PodTemplate = functions.make(template(&cluster.wrapper_image())).await;
    let version = template.resource_version().unwrap();
    // Pods that were made before it are replaced, one by one, while calls go on.
    let routers = Routers::new([installation.address()]);
    let load = Load::through(&routers, load::Plan::callers(2, &images).longest(2 * COLLECTED));
    let by_it = |pods: &[Pod]| {
        let by_it = |pod: &&Pod| pod.annotations()[VERSION].starts_with("podtemplate-");
        (pods.iter().filter(by_it).count() >= images.len() && pods.iter().all(|pod| by_it(&pod)))
            .then_some(())
    };
    functions.until_within(COLLECTED, "ours go by it", by_it).await;
    load.stop().await.all_succeeded();

    let (audit, start) = (cluster.audit(), Instant::now());
    let mark = audit.mark().await;
    let mut theirs = Evaluator::new(functions, cluster.wrapper_image(), version);
    let mut report = load::Report::default();
    for round in 0.. {
        if start.elapsed() > LONG {
            break;
        }
        let load = Load::through(&routers, load::Plan::callers(4, &images));
        theirs.restarts(&ids).await;
        let mut ticks = interval(PACE);
        for call in 0..CALLS {
            ticks.tick().await;
            let image = &images[call % images.len()];
            theirs.evaluates(image, &ids[image]).await;
        }
        let image = &images[round % images.len()];
        theirs.collects(image, &ids[image]).await;
        report = report.merge(load.stop().await);
        // Now and then long enough for ours to be collected: a pod lives for two minutes at least.
        if round % 8 == 7 {
            let none =
                |pods: &[Pod]| (!pods.iter().any(|pod| pod.labels().contains_key(MANAGED_BY))).then_some(());
            functions.until_within(COLLECTED, "ours are collected", none).await;
        }
    }
    figure(&format!(
        "{:.0?} side by side: {report}; Porch's evaluator made {} pods and deleted {}",
        start.elapsed(),
        theirs.made.len(),
        theirs.deleted.len()
    ));
    report.all_succeeded();
    assert!(theirs.deleted.is_subset(&theirs.made), "it has deleted pods of ours: {:?}", theirs.deleted);

    // The API server's account of who deleted what.
    let account = format!("system:serviceaccount:{}:", installation.home().name());
    let requests = audit.since(&mark).await;
    let deletes: BTreeSet<_> = requests
        .iter()
        .filter(|request| request.namespace == functions.name() && request.resource == "pods")
        .filter(|request| request.verb == "delete" && request.user.starts_with(&account))
        .map(|request| request.name.clone())
        .collect();
    assert!(!deletes.is_empty() && deletes.is_disjoint(&theirs.made), "ours delete ours: {deletes:?}");
}

/// Porch's base-pod-template.
fn template(wrapper: &str) -> serde_json::Value {
    let tools = json!([{"name": "wrapper-server-tools", "mountPath": "/wrapper-server-tools"}]);
    json!({
        "metadata": {"name": "base-pod-template"},
        "template": {"spec": {
            "initContainers": [{
                "name": "copy-wrapper-server", "image": wrapper, "volumeMounts": tools,
                "command": ["cp", "-a", "/home/nonroot/wrapper-server/.", "/wrapper-server-tools"],
            }],
            "containers": [{
                "name": "function", "image": "image-replaced-by-kpt-func-image", "volumeMounts": tools,
                "command": ["/wrapper-server-tools/wrapper-server"],
            }],
            "volumes": [{"name": "wrapper-server-tools", "emptyDir": {}}],
        }},
    })
}

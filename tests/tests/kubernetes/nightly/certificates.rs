//! deploy/components/mtls with cert-manager's real controllers. Routers and runners accept only the
//! certificates that cert-manager issues, and a renewal fails no call. `tests/run nightly
//! certificates` runs this test.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use porch_fn_tests::client::Client;
use porch_fn_tests::cluster::{Cluster, ROUTER, RUNNERS};
use porch_fn_tests::process::{eventually, figure};
use porch_fn_tests::rights::HOME;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Child;
use tokio::time::{Instant, timeout};

use crate::alone::deploy::{DeploySetup, PART_OF};
use crate::rig::INPUT;

/// The name of the CA's Certificate and of its Secret.
const CA: &str = "function-runner-ca";
const ROUTER_SECRET: &str = "function-router-tls";
const RUNNER_SECRET: &str = "function-runner-shards-tls";
/// The DNS name that routers look up, and that the runners' certificate contains.
const NAME: &str = "function-runner-shards.porch-system";
const PORT: u16 = 9445;
/// The kubelet needs up to 90 s to update the files of a changed Secret. The programs read the
/// files every 5 s.
const IN_USE_WITHIN: Duration = Duration::from_mins(2);

// === impl DeploySetup ===

impl DeploySetup {
    /// Starts cert-manager's controllers, which run until the result is dropped. Their log is among
    /// the cluster's logs, which are kept when a test fails.
    fn start_cert_manager(&self) -> Child {
        let log = File::create(self.cluster.machine().directory().join("log/cert-manager.log")).unwrap();
        let mut command = self.sandbox.command("cert-manager");
        command.arg(HOME).env("KUBECONFIG", self.cluster.kubeconfig()).stdin(Stdio::null()).stderr(log);
        command.spawn().expect("tests/run nightly certificates builds cert-manager")
    }

    async fn pods(&self, deployment: &str) -> Vec<Pod> {
        let pods: Api<Pod> = Api::namespaced(self.cluster.client(), HOME);
        let of = ListParams::default().labels(&format!("app.kubernetes.io/name={deployment}"));
        pods.list(&of).await.unwrap().items
    }

    /// The files that cert-manager has put into a Secret: PEM texts by file name.
    async fn secret(&self, name: &str) -> BTreeMap<String, String> {
        let secrets: Api<Secret> = Api::namespaced(self.cluster.client(), HOME);
        let data = secrets.get(name).await.unwrap().data.unwrap();
        data.into_iter().map(|(file, text)| (file, String::from_utf8(text.0).unwrap())).collect()
    }

    /// A client that uses the certificate of a Secret.
    async fn client(&self, runner: SocketAddr, secret: &str) -> Client {
        for (file, text) in self.secret(secret).await {
            self.sandbox.write(&format!("{secret}/{file}"), text);
        }
        let path = |file| self.sandbox.path(&format!("{secret}/{file}"));
        Client::secured(runner, NAME, ["tls.crt", "tls.key", "ca.crt"].map(path))
    }

    /// Asserts that a runner accepts a router's certificate, and refuses a runner's certificate,
    /// which is for servers only.
    async fn assert_only_routers_accepted(&self) {
        let runner = &self.pods(RUNNERS).await[0];
        let ip = runner.status.as_ref().and_then(|status| status.pod_ip.as_ref());
        let address = SocketAddr::new(ip.expect("it runs").parse().unwrap(), PORT);
        let image = &self.images[0];
        let router = self.client(address, ROUTER_SECRET).await;
        assert_eq!(router.call(image, INPUT).await.output(), INPUT);
        assert!(Client::new(address).try_call(image, INPUT, None).await.is_err(), "without a certificate");
        let other = self.client(address, RUNNER_SECRET).await.try_call(image, INPUT, None).await;
        assert!(other.is_err(), "{other:?}");
        self.wait_log(runner, "extended key usage for client authentication").await;
    }

    /// Waits until a pod's log contains a text.
    async fn wait_log(&self, pod: &Pod, text: &str) {
        let mut kubectl = self.sandbox.command("kubectl");
        kubectl.args(["-n", HOME, "logs", "--follow", &pod.name_any()]).stdin(Stdio::null());
        kubectl.env("KUBECONFIG", self.cluster.kubeconfig()).stdout(Stdio::piped());
        let mut kubectl = kubectl.spawn().unwrap();
        let mut lines = BufReader::new(kubectl.stdout.take().unwrap()).lines();
        let found = async {
            loop {
                let line = lines.next_line().await.unwrap().expect("the pod still runs");
                if line.contains(text) {
                    return;
                }
            }
        };
        let found = timeout(IN_USE_WITHIN, found).await;
        found.unwrap_or_else(|_| panic!("not within {IN_USE_WITHIN:?}: {text} in {}", pod.name_any()));
    }

    /// Renews a certificate like `cmctl renew`.
    async fn renew(&self, certificate: &str) {
        let issuing = json!([{"op": "add", "path": "/status/conditions/-", "value": {
            "type": "Issuing", "status": "True", "reason": "ManuallyTriggered", "message": "the test wants it",
        }}])
        .to_string();
        let patch =
            ["patch", "certificate", certificate, "--subresource=status", "--type=json", "-p", &issuing];
        self.kubectl(&[&["-n", HOME][..], &patch].concat()).await;
        let renewed = ["wait", "certificate", certificate, "--for=jsonpath={.status.revision}=2"];
        self.kubectl(&[&["-n", HOME][..], &renewed, &["--timeout=30s"]].concat()).await;
    }

    /// Renews the certificate of the routers or of the runners, and waits until all their pods use
    /// it.
    async fn renew_side(&self, deployment: &str, secret: &str) {
        let start = Instant::now();
        let before = self.secret(secret).await;
        self.renew(deployment).await;
        let after = self.secret(secret).await;
        assert_ne!(before["tls.crt"], after["tls.crt"]);
        assert_ne!(before["tls.key"], after["tls.key"]);
        assert_eq!(after["ca.crt"], self.secret(CA).await["tls.crt"]);
        let pods = self.pods(deployment).await;
        let in_use = pods.iter().map(async |pod| {
            self.wait_log(pod, "certificates were read again").await;
            start.elapsed()
        });
        let in_use = join_all(in_use).await;
        figure(&format!("{deployment} used its new certificate after {in_use:.0?}"));
    }
}

#[tokio::test]
#[ignore = "needs a cluster and cert-manager; tests/run nightly runs it"]
async fn certificates_are_issued_and_renewed_and_only_routers_may_call_runners() {
    let cluster = Cluster::connect().await;
    let setup = DeploySetup::new(cluster).await;
    setup.install_component_crds().await;
    let _cert_manager = setup.start_cert_manager();

    let folder = setup.with(&["mtls", "network-policies", "restricted"]);
    let start = Instant::now();
    setup.kubectl(&["apply", "-k", &folder]).await;
    let ready = ["wait", "certificates", "--all", "--for=condition=Ready", "--timeout=50s"];
    setup.kubectl(&[&["-n", HOME][..], &ready].concat()).await;
    figure(&format!("certificates issued after {:.1?}", start.elapsed()));
    setup.rolled_out(&[RUNNERS, ROUTER]).await;
    figure(&format!("router and runners ready after {:.1?}", start.elapsed()));
    setup.call_each(&setup.images[..2]).await;
    setup.assert_only_routers_accepted().await;

    // The renewed CA signs the runners' certificate while routers still have the CA's old
    // certificate.
    for (deployment, secret) in [(RUNNERS, RUNNER_SECRET), (ROUTER, ROUTER_SECRET)] {
        setup
            .under_load(&format!("certificates of {deployment} renewed"), async || {
                if deployment == RUNNERS {
                    setup.renew(CA).await;
                }
                setup.renew_side(deployment, secret).await;
                // Existing connections survive a renewal. Routers must use the new certificates to
                // connect to new runners.
                setup.kubectl(&["-n", HOME, "rollout", "restart", "deployment", RUNNERS]).await;
                setup.rolled_out(&[RUNNERS]).await;
            })
            .await;
    }

    setup.uninstall(&folder).await;
    setup.kubectl(&["-n", HOME, "delete", "secrets", "-l", PART_OF]).await;
    setup.wait_uninstalled().await;
    eventually("no object of cert-manager is left", async || {
        let kinds = "certificates,certificaterequests,issuers,secrets";
        let left = setup.kubectl(&["-n", HOME, "get", kinds, "-o", "name", "--ignore-not-found"]).await;
        left.is_empty().then_some(())
    })
    .await;
    setup.delete_namespaces().await;
    figure(&format!("all of it took {:.0?}", start.elapsed()));
}

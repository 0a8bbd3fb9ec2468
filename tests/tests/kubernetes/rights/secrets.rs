//! The copy of the credentials for registries, with one right on Secrets missing. Public images run all the same.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use porch_fn_tests::registry::{User, base64, docker_config, replace};
use serde_json::json;

use super::{Limited, Missing};
use crate::parity::{Bench, MANAGED_BY, MANAGER};

const COPY: &str = "auth-secret";
const MAY_NOT: &str = "the runner may not write Secret auth-secret in the function namespace: its Role needs the verbs create, \
                       delete, get and update on secrets there";

/// A runner with credentials of some registry.
struct Copying {
    limited: Limited,
    file: PathBuf,
}

fn credentials(password: &str) -> String {
    docker_config([("registry.example.com", &User::new("runner", password))])
}

// === impl Copying ===

impl Copying {
    async fn without(bench: Bench, missing: Missing<'_>) -> Self {
        let file = bench.sandbox.write("config-secret/.dockerconfigjson", credentials("one"));
        let path = format!("--registry-auth-secret-path={}", file.display());
        let limited = Limited::start(bench, missing, &["--enable-private-registries", &path]).await;
        Self { limited, file }
    }

    async fn copied(&self, password: &str) -> Secret {
        let content = credentials(password);
        let look = |secrets: &[Secret]| {
            let secret = secrets.iter().find(|secret| secret.name_any() == COPY)?;
            let data = secret.data.as_ref()?.get(".dockerconfigjson")?;
            (data.0 == content.as_bytes()).then(|| secret.clone())
        };
        self.limited.bench.namespace.until("the Secret is a copy of the file", look).await
    }

    async fn refused(&self, verb: &str) {
        self.limited.says(MAY_NOT).await;
        self.limited.says(&format!("cannot {verb} resource")).await;
        self.limited.runner.succeeds().await;
    }

    /// No Secret, although the runner may not say so.
    async fn nothing_is_copied(&self) {
        assert_eq!(self.limited.bench.namespace.list::<Secret>().await, []);
    }
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn without_secrets_create() {
    let copying = Copying::without(Bench::new().await, &[("create", "secrets")]).await;
    copying.refused("create").await;
    copying.nothing_is_copied().await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn without_secrets_get() {
    let copying = Copying::without(Bench::new().await, &[("get", "secrets")]).await;
    copying.refused("get").await;
    copying.nothing_is_copied().await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn without_secrets_update() {
    let copying = Copying::without(Bench::new().await, &[("update", "secrets")]).await;
    copying.copied("one").await;
    replace(&copying.file, credentials("two"));
    copying.refused("update").await;
    copying.copied("one").await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn without_secrets_delete() {
    for missing in [true, false] {
        let bench = Bench::new().await;
        // A copy of a runner's which cannot be changed.
        let old = json!({
            "metadata": {"name": COPY, "labels": {MANAGED_BY: MANAGER}},
            "type": "kubernetes.io/dockerconfigjson", "immutable": true,
            "data": {".dockerconfigjson": base64(&credentials("old"))},
        });
        let old: Secret = bench.namespace.make(old).await;
        let taken: Missing<'_> = if missing { &[("delete", "secrets")] } else { &[] };
        let copying = Copying::without(bench, taken).await;
        if missing {
            copying.refused("delete").await;
            assert_eq!(copying.copied("old").await.uid(), old.uid());
        } else {
            assert_ne!(copying.copied("one").await.uid(), old.uid());
        }
    }
}

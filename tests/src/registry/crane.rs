//! Puts images into registries, with `crane`, which is on PATH in the cluster's network.

use super::{Access, Registry, docker_config};
use crate::process::Sandbox;

/// One who pushes. It knows the credentials and authorities of the registries that it was made for.
#[derive(Debug)]
pub struct Crane<'a> {
    sandbox: &'a Sandbox,
    environment: Vec<(String, String)>,
}

// === impl Crane ===

impl<'a> Crane<'a> {
    /// For this registry too, and open ones.
    pub fn of(registry: &Registry<'a>) -> Self {
        let Access { user, tls } = &registry.access;
        let mut environment = Vec::new();
        if let Some(user) = user {
            let config = docker_config([(registry.address.to_string().as_str(), user)]);
            let folder = format!("{}/crane", registry.name);
            registry.sandbox.write(&format!("{folder}/config.json"), config);
            let folder = registry.sandbox.path(&folder);
            environment.push(("DOCKER_CONFIG".into(), folder.to_string_lossy().into_owned()));
        }
        if let Some(authority) = tls {
            environment.push(("SSL_CERT_FILE".into(), authority.path().to_string_lossy().into_owned()));
        }
        Self { sandbox: registry.sandbox, environment }
    }

    /// Puts an image under another name, changed as the flags of `crane mutate` say. With a label of that name it is
    /// another image even where nothing else is changed.
    pub async fn change(&self, from: &str, to: &str, flags: &[&str]) {
        let label = format!("--label=of-the-test={to}");
        let whole = ["mutate", from, "--tag", to, &label];
        self.run(&whole.into_iter().chain(flags.iter().copied()).collect::<Vec<_>>()).await;
    }

    /// The digest of what a reference stands for: of an index its own.
    pub async fn digest(&self, image: &str) -> String {
        self.run(&["digest", image]).await.trim().to_owned()
    }

    async fn run(&self, args: &[&str]) -> String {
        let environment = self.environment.iter().map(|(name, value)| format!("{name}={value}"));
        let whole = environment.chain(["crane".into()]).chain(args.iter().map(ToString::to_string));
        let ended = self.sandbox.run("env", whole.chain(["--insecure".into()]), b"").await;
        assert!(ended.status.success(), "crane {args:?}: {}", String::from_utf8_lossy(&ended.stderr));
        String::from_utf8_lossy(&ended.stdout).into_owned()
    }
}

//! Creates the parts for function pods on Kubernetes and connects them.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use porch_fn_discovery::HostPort;
use porch_fn_kubernetes::connect;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use super::pods::{Owned, PodParts, desired, events, own_address};
use super::{AppError, Wiring};
use crate::clock::now_ahead;
use crate::pods::kubernetes::announce::Announcements;
use crate::pods::kubernetes::backend::KubernetesBackend;
use crate::pods::kubernetes::blueprint::{Blueprint, NoTemplate, PodFlags, origins};
use crate::pods::kubernetes::client::Cluster;
use crate::pods::kubernetes::pull_secret::PullSecret;
use crate::pods::kubernetes::store::{Connect, Store};
use crate::pods::kubernetes::template_source::{TemplateSource, Templates};
use crate::pods::kubernetes::{clock, function_configs, watch as follow};
use crate::settings::Sources;
use porch_fn_runner_config::{Flags, PodConnect};

/// How long startup waits to measure how far the API server's clock is ahead of this machine's.
const FIRST_CLOCK_WITHIN: Duration = Duration::from_secs(2);
/// How long startup waits for FunctionConfigs and the template. The pool's first configuration is
/// complete only with them.
const FIRST_ANSWERS_WITHIN: Duration = Duration::from_secs(5);

impl Wiring<'_> {
    pub(super) async fn kubernetes_pods(
        &mut self,
        mut sources: Sources,
        owned: Owned,
    ) -> Result<PodParts, AppError> {
        let flags = self.flags;
        let (templates, connect_pods) = (templates(flags)?, connect_pods(flags)?);
        let announcements = announcements(flags)?;
        let (images, credentials) = self.registries()?;
        let client = connect(flags.server.kubeconfig.as_deref(), "porch-fn-runner").await.map_err(|error| {
            format!("--pod-backend=kubernetes needs the API server: {error}; --disable-runtimes=pod runs without pods")
        })?;
        let ahead = timeout(FIRST_CLOCK_WITHIN, clock::ahead(&client)).await;
        let ahead = ahead.ok().flatten().unwrap_or_default();
        let follow_clock = clock::follow(client.clone(), Arc::clone(&self.metrics));
        self.tasks.keep(tracing::info_span!("clock"), follow_clock);

        let (sender, mut functions) = watch::channel(None);
        sources.functions = functions.clone();
        let options = function_configs::Options {
            client: client.clone(),
            namespace: flags.pod_namespace.clone(),
            default_prefix: flags.server.default_image_prefix.clone(),
            semantics: flags.functionconfig_tags.semantics(),
            retry_every: flags.scan_interval.into(),
        };
        let follow_functions =
            function_configs::follow(options, owned.clone(), sender, Arc::clone(&self.metrics));
        self.tasks.keep(tracing::info_span!("functionconfigs"), follow_functions);

        let namespace = match &templates {
            Templates::ConfigMap(_) if flags.namespace.is_empty() => client.default_namespace().to_owned(),
            Templates::ConfigMap(_) => flags.namespace.clone(),
            Templates::Objects { .. } => flags.pod_namespace.clone(),
        };
        let source = TemplateSource { client: client.clone(), namespace, templates, started: Instant::now() };
        let (sender, mut templates) = watch::channel(Err(NoTemplate::Unread));
        let follow_template = source.follow(flags.scan_interval.into(), sender, Arc::clone(&self.metrics));
        self.tasks.keep(tracing::info_span!("template"), follow_template);

        let pull_secret = flags.enable_private_registries.then(|| flags.registry_auth_secret_name.clone());
        let secret_written = pull_secret.clone().map(|name| {
            let (client, namespace) = (client.clone(), flags.pod_namespace.clone());
            let (sender, written) = watch::channel(false);
            let secret = PullSecret { client, namespace, name };
            let content = credentials.subscribe();
            let follow = secret.follow(content, owned.clone(), flags.scan_interval.into(), sender);
            self.tasks.keep(tracing::info_span!("pull secret"), follow);
            written
        });

        let by = Instant::now() + FIRST_ANSWERS_WITHIN;
        // The runner also starts without a template: existing pods can serve.
        let _ = timeout_at(by, templates.changed()).await;
        let _ = timeout_at(by, functions.wait_for(Option::is_some)).await;

        let started = now_ahead(ahead);
        let pod_flags = PodFlags {
            max_message: flags.server.max_request_body_size,
            pull_secret,
            log_format: flags.server.log_format,
        };
        // No pod is made until the settings are complete, because FunctionConfigs may change the
        // template.
        let early = Err(NoTemplate::FunctionConfigsUnread);
        let settings = sources.current().settings;
        let first = Blueprint::new(early, pod_flags.clone(), settings, started, None);
        let (current, blueprint) = watch::channel(Arc::new(first));
        let events = events();
        let by_service = connect_pods != Connect::PodIp;
        let store = Arc::new(Store::new(connect_pods, announcements, Arc::clone(&images), events.0.clone()));
        let shared = Arc::new(KubernetesBackend {
            cluster: Cluster::new(client, &flags.pod_namespace),
            store: Arc::clone(&store),
            blueprint,
            pull_secret: secret_written,
            refused: Mutex::default(),
        });
        let (sender, synced) = watch::channel(false);
        let tasks = &mut self.tasks;
        let watch_pods = follow::pods(Arc::clone(&shared), sender);
        tasks.keep(tracing::info_span!("watch", resource = "pods"), watch_pods);
        if by_service {
            let watch_services = follow::services(Arc::clone(&shared));
            tasks.keep(tracing::info_span!("watch", resource = "services"), watch_services);
        }
        tasks.keep(tracing::info_span!("idle connections"), Arc::clone(&store).follow_idle());
        tasks.keep(tracing::info_span!("ending"), Arc::clone(&shared).look_after_ending());

        let origins = origins(pod_flags, started, current);
        let desired = desired(flags, origins, templates, images, owned);
        let scope = format!("kubernetes/{}", flags.pod_namespace);
        let parts = self.runtime(desired, shared, ahead, events, sources, scope);
        Ok(PodParts { synced: Some(synced), store: Some(store), ..parts })
    }
}

/// The templates that the flags choose.
fn templates(flags: &Flags) -> Result<Templates, String> {
    if let Some(name) = non_empty(&flags.function_pod_template) {
        return Ok(Templates::ConfigMap(name));
    }
    let Some(wrapper_image) = non_empty(&flags.wrapper_server_image) else {
        let text = "function pods need WRAPPER_SERVER_IMAGE, the image with the wrapper-server, or a template of \
                    their own with --function-pod-template; --disable-runtimes=pod runs without pods";
        return Err(text.to_owned());
    };
    Ok(Templates::Objects {
        pod: flags.base_pod_template_name.clone(),
        service: flags.base_service_template_name.clone(),
        built_in: (!flags.skip_template_creation).then_some(wrapper_image),
        wait: flags.template_wait_timeout.into(),
    })
}

/// How the runner reaches pods. The domain is checked here, because it is part of each Service's
/// DNS name.
fn connect_pods(flags: &Flags) -> Result<Connect, String> {
    if flags.pod_connect == PodConnect::PodIp {
        return Ok(Connect::PodIp);
    }
    let (namespace, domain) = (&flags.pod_namespace, &flags.cluster_domain);
    let suffix = format!("{namespace}.svc.{domain}");
    let name = format!("pod.{suffix}");
    if HostPort::parse(&name, 1).is_ok_and(|host| host.host == name) {
        return Ok(Connect::Service { suffix });
    }
    Err(format!("--cluster-domain {domain:?} or --pod-namespace {namespace:?} is no DNS name"))
}

/// With `--pod-announce`: the address at which pods reach this runner.
fn announcements(flags: &Flags) -> Result<Option<Announcements>, AppError> {
    if !flags.pod_announce {
        return Ok(None);
    }
    if flags.server.tls_cert.is_some() || flags.server.listen_tls_cert.is_some() {
        let text = "--pod-announce needs a listener without TLS, because function pods have no certificate: \
                    remove --pod-announce, --tls-* or --listen-tls-*";
        return Err(AppError::Usage(text.to_owned()));
    }
    Ok(Some(Announcements::new(own_address(flags, "pod-announce")?)))
}

fn non_empty(text: &str) -> Option<String> {
    Some(text.to_owned()).filter(|text| !text.is_empty())
}

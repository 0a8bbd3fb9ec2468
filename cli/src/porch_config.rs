//! `porch-fn porch-config`: prints FunctionConfigs that make porch-server send its functions to the
//! routers, and FunctionConfigs that undo this.
//!
//! Some versions of porch-server create function pods themselves. Such a porch-server calls the
//! address in `--function-runner` only if a FunctionConfig names an executable for the image's tag.
//! So each function gets a `binaryExecutor` for all tags. The output is meant for
//! `kubectl apply -f -`, or for a Git repository.

mod changes;

use std::process::ExitCode;

use http::Request;
use kube::api::{Api, ListParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use porch_fn_kubernetes::bounded;
use porch_fn_settings::TagSemantics;
use serde_json::Value;

pub(crate) use self::changes::{CATALOG, GROUP};
use self::changes::{Function, KIND, VERSION, function};
use crate::cluster::{Cluster, ClusterArgs};
use crate::failure::Failure;
use crate::output::{HELP, note, show, yaml};

/// Maximum number of FunctionConfigs to read.
const MAX_OBJECTS: u32 = 10_000;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Action {
    /// Print FunctionConfigs that make porch-server call the routers
    #[command(help_template = HELP)]
    Generate {
        /// Functions, without tag, with or without registry; default: all functions that have a
        /// FunctionConfig
        #[arg(value_name = "FUNCTION", value_parser = function)]
        functions: Vec<Function>,
        /// Meaning of the tags in this Porch's FunctionConfigs
        #[arg(long, value_name = "MEANING", value_enum, default_value_t = Tags::Auto)]
        functionconfig_tags: Tags,
        #[command(flatten)]
        place: Place,
    },
    /// Print the FunctionConfigs as they were before, and the command that deletes the new ones
    #[command(help_template = HELP)]
    Remove {
        #[command(flatten)]
        place: Place,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Tags {
    /// As described in the cluster's schema
    Auto,
    /// Version constraints, even if the schema does not say so
    Constraint,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Place {
    /// Namespace of FunctionConfigs and function pods
    #[arg(long, value_name = "NAMESPACE", default_value = "porch-fn-system")]
    pod_namespace: String,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Reasons why `porch-config generate` refuses a cluster.
const NO_FUNCTION_CONFIGS: &str = "the cluster has no FunctionConfigs (config.porch.kpt.dev/v1alpha1). Only a Porch \
    whose porch-server evaluates in pods needs them; for another Porch, set --function-runner to the routers";
const NO_CONSTRAINTS: &str = "tags of this cluster's FunctionConfigs are not version constraints (kptdev/porch#1186), \
    so no tag matches all tags: upgrade Porch and its CRDs first. Porch 1.6 and older call the routers without \
    FunctionConfigs: set --function-runner to the routers";
const SILENT_SCHEMA: &str = "the schema of this cluster's FunctionConfigs has no descriptions, so the meaning of tags is \
    unknown. If Porch is newer than 1.6 and has kptdev/porch#1186, its tags are version constraints: add \
    --functionconfig-tags=constraint. Porch 1.6 and older call the routers without FunctionConfigs";

pub(crate) async fn run(action: &Action) -> Result<ExitCode, Failure> {
    let (Action::Generate { place, .. } | Action::Remove { place }) = action;
    let (cluster, namespace) = (place.cluster.connect().await?, &place.pod_namespace);
    let changes = match action {
        Action::Generate { functions, functionconfig_tags, .. } => {
            require_constraints(&schema(&cluster).await?, *functionconfig_tags)?;
            let existing = existing(&cluster, namespace).await?;
            changes::generate(&existing, functions, namespace, &cluster.namespace)?
        }
        Action::Remove { .. } => changes::remove(&existing(&cluster, namespace).await?, namespace),
    };
    if !changes.objects.is_empty() {
        show(&yaml(&changes.objects)?);
    }
    for found in changes.notes {
        note(format_args!("porch-fn porch-config: {found}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Fails unless the tag `*` means all tags in the FunctionConfigs of this Porch.
fn require_constraints(schema: &Value, tags: Tags) -> Result<(), Failure> {
    match (tags, TagSemantics::of_schema(schema)) {
        (Tags::Constraint, _) | (Tags::Auto, Some(TagSemantics::Constraint)) => Ok(()),
        (Tags::Auto, Some(TagSemantics::Exact)) => Err(Failure::new(NO_CONSTRAINTS)),
        (Tags::Auto, None) => Err(Failure::new(SILENT_SCHEMA)),
    }
}

/// Gets the API group's schema. By default every user may read it, unlike the CRD.
async fn schema(cluster: &Cluster) -> Result<Value, Failure> {
    let request = Request::get(format!("/openapi/v3/apis/{GROUP}/{VERSION}")).body(Vec::new())?;
    match bounded(cluster.client.request(request)).await {
        Err(error) if error.code() == Some(404) => Err(Failure::new(NO_FUNCTION_CONFIGS)),
        answer => answer.map_err(cluster.unread("the schema of FunctionConfigs")),
    }
}

async fn existing(cluster: &Cluster, namespace: &str) -> Result<Vec<Value>, Failure> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, VERSION, KIND));
    let api: Api<DynamicObject> = Api::namespaced_with(cluster.client.clone(), namespace, &kind);
    let what = format!("the FunctionConfigs of namespace {namespace}");
    let objects = cluster.list(&api, &what, ListParams::default(), MAX_OBJECTS).await?;
    Ok(objects.iter().map(serde_json::to_value).collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_schema_without_constraints_is_refused_and_one_without_descriptions_needs_the_flag() {
        let schema = |executor: &str, description: &str| {
            let spec = json!({executor: {"properties": {"tags": {"description": description}}}});
            json!({"components": {"schemas": {"a": {
                "x-kubernetes-group-version-kind": [{"kind": KIND}],
                "properties": {"spec": {"properties": spec}},
            }}}})
        };
        let refused = |schema: &Value| require_constraints(schema, Tags::Auto).err();
        // The word "constraint" may be in the schema of any of the three executors, in any letter
        // case.
        assert!(refused(&schema("podExecutor", "Version CONSTRAINTS.")).is_none());
        let exact = schema("podExecutor", "Image tags.");
        assert_eq!(refused(&exact).unwrap().to_string(), NO_CONSTRAINTS);
        let silent = refused(&json!({})).unwrap().to_string();
        assert!(silent.contains("--functionconfig-tags=constraint"), "{silent}");
        assert!(require_constraints(&json!({}), Tags::Constraint).is_ok());
    }

    #[test]
    fn yaml_contains_null_fields() {
        let object = json!({"binaryExecutor": null, "annotation": ""});
        let text = yaml(std::slice::from_ref(&object)).unwrap();
        assert!(text.contains("binaryExecutor: null\n"), "{text}");
        assert_eq!(serde_saphyr::from_multiple::<Value>(&text).unwrap(), [object]);
    }
}

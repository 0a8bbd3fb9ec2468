//! The objects of an installation: the base of deploy/ in other namespaces, with the images and
//! flags of a plan.

use std::path::Path;

use serde_json::{Value, json};

use super::{Discovery, PORT, Plan, ROUTER, RUNNERS};
use crate::cluster::ENTRYPOINT;
use crate::rights::{self, DEPLOY, FUNCTIONS, HOME};

const IMAGE_METADATA: &str = "image-metadata";
/// An installation keeps only these flags of the base. The default limits apply, such as one pod
/// per function.
const KEPT: [&str; 4] = ["--runners=", "--router-count=", "--peers=", "--pod-namespace="];

/// All objects of the base.
pub(super) fn base(home: &str, functions: &str) -> Vec<Value> {
    let files = ["rights.yaml", "runners.yaml", "router.yaml"];
    let all: Vec<_> = files.iter().flat_map(|file| rights::objects(&Path::new(DEPLOY).join(file))).collect();
    let moved = json!(all).to_string().replace(FUNCTIONS, functions).replace(HOME, home);
    serde_json::from_str(&moved).expect("the same objects")
}

/// The ConfigMap that `--image-metadata` reads.
pub(super) fn image_metadata(images: &[String]) -> Value {
    let images: Vec<_> =
        images.iter().map(|image| json!({"image": image, "entrypoint": [ENTRYPOINT]})).collect();
    let data = json!({"images.yaml": json!({"images": images}).to_string()});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": IMAGE_METADATA}, "data": data})
}

/// A Deployment of the base with the settings of a plan. The runners' Deployment omits `replicas`,
/// so that an upgrade does not scale it.
pub(super) fn planned(mut deployment: Value, plan: &Plan, home: &str, registry: &str) -> Value {
    let is_router = deployment["metadata"]["name"] == ROUTER;
    let pod = &mut deployment["spec"]["template"]["spec"];
    // Discovery by EndpointSlices needs the ServiceAccount's token.
    pod["automountServiceAccountToken"] = json!(true);
    let container = &mut pod["containers"][0];
    let mut flags: Vec<String> = serde_json::from_value(container["args"].take()).expect("flags");
    flags.retain(|flag| KEPT.iter().any(|kept| flag.starts_with(kept)));
    if plan.discovery == Discovery::EndpointSlices {
        let by_dns = format!("dns:///{RUNNERS}.{home}:{PORT}");
        let by_slices = format!("kubernetes:///{home}/{RUNNERS}:{PORT}");
        flags = flags.iter().map(|flag| flag.replace(&by_dns, &by_slices)).collect();
    }
    let (image, more) = if is_router {
        (&plan.router_image, &plan.router_flags)
    } else {
        (&plan.runner_image, &plan.runner_flags)
    };
    flags.extend(more.iter().cloned());
    if !is_router {
        match plan.listed_images {
            Some(_) => flags.push("--image-metadata=/etc/porch-fn/images.yaml".into()),
            None => flags.push(format!("--insecure-registries={registry}")),
        }
    }
    container["image"] = json!(image);
    container["args"] = json!(flags);
    // Another build of the image may have been pushed under the same name.
    container["imagePullPolicy"] = json!("Always");
    // The node is too small for the base's resource requests.
    container["resources"] = json!({});
    if is_router {
        return deployment;
    }
    for variable in container["env"].as_array_mut().into_iter().flatten() {
        if variable["name"] == "WRAPPER_SERVER_IMAGE" {
            variable["value"] = json!(plan.wrapper_image);
        }
    }
    if plan.listed_images.is_some() {
        let mount = json!({"name": IMAGE_METADATA, "mountPath": "/etc/porch-fn"});
        container["volumeMounts"].as_array_mut().expect("mounts").push(mount);
        let volume = json!({"name": IMAGE_METADATA, "configMap": {"name": IMAGE_METADATA}});
        pod["volumes"].as_array_mut().expect("volumes").push(volume);
    }
    deployment["spec"].as_object_mut().expect("a spec").remove("replicas");
    deployment
}

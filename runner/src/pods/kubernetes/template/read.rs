//! Objects out of a ConfigMap's texts.
//!
//! A text is read straight into the Kubernetes type, so that a mistake has its line and column and a plain scalar is
//! the string that was written where a string belongs: `true` and `1.10` in an annotation.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{Metadata, Resource};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{MAX_BYTES, Part, TemplateError};
use porch_fn_settings::yaml;

/// What an object has outside the fields of its type: the documented example keeps its annotations there.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Head {
    kind: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
}

/// Reads one object. Labels and annotations beside its metadata are moved there, with a warning.
pub(super) fn object<K>(part: Part, text: &str, warnings: &mut Vec<String>) -> Result<K, TemplateError>
where
    K: DeserializeOwned + Resource + Metadata<Ty = ObjectMeta>,
{
    if text.len() > MAX_BYTES {
        return Err(TemplateError::TooLarge { part, size: text.len() });
    }
    let failed = |reason| TemplateError::Parse { part, reason };
    let head: Head = yaml::parse::<Option<Head>>(text).map_err(failed)?.unwrap_or_default();
    if head.kind.as_deref() != Some(K::KIND) {
        let found = head.kind.unwrap_or_default();
        return Err(TemplateError::Kind { part, expected: K::KIND, found });
    }
    let mut object: K = yaml::parse(text).map_err(failed)?;
    let metadata = object.metadata_mut();
    for (field, misplaced, place) in [
        ("labels", head.labels, &mut metadata.labels),
        ("annotations", head.annotations, &mut metadata.annotations),
    ] {
        let Some(misplaced) = misplaced else { continue };
        warnings.push(format!(
            "{part}: {field} stand beside metadata and count as if they stood in it: move them under metadata"
        ));
        let place = place.get_or_insert_default();
        for (key, value) in misplaced {
            place.entry(key).or_insert(value);
        }
    }
    Ok(object)
}

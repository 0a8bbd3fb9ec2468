//! What `--allowed-images` changes.

use std::time::Duration;

use porch_fn_image::AllowedImages;
use serde_json::json;

use super::tests::{PREFIX, flags, image, settings};
use super::*;
use crate::function_config::MIN_REPLICAS;
use crate::tags::TagSemantics;

#[test]
fn images_that_are_not_allowed_are_neither_warmed_nor_kept_and_say_so() {
    let cache = "- {name: 'f:v1', minReplicas: 1, timeToLive: 2m}\n- {name: 'f:v2', minReplicas: 1}\n";
    let exec = "functions: [{function: e, images: ['f:v2', 'f:v1']}]";
    let object = json!({
        "metadata": {"name": "fc", "annotations": {MIN_REPLICAS: "1"}},
        "spec": {"image": "g", "prefixes": ["", "quay.io"], "podExecutor": {"tags": ["v1", "~1"]}},
    });
    let configs = vec![FunctionConfig::parse(&object, PREFIX, TagSemantics::Constraint).unwrap()];
    let allowed = AllowedImages::parse(&["f:v1", "quay.io/*"], PREFIX).unwrap();
    let settings = settings(Flags { allowed_images: Arc::new(allowed), ..flags() }, cache, exec, configs);

    assert_eq!(settings.ranges(true), [], "no registry is asked for what may not be allowed");
    let range = Range { repository: image("g"), constraint: "~1".to_owned() };
    let resolved = Resolved::from([(range, image("g:v1.1"))]);
    assert_eq!(settings.warm(&resolved), ["f:v1", "quay.io/g:v1"].map(image));
    assert_eq!(settings.kept(&resolved), [(image("f:v1"), 1), (image("quay.io/g:v1"), 1)]);
    let note = "every call is refused: no pattern of --allowed-images fits this image";
    let allowed = settings.of(&image("f:v1"));
    assert!(allowed.executable.is_some() && !allowed.notes.iter().any(|found| found == note));
    assert_eq!(allowed.ttl.value, Duration::from_mins(2));
    for refused in ["f:v2", "g:v1"].map(image) {
        let refused = settings.of(&refused);
        assert_eq!(refused.min_pods, Setting::new(0, Source::Flag("allowed-images")));
        assert_eq!((refused.executable, &*refused.notes), (None, &[note.to_owned()][..]));
    }
}

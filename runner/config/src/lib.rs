//! What a runner and the command line both know of function pods: the runner's flags, the names of
//! labels and annotations, and the templates. It has no I/O, and nothing that only Linux has.

mod flags;
pub mod names;
pub mod template;
pub mod times;

use std::collections::BTreeMap;

pub use self::flags::{
    BASE_POD_TEMPLATE, Flags, FunctionConfigTags, MirrorFlags, PodBackend, PodConnect, REMOVED_FLAGS,
};
use self::template::Template;

/// Checks whether a runner can make pods from the data of the ConfigMap of
/// `--function-pod-template`.
///
/// # Errors
/// One line that names the rule which the template violates (module `template`). `Ok` holds
/// warnings that the user should still fix.
pub fn check_template(data: &BTreeMap<String, String>) -> Result<Vec<String>, String> {
    Template::from_config_map(data).map(|template| template.warnings)
}

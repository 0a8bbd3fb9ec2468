//! A hash of the exec runtime's configuration: which executable runs which image. Runners with
//! different hashes may run different executables for the same image, which must not happen. The
//! hash does not contain the directory of `--functions`, because it may be mounted anywhere.

use std::fmt::Write as _;

use porch_fn_settings::{ExecConfig, Settings, TagSemantics};
use xxhash_rust::xxh3::xxh3_64;

/// Size of the hash in bits. Prometheus stores it as a 64-bit float, which is exact up to 53 bits.
const BITS: u32 = 48;

/// Hashes the names of images and executables, not the content of files. The names come from
/// `--config`, and from the FunctionConfigs in `settings` whose executables exist.
pub(super) fn exec_hash(config: &ExecConfig, settings: &Settings) -> u64 {
    let mut lines: Vec<_> = config.iter().map(|(image, function)| format!("{image} {function}")).collect();
    // The file's order has no meaning.
    lines.sort_unstable();
    let mut text = lines.join("\n");
    // Only tags that are constraints get a mark. So the hash of literal tags is the same as in
    // earlier versions of the runner.
    let semantics = settings.functions.semantics.as_ref().map(|semantics| semantics.value);
    let mark = if semantics == Some(TagSemantics::Constraint) { " constraint" } else { "" };
    let missing: Vec<_> = settings.missing_executables().map(|(config, _)| &config.name).collect();
    // The order of FunctionConfigs has a meaning: the first that matches an image wins.
    for config in settings.functions.iter().filter(|config| !missing.contains(&&config.name)) {
        if let Some(binary) = &config.binary {
            let tags: Vec<_> = binary.tags.texts().collect();
            let path = binary.path.display();
            // Writing to a String cannot fail.
            let _ = write!(text, "\n{:?} {tags:?} {path}{mark}", config.repositories);
        }
    }
    // The hash is never 0, because 0 means that the exec runtime is disabled.
    (xxh3_64(text.as_bytes()) >> (u64::BITS - BITS)).max(1)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use porch_fn_settings::{CacheConfig, FunctionConfig, FunctionConfigs, Setting, Source};
    use serde_json::json;

    use super::*;
    use crate::settings::tests::settings;

    #[test]
    fn the_hash_depends_only_on_which_executable_runs_which_image() {
        let hash = |text: &str| {
            let config = ExecConfig::parse(text, "example.com").unwrap();
            exec_hash(&config, &settings(CacheConfig::default()))
        };
        let base = hash("functions: [{function: a, images: [x:v1, 'y:v1']}]");
        let same = "functions: [{function: a, images: ['example.com/y:v1']}, {function: a, images: [x:v1]}]";
        assert_eq!(hash(same), base);
        for other in [
            "",
            "functions: [{function: a, images: [x:v1]}]",
            "functions: [{function: b, images: [x:v1, 'y:v1']}]",
            "functions: [{function: a, images: [x:v2, 'y:v1']}]",
        ] {
            assert_ne!(hash(other), base, "{other}");
        }
        assert!(base > 0 && base < 1 << BITS);
    }

    #[test]
    fn the_meaning_of_tags_changes_the_hash_only_with_executables() {
        let hash = |executor: &str, semantics| {
            let spec = json!({"image": "f", executor: {"tags": ["v1"], "path": "f"}});
            let object = json!({"metadata": {"name": "f"}, "spec": spec});
            let configs = vec![FunctionConfig::parse(&object, "example.com", semantics).unwrap()];
            let functions = FunctionConfigs::new(configs, Setting::new(semantics, Source::Schema), None);
            let flags = settings(CacheConfig::default()).flags.clone();
            let settings = Settings::new(flags, Arc::default(), Arc::default(), functions.into(), |_| true);
            exec_hash(&ExecConfig::default(), &settings)
        };
        for (executor, same) in [("binaryExecutor", false), ("podExecutor", true)] {
            let exact = hash(executor, TagSemantics::Exact);
            assert_eq!(exact == hash(executor, TagSemantics::Constraint), same, "{executor}");
        }
    }
}

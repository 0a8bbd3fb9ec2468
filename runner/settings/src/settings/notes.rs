//! Notes for people about values that are set for an image but have no effect.

use porch_fn_image::Image;

use super::Settings;
use crate::function_config::FunctionConfig;

impl Settings {
    /// One line for each value that is set for `image` but not used, with the reason.
    pub fn notes(&self, image: &Image) -> Vec<String> {
        let mut notes = Vec::new();
        let entries = self.cache.entries.iter().filter(|entry| entry.image == *image).count();
        if entries > 1 {
            notes.push(format!(
                "--pod-cache-config has {entries} entries for this image: the first one is used"
            ));
        }
        let ignored = |config: &FunctionConfig, executor: &str, why: &str| {
            format!("FunctionConfig {} is not used for {executor}: {why}", config.name)
        };
        notes.extend(
            self.functions
                .without_tags(image)
                .map(|config| ignored(config, "podExecutor", "it lists no tags; write \"*\" for all")),
        );
        let mut pods = self.functions.pod(image).into_iter();
        if let Some(winner) = pods.next() {
            let why = format!("{} comes before it", winner.name);
            notes.extend(pods.map(|config| ignored(config, "podExecutor", &why)));
        }
        let mut winner = None;
        for (config, binary) in self.functions.binary(image, None) {
            if self.missing.contains(&binary.path) {
                let path = self.flags.functions.join(&binary.path);
                let why = format!("the file {} does not exist; see --functions", path.display());
                notes.push(ignored(config, "binaryExecutor", &why));
            } else {
                let first = *winner.get_or_insert(&config.name);
                if *first != config.name {
                    notes.push(ignored(config, "binaryExecutor", &format!("{first} comes before it")));
                }
            }
        }
        if let Some((winner, configured)) = winner.zip(self.configured(image.as_str())) {
            notes.push(format!("{} is not used: FunctionConfig {winner} wins", configured.source));
        }
        if !self.flags.allowed_images.allows(image) {
            notes.push("every call is refused: no pattern of --allowed-images matches this image".to_owned());
        }
        notes
    }
}

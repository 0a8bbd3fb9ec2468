//! What an engine answers.

use std::process::ExitCode;

use porch_fn_image::Image;
use porch_fn_images::{Store, StoreError};

use super::command::{Asked, Verb};
use crate::engine::Engine;
use crate::failure::Failure;
use crate::images::{Terminal, client, details};
use crate::one_shot::{Settings, run_as};
use crate::output::show;

/// kpt asks Docker for its version, and needs at least 20.10.0.
const VERSION: &str = "20.10.27";

// === impl Engine ===

impl Engine {
    pub(super) fn answer(self, asked: &Asked) -> Result<ExitCode, Failure> {
        match asked {
            // kpt reads Docker's, and only runs the others'.
            Asked::Version { short: true } => show(&format!("{VERSION}\n")),
            Asked::Version { short: false } => {
                show(&format!("Client: porch-fn {}\n Version: {VERSION}\n", porch_fn_version::VERSION));
            }
            Asked::Run(run) => return run_as(run, &Settings::of_environment()?, self),
            Asked::Image(verb, name) => return self.manage(verb, name),
        }
        Ok(ExitCode::SUCCESS)
    }

    fn manage(self, verb: &Verb, name: &str) -> Result<ExitCode, Failure> {
        let args = Settings::of_environment()?.store;
        let (store, image) = (args.open()?, args.image(name)?);
        let done = match verb {
            Verb::Tags => Some(tags(&store, image.repository())?),
            Verb::Inspect => store.inspect(&image)?.map(|found| format!("[{:#}]\n", details(found))),
            Verb::Remove => store.remove(&image)?.then(|| format!("Untagged: {}\n", image.as_str())),
            Verb::Tag(other) => store.tag(&image, &args.image(other)?)?.then(String::new),
            Verb::Pull => {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                let client = client(&args.registries)?;
                if let Err(error) = runtime.block_on(store.pull(&client, &image, &Terminal::new(&image))) {
                    return Ok(self.report_missing(&image, Some(&error)));
                }
                Some(format!("{}\n", image.as_str()))
            }
        };
        let Some(text) = done else {
            self.report_missing(&image, None);
            return Ok(ExitCode::FAILURE);
        };
        show(&text);
        Ok(ExitCode::SUCCESS)
    }
}

/// The tags of this repository that `run --pull never` finds, one in each line.
fn tags(store: &Store, repository: &str) -> Result<String, StoreError> {
    let mut tags = Vec::new();
    for listed in store.list()? {
        let reference = &listed.record.reference;
        if let Some(tag) = reference.strip_prefix(repository).and_then(|rest| rest.strip_prefix(':'))
            // A name with tag and digest is another one.
            && !tag.contains('@')
            && let Ok(image) = Image::parse(reference, "")
            && matches!(store.find(&image), Ok(Some(_)))
        {
            tags.extend([tag, "\n"].map(str::to_owned));
        }
    }
    Ok(tags.concat())
}

//! What an engine answers.

use std::process::ExitCode;

use porch_fn_flags::FlagError;
use porch_fn_image::Image;
use porch_fn_images::{Store, StoreError};

use super::command::{Asked, Verb};
use crate::engine::Engine;
use crate::failure::Failure;
use crate::images::{Terminal, client, details};
use crate::one_shot::{RunArgs, Settings, run_as};
use crate::output::show;

/// kpt asks Docker for its version, and needs at least 20.10.0.
const VERSION: &str = "20.10.27";

// === impl Engine ===

impl Engine {
    pub(super) async fn answer(self, asked: Asked) -> Result<ExitCode, Failure> {
        match asked {
            // kpt reads Docker's, and only runs the others'.
            Asked::Version { short: true } => show(&format!("{VERSION}\n")),
            Asked::Version { short: false } => {
                show(&format!("Client: porch-fn {}\n Version: {VERSION}\n", porch_fn_version::VERSION));
            }
            Asked::Run(run) => {
                return run_as(Some(self), RunArgs { run, timeout: None, settings: settings()? }).await;
            }
            Asked::Image(verb, name) => return self.manage(&verb, &name).await,
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn manage(self, verb: &Verb, name: &str) -> Result<ExitCode, Failure> {
        let args = settings()?.store;
        let (store, image) = (args.registries.open()?, args.image(name)?);
        let done = match verb {
            Verb::Tags => Some(tags(&store, image.repository())?),
            Verb::Inspect => store.inspect(&image)?.map(|found| format!("[{:#}]\n", details(found))),
            Verb::Remove => store.remove(&image)?.then(|| format!("Untagged: {}\n", image.as_str())),
            Verb::Tag(other) => store.tag(&image, &args.image(other)?)?.then(String::new),
            Verb::Pull => {
                let client = client(&args.registries)?;
                if let Err(error) = store.pull(&client, &image, &Terminal::new(&image)).await {
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

/// The settings of this machine, which the environment has.
fn settings() -> Result<Settings, FlagError> {
    porch_fn_flags::parse([])
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

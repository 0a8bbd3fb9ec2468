//! What an engine answers.

use std::ffi::OsString;
use std::process::ExitCode;

use porch_fn_flags::FlagError;
use porch_fn_image::Image;
use porch_fn_images::{Store, StoreError};

use super::command::{Asked, Verb, parse};
use crate::failure::Failure;
use crate::images::{details, pull};
use crate::one_shot::engine::report_missing;
use crate::one_shot::{RunArgs, Settings, run_as};
use crate::output::show;

/// kpt asks Docker for its version, and needs at least 20.10.0.
const VERSION: &str = "20.10.27";

pub(super) async fn answer(engine: &str, words: &[OsString]) -> Result<ExitCode, Failure> {
    let words: Option<Vec<&str>> = words.iter().map(|word| word.to_str()).collect();
    let asked = words.ok_or_else(|| "an argument is not UTF-8".to_owned()).and_then(|words| parse(&words));
    let refused = |problem| Failure::new(format!("{problem}; this is porch-fn in place of {engine}"));
    match asked.map_err(refused)? {
        // kpt reads Docker's, and only runs the others'.
        Asked::Version { short: true } => show(&format!("{VERSION}\n")),
        Asked::Version { short: false } => {
            show(&format!("Client: porch-fn {}\n Version: {VERSION}\n", porch_fn_version::VERSION));
        }
        Asked::Run(run) => {
            let args = RunArgs { run, timeout: None, settings: settings()? };
            return run_as(Some(engine), args).await;
        }
        Asked::Image(verb, name) => return manage(engine, &verb, &name).await,
    }
    Ok(ExitCode::SUCCESS)
}

async fn manage(engine: &str, verb: &Verb, name: &str) -> Result<ExitCode, Failure> {
    let args = settings()?.store;
    let (store, image) = (args.registries.open()?, args.image(name)?);
    let done = match verb {
        Verb::Tags => Some(tags(&store, image.repository())?),
        Verb::Inspect => store.inspect(&image)?.map(|found| format!("[{:#}]\n", details(found))),
        Verb::Remove => store.remove(&image)?.then(|| format!("Untagged: {}\n", image.as_str())),
        Verb::Tag(other) => store.tag(&image, &args.image(other)?)?.then(String::new),
        Verb::Pull => match pull(&store, &args.registries, &image).await? {
            Ok(()) => Some(format!("{}\n", image.as_str())),
            Err(error) => return Ok(report_missing(engine, &image, &error)),
        },
    };
    let Some(text) = done else {
        report_missing(engine, &image, &StoreError::Missing);
        return Ok(ExitCode::FAILURE);
    };
    show(&text);
    Ok(ExitCode::SUCCESS)
}

/// The settings of this machine, which the environment has.
fn settings() -> Result<Settings, FlagError> {
    porch_fn_flags::parse([])
}

/// The tags of this repository that `run --pull never` finds, one in each line.
fn tags(store: &Store, repository: &str) -> Result<String, StoreError> {
    let listed = store.list()?.into_iter().filter_map(|listed| {
        let reference = listed.record.reference;
        let image = Image::parse(&reference, "").ok()?;
        let tag = reference.strip_prefix(repository)?.strip_prefix(':')?;
        // A name with tag and digest is another one.
        let is_found = !tag.contains('@') && matches!(store.find(&image), Ok(Some(_)));
        is_found.then(|| format!("{tag}\n"))
    });
    Ok(listed.collect())
}

//! `porch-fn run`: one function, once, in a sandbox of its own. Standard input, the outputs and the
//! exit code are the function's.

pub(crate) mod advice;
pub(crate) mod engine;
pub(crate) mod mounts;
mod streams;

use std::io::{self, IsTerminal as _};
use std::mem;
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;

use clap::ValueEnum;
use porch_fn_flags::GoDuration;
use porch_fn_image::Image;
use porch_fn_images::{StoreError, Stored};
use porch_fn_sandbox::{Exceeded, Launch, Limits, Mount, Pipes, Sandbox};

use self::advice::{explain, not_enforced};
use self::engine::{FAILED, report_missing};
use self::streams::{copy, takes_more};
use crate::failure::Failure;
use crate::images::flags::SandboxFlags;
use crate::images::{self, StoreArgs, log_causes, of_image};
use crate::output::note;

const NAME: &str = "porch-fn run";
pub(crate) const NOTHING_TO_RUN: &str = "the image has neither ENTRYPOINT nor CMD: add one to it";
/// Exit code of timeout(1).
const TIMED_OUT: u8 = 124;

#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) run: Run,
    /// End the function after this time
    #[arg(long, value_name = "DURATION")]
    pub(crate) timeout: Option<GoDuration>,
    #[command(flatten)]
    pub(crate) settings: Settings,
}

/// What to run, as the caller of porch-fn or of a container engine says.
#[derive(Debug, PartialEq, clap::Args)]
pub(crate) struct Run {
    /// The function's image
    pub(crate) image: String,
    /// Arguments for the function, instead of the image's CMD
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) args: Vec<String>,
    #[command(flatten)]
    pub(crate) flags: RunFlags,
}

/// How to run it. The default is also for the pods of `up`.
#[derive(Debug, Default, PartialEq, clap::Args)]
pub(crate) struct RunFlags {
    /// Network of the function
    #[arg(long, value_enum, default_value_t)]
    pub(crate) network: NetworkArg,
    /// File or folder of this machine: type=bind,src=PATH,dst=PATH[,rw]; or type=tmpfs,dst=PATH
    #[arg(long, value_name = "MOUNT", value_parser = |text: &str| mounts::parse(text, false))]
    pub(crate) mount: Vec<Mount>,
    /// Environment variable: NAME=VALUE, or NAME with its value here
    #[arg(short, long, value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<String>,
    /// User of the function: user, uid, user:group or uid:gid. Default: the image's USER, or nobody
    #[arg(long, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// When to pull the image
    #[arg(long, value_enum, default_value_t)]
    pub(crate) pull: Pull,
}

/// Settings of this machine. A container engine has them from the environment.
#[derive(Debug, clap::Parser)]
#[command(mut_arg("sandbox_memory", |arg| arg.long("memory").help_heading("Limits")))]
#[command(mut_arg("sandbox_pids", |arg| arg.long("pids").help_heading("Limits")))]
#[command(mut_arg("sandbox_cpus", |arg| arg.long("cpus").help_heading("Limits")))]
#[command(mut_arg("sandbox_tmp_size", |arg| arg.long("tmp-size").help_heading("Limits")))]
pub(crate) struct Settings {
    #[command(flatten)]
    limits: SandboxFlags,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum NetworkArg {
    /// No network
    #[default]
    None,
    /// The network of this machine
    Host,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Pull {
    /// If the image is not here
    #[default]
    Missing,
    /// Every time, because a tag may have moved
    Always,
    /// Never
    Never,
}

pub(crate) async fn run(args: RunArgs) -> Result<ExitCode, Failure> {
    run_as(None, args).await.map_err(|failure| Failure::of_lines(failure.to_string(), FAILED))
}

/// Runs an image, as porch-fn or as a container engine would. Returns the exit code of its command.
pub(crate) async fn run_as(engine: Option<&str>, args: RunArgs) -> Result<ExitCode, Failure> {
    let RunArgs { run, timeout, settings } = args;
    let program = engine.unwrap_or(NAME);
    let image = settings.store.image(&run.image)?;
    // Keeps the image's files while the sandbox runs.
    let stored = match (find(&settings.store, run.flags.pull, &image).await?, engine) {
        (Ok(found), _) => found,
        (Err(error), Some(engine)) => return Ok(report_missing(engine, &image, &error)),
        (Err(error), None) => return Err(of_image(&image, error)),
    };
    let sandbox = run.flags.sandbox(&stored, &run.args, settings.limits.limits());
    let sandbox = sandbox.ok_or_else(|| of_image(&image, format!("{NOTHING_TO_RUN}, or name a command")))?;
    // Standard error is the function's: only a person gets lines of ours.
    if io::stderr().is_terminal()
        && let Some(missing) = not_enforced(&sandbox.limits)
    {
        note(format_args!("{program}: {missing}"));
    }
    let (launch, pipes) = Launch::new(sandbox, None)?;
    let mut running = launch.spawn()?;
    let Pipes { stdin, stdout, stderr } = pipes;
    // Why the function was ended: its input cannot be read, or `None`: after --timeout.
    let (end, ended) = mpsc::channel();
    let (end_now, of_input) = (running.ender()?, end.clone());
    thread::spawn(move || {
        if let Err(error) = copy(&io::stdin(), &stdin) {
            let _ = of_input.send(Some(error));
            end_now();
            // The function must not take what it has for all, so its input stays open until its end.
            mem::forget(stdin);
        }
    });
    let output = thread::spawn(move || copy(&stdout, &io::stdout()));
    let errors = thread::spawn(move || copy(&stderr, &io::stderr()));
    if let Some(timeout) = timeout {
        let end_now = running.ender()?;
        thread::spawn(move || {
            thread::sleep(timeout.into());
            let _ = end.send(None);
            end_now();
        });
    }
    let started = running.started();
    let code = running.wait()?;
    match ended.try_recv() {
        Ok(Some(error)) => return Err(Failure::new(format!("standard input cannot be read: {error}"))),
        Ok(None) => {
            if takes_more(&io::stderr()) {
                note(format_args!("{program}: the function is ended after --timeout"));
            }
            return Ok(ExitCode::from(TIMED_OUT));
        }
        Err(_) => {}
    }
    // All processes that could write have ended.
    let _ = errors.join();
    let written = output.join();
    let code = match started {
        Ok(()) => code,
        Err(error) => {
            note(format_args!("{program}: {}", Failure::new(explain(&error))));
            error.exit_code()
        }
    };
    if let Ok(Err(error)) = written {
        return Err(Failure::new(format!("standard output cannot be written: {error}")));
    }
    if code != 0 {
        for (what, flag) in running.reached().into_iter().map(reached) {
            note(format_args!("{program}: {what}: raise --{flag}"));
        }
    }
    Ok(ExitCode::from(code))
}

/// What happened at a limit, and its flag, which has the prefix `sandbox-` in `up`.
pub(crate) fn reached(limit: Exceeded) -> (&'static str, &'static str) {
    match limit {
        Exceeded::Memory => ("the function ran out of memory", "memory"),
        Exceeded::Pids => ("the function was refused a process or thread", "pids"),
        Exceeded::Tmp => ("the function's /tmp is full", "tmp-size"),
    }
}

/// In the result: the image is not here, and cannot or must not be pulled.
async fn find(args: &StoreArgs, pull: Pull, image: &Image) -> Result<Result<Stored, StoreError>, Failure> {
    let store = args.registries.open()?;
    let mut stored = if pull == Pull::Always { None } else { store.find(image)? };
    if stored.is_none() && pull != Pull::Never {
        if io::stderr().is_terminal() {
            log_causes();
        }
        if let Err(error) = images::pull(&store, &args.registries, image).await? {
            return Ok(Err(error));
        }
        stored = store.find(image)?;
    }
    Ok(stored.ok_or(StoreError::Missing))
}

// === impl RunFlags ===

impl RunFlags {
    /// A sandbox for the image. `args` replace the image's CMD. `None`: [`NOTHING_TO_RUN`].
    pub(crate) fn sandbox(&self, stored: &Stored, args: &[String], limits: Limits) -> Option<Sandbox> {
        let config = &stored.image.run;
        let command = config.command(args);
        if command.is_empty() {
            return None;
        }
        let mut env = config.env.clone();
        for variable in &self.env {
            let (name, value) = match variable.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (&**variable, std::env::var(variable).ok()),
            };
            env.retain(|set| set.split('=').next() != Some(name));
            env.extend(value.map(|value| format!("{name}={value}")));
        }
        Some(Sandbox {
            layers: stored.stack(),
            user: self.user.clone().unwrap_or_else(|| config.user.clone()),
            command,
            env,
            folder: config.folder.clone().into(),
            is_on_host_network: self.network == NetworkArg::Host,
            mounts: self.mount.clone(),
            limits,
        })
    }
}

//! `porch-fn run`: one function, once, in a sandbox of its own. Standard input, the outputs and the
//! exit code are the function's.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IsTerminal as _};
use std::os::fd::AsFd as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitCode, ExitStatus};
use std::thread;
use std::time::Duration;

use clap::ValueEnum;
use porch_fn_flags::{FlagError, GoDuration, Size};
use porch_fn_image::Image;
use porch_fn_images::{StoreError, Stored};
use porch_fn_sandbox::{Exceeded, Launch, Limits, Mount, Network, Pipes, Sandbox, not_enforced};

use crate::engine::Engine;
use crate::failure::Failure;
use crate::images::flags::limits;
use crate::images::{StoreArgs, Terminal, client, log_causes, missing, of_image};
use crate::mounts::parse_own;

const NAME: &str = "porch-fn run";
/// Exit codes of Docker, and of timeout(1).
const NOT_STARTED: u8 = 125;
const TIMED_OUT: u8 = 124;
const SIGNALED: i32 = 128;

#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    run: Run,
    /// End the function after this time
    #[arg(long, value_name = "DURATION")]
    timeout: Option<GoDuration>,
    #[command(flatten)]
    settings: Settings,
}

/// What to run, as the caller of porch-fn or of a container engine says.
#[derive(Debug, PartialEq, clap::Args)]
pub(crate) struct Run {
    /// The function's image
    pub(crate) image: String,
    /// Arguments for the function, instead of the image's CMD
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) args: Vec<String>,
    /// Network of the function
    #[arg(long, value_enum, default_value_t = NetworkArg::None)]
    pub(crate) network: NetworkArg,
    /// File or folder of this machine: type=bind,src=PATH,dst=PATH[,rw]; or type=tmpfs,dst=PATH
    #[arg(long, value_name = "MOUNT", value_parser = parse_own)]
    pub(crate) mount: Vec<Mount>,
    /// Environment variable: NAME=VALUE, or NAME with its value here
    #[arg(short, long, value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<String>,
    /// User of the function: user, uid, user:group or uid:gid. Default: the image's USER, or nobody
    #[arg(long, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// When to pull the image
    #[arg(long, value_enum, default_value_t = Pull::Missing)]
    pub(crate) pull: Pull,
}

/// Settings of this machine. A container engine has them from the environment.
#[derive(Debug, clap::Args)]
pub(crate) struct Settings {
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// Limits of a sandbox.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct LimitArgs {
    /// Memory of the function's processes and of its /tmp; 0: no limit
    #[arg(long, value_name = "SIZE", default_value_t = limits::MEMORY, value_parser = limits::memory, help_heading = "Limits")]
    memory: Size,
    /// Number of the function's processes and threads
    #[arg(long, value_name = "COUNT", default_value_t = limits::PIDS, value_parser = limits::pids, help_heading = "Limits")]
    pids: u64,
    /// Processors for the function, such as 1.5; 0: no limit
    #[arg(long, value_name = "COUNT", default_value_t = 0.0, value_parser = limits::cpus, help_heading = "Limits")]
    cpus: f64,
    /// Size of the function's /tmp
    #[arg(long, value_name = "SIZE", default_value_t = limits::TMP_SIZE, value_parser = limits::tmp_size, help_heading = "Limits")]
    tmp_size: Size,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum NetworkArg {
    /// No network
    None,
    /// The network of this machine
    Host,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Pull {
    /// If the image is not here
    Missing,
    /// Every time, because a tag may have moved
    Always,
    /// Never
    Never,
}

/// Runs the command line.
pub(crate) fn run(RunArgs { run, timeout, settings }: &RunArgs) -> ExitCode {
    try_run(run, settings, *timeout, None).unwrap_or_else(|failure| {
        failure.report("run");
        ExitCode::from(NOT_STARTED)
    })
}

/// Runs an image as a container engine would.
pub(crate) fn run_as(run: &Run, settings: &Settings, engine: Engine) -> Result<ExitCode, Failure> {
    try_run(run, settings, None, Some(engine))
}

/// Runs the image, and returns the exit code of its command.
fn try_run(
    run: &Run,
    settings: &Settings,
    timeout: Option<GoDuration>,
    engine: Option<Engine>,
) -> Result<ExitCode, Failure> {
    let program = engine.map_or(NAME, Engine::name);
    let image = settings.store.image(&run.image)?;
    let input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let found = runtime.block_on(find(&settings.store, run.pull, &image))?;
    drop(runtime);
    // Keeps the image's files while the sandbox runs.
    let stored = match (found, engine) {
        (Ok(found), _) => found,
        (Err(why), Some(engine)) => return Ok(engine.report_missing(&image, why.as_ref())),
        (Err(Some(error)), None) => return Err(of_image(&image, error)),
        (Err(None), None) => return Err(missing(&image)),
    };
    let sandbox = sandbox(run, settings.limits.limits(), &image, &stored)?;
    if is_for_a_person() {
        let missing = not_enforced(&sandbox.limits);
        if !missing.is_empty() {
            eprintln!("{program}: {missing}");
        }
    }
    let (launch, mut command, pipes) = Launch::new(sandbox, None)?;
    let mut child = command.spawn()?;
    // It has descriptors of the sandbox.
    drop(command);
    let mut running = launch.start(child.id())?;
    let Pipes { mut stdin, mut stdout, mut stderr } = pipes;
    thread::spawn(move || io::copy(&mut { input }, &mut stdin));
    let mut output = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let output = thread::spawn(move || io::copy(&mut stdout, &mut output));
    let errors = thread::spawn(move || io::copy(&mut stderr, &mut io::stderr()));
    if let Some(timeout) = timeout {
        end_after(timeout.into(), program);
    }
    let started = running.started();
    let status = child.wait()?;
    // All processes that could write have ended.
    let _ = errors.join();
    let written = output.join();
    if let Err(error) = started {
        eprintln!("{program}: {}", Failure::new(&error));
        return Ok(ExitCode::from(error.exit_code()));
    }
    if let Ok(Err(error)) = written
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        return Err(Failure::new(format!("standard output cannot be written: {error}")));
    }
    if !status.success() {
        for exceeded in running.reached() {
            eprintln!("{program}: {}", reason(exceeded));
        }
    }
    Ok(exit_code(status))
}

fn reason(exceeded: Exceeded) -> &'static str {
    match exceeded {
        Exceeded::Memory => "the function ran out of memory: raise --memory",
        Exceeded::Pids => "the function was refused a process or thread: raise --pids",
        Exceeded::Tmp => "the function's /tmp is full: raise --tmp-size",
    }
}

/// Standard error is the function's: only a person gets lines of ours.
fn is_for_a_person() -> bool {
    io::stderr().is_terminal()
}

/// Returns the image, or why it cannot be pulled. `None`: it is not here, and must not be pulled.
async fn find(
    args: &StoreArgs,
    pull: Pull,
    image: &Image,
) -> Result<Result<Stored, Option<StoreError>>, Failure> {
    let store = args.open()?;
    let mut stored = if pull == Pull::Always { None } else { store.find(image)? };
    if stored.is_none() && pull != Pull::Never {
        if is_for_a_person() {
            log_causes();
        }
        if let Err(error) = store.pull(&client(&args.registries)?, image, &Terminal::new(image)).await {
            return Ok(Err(Some(error)));
        }
        stored = store.find(image)?;
    }
    Ok(stored.ok_or(None))
}

fn sandbox(run: &Run, limits: Limits, image: &Image, stored: &Stored) -> Result<Sandbox, Failure> {
    let config = &stored.image.run;
    let command = config.command(&run.args);
    if command.is_empty() {
        return Err(of_image(
            image,
            "the image has neither ENTRYPOINT nor CMD: add one to it, or name a command",
        ));
    }
    let mut env = config.env.clone();
    for variable in &run.env {
        let (name, value) = match variable.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (&**variable, std::env::var(variable).ok()),
        };
        env.retain(|set| set.split('=').next() != Some(name));
        env.extend(value.map(|value| format!("{name}={value}")));
    }
    Ok(Sandbox {
        layers: stored.stack(),
        user: run.user.clone().unwrap_or_else(|| config.user.clone()),
        command,
        env,
        folder: config.folder.clone().into(),
        network: match run.network {
            NetworkArg::None => Network::None,
            NetworkArg::Host => Network::Host,
        },
        mounts: run.mount.clone(),
        limits,
    })
}

fn end_after(timeout: Duration, program: &'static str) {
    thread::spawn(move || {
        thread::sleep(timeout);
        eprintln!("{program}: the function is ended after --timeout");
        // The sandbox ends with this process.
        std::process::exit(TIMED_OUT.into());
    });
}

fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().unwrap_or_else(|| SIGNALED + status.signal().unwrap_or_default());
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}

// === impl Settings ===

impl Settings {
    /// # Errors
    /// A variable has a wrong value.
    pub(crate) fn of_environment() -> Result<Self, FlagError> {
        #[derive(Debug, clap::Parser)]
        struct NoArgs {
            #[command(flatten)]
            settings: Settings,
        }
        porch_fn_flags::parse([OsString::new()]).map(|NoArgs { settings }| settings)
    }
}

// === impl LimitArgs ===

impl LimitArgs {
    fn limits(&self) -> Limits {
        Limits::of_flags(self.memory.0, self.pids, self.cpus, self.tmp_size.0)
    }
}

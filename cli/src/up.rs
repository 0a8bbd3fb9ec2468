//! `porch-fn up`: starts a router, runners and local pods in one process. Images of any registry run
//! in sandboxes. Two example functions come with porch-fn, so the first evaluation works offline.

mod pod;
mod sandboxes;

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args as _, ValueEnum};
use futures_util::future::{join_all, select_all};
use porch_fn_flags::{FlagError, GoDuration, LogFormat, SetFlags};
use porch_fn_lifecycle::{App, StopSignals};
use porch_fn_router as router;
use porch_fn_runner as runner;
use porch_fn_runner::pods::ImageCommands;
use porch_fn_runner::pods::local::{LocalCluster, LocalOptions};
use wrapper_server::process::adopt_orphans;

use self::sandboxes::Sandboxes;
use crate::failure::Failure;
use crate::images::flags::{RegistryArgs, SandboxFlags};

/// First argument when porch-fn starts itself as a local pod's wrapper-server.
const WRAPPER_SERVER: &str = "__wrapper-server";
/// First argument when porch-fn starts itself as an example function. The second argument is the
/// function's name.
const EXAMPLE_FUNCTION: &str = "__function";

/// Images of the example functions that come with porch-fn.
const EXAMPLES: [(&str, &str); 2] = [
    ("porch-fn.example/annotate:v1", "annotate"),
    ("porch-fn.example/require-resources:v1", "require-resources"),
];

#[derive(Debug, clap::Args)]
pub(crate) struct UpArgs {
    /// Number of runners
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=64))]
    runners: u16,
    /// Address to listen on
    #[arg(long, value_name = "IP", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    address: IpAddr,
    /// Port of the router; 0: any free port
    #[arg(long, value_name = "PORT", default_value_t = 9445)]
    port: u16,
    /// Port of the router's status page, /status.json, /shards, /metrics, /healthz and /readyz; 0:
    /// any free port
    #[arg(long, value_name = "PORT", default_value_t = 9464)]
    admin_port: u16,
    /// More names by which browsers reach the status page, separated by commas; its IP addresses and
    /// names without a dot are always accepted
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    admin_hosts: Vec<String>,
    /// File with your own functions: functions: [{image: IMAGE, command: [PROGRAM, ARG...]}]
    #[arg(long, value_name = "FILE")]
    local_functions: Option<PathBuf>,
    /// Where other images run
    #[arg(long, value_name = "BACKEND", value_enum, default_value_t = Backend::Sandbox)]
    pod_backend: Backend,
    /// Log verbosity: 0 errors, 1 warnings, 2 events, 4 calls, 5 everything
    #[arg(long, value_name = "LEVEL", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=5))]
    log_level: u8,
    /// Format of log lines; json has one object in each line
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
    log_format: LogFormat,
    /// Flags for each runner, such as --pod-ttl=5m; see porch-fn-runner --help
    #[arg(last = true, value_name = "RUNNER FLAGS")]
    runner_flags: Vec<OsString>,
    // The headings of these flags would be those of all flags after them, too.
    #[command(flatten)]
    registries: RegistryArgs,
    #[command(flatten)]
    sandbox: SandboxFlags,
}

/// Where the images run that are not local functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Backend {
    /// In sandboxes, with the image's files
    Sandbox,
    /// Nowhere
    Local,
}

/// Runs a child process of `up`: a local pod's wrapper-server, or an example function. `None`: the
/// command line `args`, program name included, is another one.
pub(crate) fn run_child(args: &[OsString]) -> Option<ExitCode> {
    if let Some(exit) =
        porch_fn_images::unpack_child(args).or_else(|| porch_fn_sandbox::run_child(args, &sandboxes::serve))
    {
        return Some(exit);
    }
    match args.get(1)?.to_str()? {
        WRAPPER_SERVER => Some(wrapper_server::run(args.iter().skip(1).cloned())),
        EXAMPLE_FUNCTION => {
            let name = args.get(2).and_then(|name| name.to_str()).unwrap_or_default();
            Some(example_functions::run(name))
        }
        _ => None,
    }
}

pub(crate) async fn run(args: UpArgs) -> Result<ExitCode, Failure> {
    porch_fn_telemetry::init("porch-fn up", args.log_level, args.log_format);
    adopt_orphans();
    let mut signals = StopSignals::catch().map_err(|_| Failure::new("cannot catch SIGTERM and SIGINT"))?;
    let (runner_flags, set) = match runner_flags(args.address, &args.runner_flags) {
        Ok(flags) => flags,
        // The error already names porch-fn-runner.
        Err(error) => return Ok(error.report()),
    };
    let own = std::env::current_exe();
    let own = own.map_err(|error| Failure::new(format!("cannot find this program's own path: {error}")))?;
    let functions =
        functions(args.local_functions.as_deref(), &own, &runner_flags.server.default_image_prefix)?;
    let images: Vec<_> = functions.images().into_iter().map(str::to_owned).collect();
    let sandboxes = match args.pod_backend {
        Backend::Local => None,
        Backend::Sandbox => {
            let ttl = runner_flags.image_metadata_ttl.into();
            Some(Arc::new(Sandboxes::open(&args.registries, ttl, args.sandbox.limits())?) as Arc<_>)
        }
    };
    let pods = LocalCluster::new(LocalOptions {
        wrapper: vec![own.into_os_string(), WRAPPER_SERVER.into()],
        max_message: runner_flags.server.max_request_body_size,
        log_level: args.log_level,
        log_format: args.log_format,
        functions,
        sandboxes,
    });
    let mut runners = Vec::new();
    for number in 1..=args.runners {
        // The runners share a host name, so each gets a name of its own.
        let flags = runner::Flags { name: Some(format!("runner-{number}")), ..runner_flags.clone() };
        let started = runner::start(flags, &set, Some(pods.clone())).await;
        let failed =
            |error: runner::AppError| Failure::with_code(format!("runner: {error}"), error.exit_code());
        runners.push(started.map_err(failed)?);
    }
    let targets: Vec<_> = runners.iter().map(|runner| runner.address().to_string()).collect();
    let router_flags = [
        "porch-fn-router".to_owned(),
        format!("--runners=static:///{}", targets.join(",")),
        format!("--address={}", args.address),
        format!("--port={}", args.port),
        format!("--admin-port={}", args.admin_port),
        format!("--admin-hosts={}", args.admin_hosts.join(",")),
        format!("--max-request-body-size={}", runner_flags.server.max_request_body_size),
        format!("--default-image-prefix={}", runner_flags.server.default_image_prefix),
        "--drain-delay=0".to_owned(),
    ];
    let router = router::start(porch_fn_flags::parse(router_flags.map(OsString::from))?).await;
    let mut router =
        router.map_err(|error| Failure::new(format!("router: {error}; port 0 means any free port")))?;
    announce(&router, &targets, &images, args.pod_backend);
    // Completes when a task of the router or of a runner ends unexpectedly.
    let apps = runners.iter_mut().chain([&mut router]);
    let failed = select_all(apps.map(|app| Box::pin(app.tasks.failed())));
    let code = signals.first(async { failed.await.0 }).await;
    let drain = async {
        println!("\nStopping when the calls in flight have finished; Ctrl-C again stops them, too.");
        router.drain().await;
        join_all(runners.into_iter().map(App::drain)).await;
        pods.stop().await;
    };
    signals.drain(drain).await;
    Ok(code)
}

/// Merges the user's runner flags with the flags that `up` sets.
fn runner_flags(address: IpAddr, given: &[OsString]) -> Result<(runner::Flags, SetFlags), FlagError> {
    let args = std::iter::once(OsString::from("porch-fn-runner")).chain(given.iter().cloned());
    let (mut flags, set) = porch_fn_flags::parse_with_set::<runner::Flags>(args)?;
    // `set` also has what the environment sets, for `up` itself.
    let is_given = |flag: &&str| {
        let words = given.iter().filter_map(|word| word.to_str()).filter(|word| word.starts_with('-'));
        words.map(|word| word.trim_start_matches('-').split('=').next()).any(|name| name == Some(*flag))
    };
    let own = UpArgs::augment_args(clap::Command::new("up"));
    let own = own.get_arguments().filter_map(clap::Arg::get_long).chain(["wrapper-server"]);
    if let Some(flag) = own.into_iter().find(is_given) {
        let message = format!("--{flag} cannot be set after --: `up` sets it for its runners; see --help");
        return Err(FlagError::usage("porch-fn up", message));
    }
    (flags.server.address, flags.server.port, flags.server.admin_port) = (Some(address), 0, 0);
    if !set.contains("drain-delay") {
        flags.server.drain_delay = GoDuration::default();
    }
    Ok((flags, set))
}

/// Returns the functions of the user's file and the example functions.
fn functions(file: Option<&Path>, own: &Path, prefix: &str) -> Result<ImageCommands, Failure> {
    let read = file.map(|path| ImageCommands::local(path, prefix)).transpose();
    let mut functions = read.map_err(Failure::usage)?.unwrap_or_default();
    for (image, name) in EXAMPLES {
        // A function of the user replaces the example with the same image.
        if !functions.images().contains(&image) {
            let command = vec![own.display().to_string(), EXAMPLE_FUNCTION.to_owned(), name.to_owned()];
            functions.add(image, command, prefix).map_err(Failure::usage)?;
        }
    }
    Ok(functions)
}

/// Prints what runs.
fn announce(router: &App, runners: &[String], images: &[String], backend: Backend) {
    let (address, admin) = (router.address(), router.admin_address());
    println!("Router   {address}   give Porch --function-runner={address}");
    println!("Status   http://{admin}/   (open it in a browser; /metrics for Prometheus)\n");
    println!("Runner   {}", runners.join("\nRunner   "));
    println!("\nFunctions that run here (add your own with --local-functions):");
    println!("  {}", images.join("\n  "));
    if backend == Backend::Sandbox {
        println!("  every other image, in a sandbox (see porch-fn images)");
    }
    println!("\nTry next, in another terminal:");
    let eval = format!("porch-fn eval examples/package --address {address} -i");
    println!("  {eval} {} -- owner=me", EXAMPLES[0].0);
    println!("  {eval} {}", EXAMPLES[1].0);
    println!("  porch-fn shards --address {admin}");
    println!("\nCtrl-C stops everything.");
}

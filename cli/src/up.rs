//! `porch-fn up`: router, runners and local pods in one process, with two example functions, so that the
//! first evaluation works offline on a laptop.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use porch_fn_router as router;
use porch_fn_runner as runner;
use porch_fn_runner::pods::local::{LocalCluster, LocalFunctions, LocalOptions};
use porch_fn_service::flags::{self, EXIT_USAGE, FlagError};
use porch_fn_service::lifecycle::{self, StopSignals};
use porch_fn_service::tasks::Failed;
use porch_fn_service::telemetry;
use wrapper_server::process::adopt_orphans;

use crate::commands::{EXAMPLE_FUNCTION, WRAPPER_SERVER};
use crate::{admin, shards};

/// Images of the example functions that come with porch-fn.
const EXAMPLES: [(&str, &str); 2] = [
    ("porch-fn.example/annotate:v1", "annotate"),
    ("porch-fn.example/require-resources:v1", "require-resources"),
];

/// Runner flags that `up` decides.
const OWN_FLAGS: [&str; 6] =
    ["address", "port", "log-level", "pod-backend", "local-functions", "wrapper-server"];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Runners to start
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=64))]
    runners: u16,
    /// Address to listen on
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    address: IpAddr,
    /// Port of the router; 0 takes any
    #[arg(long, default_value_t = 9445)]
    port: u16,
    /// Port of the router's status page, /status.json, /shards, /metrics, /healthz and /readyz; 0 takes any
    #[arg(long, default_value_t = 9464)]
    admin_port: u16,
    /// File with functions of your own: functions: [{image: IMAGE, command: [PROGRAM, ARG...]}]
    #[arg(long)]
    local_functions: Option<PathBuf>,
    /// Log verbosity: 0 errors, 1 warnings, 2 events, 4 calls, 5 everything
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=5))]
    log_level: u8,
    /// Flags for each runner, such as --pod-ttl=5m; see porch-fn-runner --help
    #[arg(last = true, value_name = "RUNNER FLAGS")]
    runner_flags: Vec<OsString>,
}

#[derive(Debug, thiserror::Error)]
enum UpError {
    #[error(transparent)]
    Flags(#[from] FlagError),
    #[error("cannot find this program's own path: {0}")]
    OwnPath(std::io::Error),
    #[error("{0}")]
    Functions(String),
    #[error("runner: {0}")]
    Runner(#[from] runner::AppError),
    #[error("router: {0}; 0 takes any port")]
    Router(#[from] router::AppError),
}

pub(crate) async fn run(args: Args) -> ExitCode {
    telemetry::init(args.log_level);
    adopt_orphans();
    let Ok(mut signals) = StopSignals::catch() else {
        eprintln!("porch-fn up: cannot catch SIGTERM and SIGINT");
        return ExitCode::FAILURE;
    };
    match start(args).await {
        Ok(mut cluster) => {
            cluster.announce();
            let code = signals.first(cluster.failed()).await;
            signals.drain(cluster.drain()).await;
            code
        }
        Err(UpError::Flags(error)) => error.report(),
        Err(error @ UpError::Functions(_)) => {
            eprintln!("porch-fn up: {error}");
            ExitCode::from(EXIT_USAGE)
        }
        Err(UpError::Runner(error)) => {
            eprintln!("porch-fn up: runner: {error}");
            error.exit_code()
        }
        Err(error) => {
            eprintln!("porch-fn up: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Everything that was started.
struct Cluster {
    router: router::App,
    runners: Vec<runner::App>,
    pods: LocalCluster,
    images: Vec<String>,
}

async fn start(args: Args) -> Result<Cluster, UpError> {
    let (runner_flags, set) = runner_flags(args.address, args.runner_flags)?;
    let functions = functions(args.local_functions, &runner_flags.default_image_prefix)?;
    let images = functions.images().into_iter().map(str::to_owned).collect();
    let own = std::env::current_exe().map_err(UpError::OwnPath)?;
    let pods = LocalCluster::new(LocalOptions {
        wrapper: vec![own.into_os_string(), WRAPPER_SERVER.into()],
        max_message: runner_flags.max_request_body_size,
        log_level: args.log_level,
        functions: functions.clone(),
    });
    let mut runners = Vec::new();
    for _ in 0..args.runners {
        let shared = runner::Pods::Shared(pods.clone(), functions.clone());
        runners.push(runner::App::start(runner_flags.clone(), &set, shared).await?);
    }
    let targets: Vec<_> = runners.iter().map(|runner| runner.address().to_string()).collect();
    let router_flags: router::Flags = flags::parse(
        [
            "porch-fn-router".to_owned(),
            format!("--runners=static:///{}", targets.join(",")),
            format!("--address={}", args.address),
            format!("--port={}", args.port),
            format!("--admin-port={}", args.admin_port),
            format!("--max-request-body-size={}", runner_flags.max_request_body_size),
            format!("--default-image-prefix={}", runner_flags.default_image_prefix),
            "--drain-delay=0".to_owned(),
        ]
        .map(OsString::from),
    )?;
    let router = router::App::start(router_flags).await?;
    Ok(Cluster { router, runners, pods, images })
}

/// The flags that the user gave for each runner, and ours.
fn runner_flags(
    address: IpAddr,
    given: Vec<OsString>,
) -> Result<(runner::Flags, flags::SetFlags), FlagError> {
    let program = || std::iter::once(OsString::from("porch-fn-runner"));
    let (_, set) = flags::parse_with_set::<runner::Flags>(program().chain(given.iter().cloned()))?;
    if let Some(flag) = set.among(&OWN_FLAGS).first() {
        let message = format!("--{flag} cannot be set behind --: `up` sets it for its runners; see --help");
        return Err(FlagError::usage("porch-fn up", message));
    }
    let default = OsString::from("--drain-delay=0");
    // The admin port can come from the environment as well: of a repeated flag the last counts.
    let own = ["--port=0".to_owned(), "--admin-port=0".to_owned(), format!("--address={address}")];
    let own = own.into_iter().map(OsString::from);
    flags::parse_with_set(program().chain([default]).chain(given).chain(own))
}

fn functions(file: Option<PathBuf>, prefix: &str) -> Result<LocalFunctions, UpError> {
    let mut functions = match file {
        Some(path) => {
            LocalFunctions::read(&path, prefix).map_err(|error| UpError::Functions(error.to_string()))?
        }
        None => LocalFunctions::default(),
    };
    let own = std::env::current_exe().map_err(UpError::OwnPath)?.display().to_string();
    for (image, name) in EXAMPLES {
        // The user's own function of that name counts.
        if functions.images().contains(&image) {
            continue;
        }
        let command = vec![own.clone(), EXAMPLE_FUNCTION.to_owned(), name.to_owned()];
        functions.add(image, command, prefix).map_err(UpError::Functions)?;
    }
    Ok(functions)
}

impl Cluster {
    fn announce(&self) {
        let address = self.router.address();
        let admin = self.router.admin_address();
        println!("Router   {address}   give Porch --function-runner={address}");
        println!("Status   http://{admin}/   (open it in a browser; /metrics for Prometheus)\n");
        print!("{}", shards::starting_table(self.runners.iter().map(runner::App::address)));
        println!("\nFunctions that run here (add your own with --local-functions):");
        for image in &self.images {
            println!("  {image}");
        }
        let flag = eval_flag(address);
        println!("\nTry next, in another terminal:");
        println!("  porch-fn eval{flag} --image {} --package examples/package -- owner=me", EXAMPLES[0].0);
        println!("  porch-fn eval{flag} --image {} --package examples/package", EXAMPLES[1].0);
        println!("  porch-fn shards{}", shards_flag(admin));
        println!("\nCtrl-C ends everything.");
    }

    /// Returns when a part of router or runners ended that should not have.
    async fn failed(&mut self) -> Failed {
        let mut runners: FuturesUnordered<_> = self.runners.iter_mut().map(runner::App::failed).collect();
        tokio::select! {
            failed = self.router.failed() => failed,
            Some(failed) = runners.next() => failed,
        }
    }

    async fn drain(self) -> lifecycle::Drained {
        println!("\nEnding, once calls in flight have finished; Ctrl-C again ends them, too.");
        let mut drained = self.router.drain().await;
        for runner in join_all(self.runners.into_iter().map(runner::App::drain)).await {
            if runner == lifecycle::Drained::TimedOut {
                drained = runner;
            }
        }
        self.pods.stop().await;
        drained
    }
}

/// The flag that `eval` needs to find this router, if it needs one.
fn eval_flag(address: SocketAddr) -> String {
    if address.to_string() == crate::eval::DEFAULT_ADDRESS {
        String::new()
    } else {
        format!(" --address {address}")
    }
}

fn shards_flag(admin: SocketAddr) -> String {
    if admin.to_string() == admin::DEFAULT_ADDRESS { String::new() } else { format!(" --address {admin}") }
}

//! `porch-fn doctor`: checks an installation, and reports each fault with its fix.
//!
//! [`gather`] asks the cluster and the programs for the facts. [`installation`] recognises routers,
//! runners and Porch's programs among the Deployments, with the flags that each runs with.
//! [`checks`] is a table of functions that turn facts into findings.

mod checks;
mod destination;
mod facts;
mod finding;
mod gather;
mod installation;
mod legacy;
mod porch;
mod quantity;
mod rights;
mod running;
mod workload;

use std::process::ExitCode;
use std::time::Duration;

use tokio::time::sleep;

use self::finding::Level;
use crate::cluster::ClusterArgs;
use crate::failure::Failure;
use crate::output::{self, Output};

/// Some faults pass by themselves, such as a ring that a runner has just joined. Doctor repeats the
/// checks this often, and reports the faults that persist for 15 s.
const LOOKS_AGAIN: usize = 3;
const PAUSE: Duration = Duration::from_secs(5);

#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// Output format
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Output::Table)]
    output: Output,
    /// List the function pods that Porch's own function runner has left, and their Services, and
    /// delete them when asked to
    #[arg(long, conflicts_with = "output")]
    clean_legacy: bool,
    /// With --clean-legacy: delete without asking
    #[arg(short, long, requires = "clean_legacy")]
    yes: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

// === impl DoctorArgs ===

impl DoctorArgs {
    /// Returns the command's name for error messages.
    pub(crate) fn name(&self) -> &'static str {
        if self.clean_legacy { "doctor --clean-legacy" } else { "doctor" }
    }
}

pub(crate) async fn run(args: DoctorArgs) -> Result<ExitCode, Failure> {
    let cluster = args.cluster.connect().await?;
    if args.clean_legacy {
        let all_deleted = legacy::clean(&cluster, args.yes).await?;
        return Ok(if all_deleted { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let mut findings = checks::all(&gather::gather(&cluster).await?);
    for _ in 0..LOOKS_AGAIN {
        if !findings.iter().any(checks::may_pass) {
            break;
        }
        sleep(PAUSE).await;
        // If this query fails, report the previous findings.
        let Ok(facts) = gather::gather(&cluster).await else { break };
        findings = checks::all(&facts);
    }
    output::show(&match args.output {
        Output::Table => finding::text(&findings),
        Output::Json => serde_json::to_string_pretty(&findings)? + "\n",
    });
    let has_problems = findings.iter().any(|finding| finding.level == Level::Problem);
    Ok(if has_problems { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

//! `porch-fn doctor`: checks an installation, and reports each fault with its fix.
//!
//! [`gather`] asks the cluster and the programs for the facts. [`installation`] recognises routers,
//! runners and Porch's programs among the Deployments, and parses their flags. [`checks`] is a
//! table of functions that turn facts into findings.

mod checks;
mod destination;
mod facts;
mod finding;
mod gather;
mod installation;
mod legacy;
mod porch;
mod rights;
mod running;
mod workload;

use std::process::ExitCode;
use std::time::Duration;

use tokio::time::sleep;

use self::finding::{Finding, Level};
use crate::cluster::{Cluster, ClusterArgs};
use crate::failure::{Exit, Failure};
use crate::output::{self, Output};
use crate::progress::report_if_slow;

/// Maximum number of repeats of the checks. Some faults are temporary, for example while a runner
/// joins the ring. Doctor reports such a fault only if it lasts through all repeats (15 s).
const MAX_REPEATS: usize = 3;
const REPEAT_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// Output format
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Output::Table)]
    output: Output,
    /// List the function pods and Services that Porch's own function runner has left behind, ask
    /// for confirmation, and delete them
    #[arg(long, conflicts_with = "output")]
    clean_legacy: bool,
    /// With --clean-legacy: delete without asking
    #[arg(short, long, requires = "clean_legacy")]
    yes: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(crate) async fn run(args: DoctorArgs) -> Result<ExitCode, Failure> {
    let is_json = args.output == Output::Json;
    let checked = check(args).await;
    if let (Err(error), true) = (&checked, is_json) {
        // A script can parse the output in each case. Standard error has the same text for people.
        let finding = Finding::unreachable(error.to_string());
        output::show(&(serde_json::to_string_pretty(&[finding])? + "\n"));
    }
    checked
}

async fn check(args: DoctorArgs) -> Result<ExitCode, Failure> {
    let cluster = args.cluster.connect().await?;
    if args.clean_legacy {
        let all_deleted = legacy::clean(&cluster, args.yes).await?;
        return Ok(if all_deleted { ExitCode::SUCCESS } else { Exit::Problems.into() });
    }
    let what = format!("checking namespace {} at {}", cluster.namespace, cluster.server);
    let findings = report_if_slow(&what, Box::pin(persistent_findings(&cluster))).await?;
    output::show(&match args.output {
        Output::Table => finding::text(&findings),
        Output::Json => serde_json::to_string_pretty(&findings)? + "\n",
    });
    let has_problems = findings.iter().any(|finding| finding.level == Level::Problem);
    Ok(if has_problems { Exit::Problems.into() } else { ExitCode::SUCCESS })
}

async fn persistent_findings(cluster: &Cluster) -> Result<Vec<Finding>, Failure> {
    let mut findings = checks::all(&gather::gather(cluster).await?);
    for _ in 0..MAX_REPEATS {
        if !findings.iter().any(checks::may_be_temporary) {
            break;
        }
        sleep(REPEAT_INTERVAL).await;
        // If this query fails, report the previous findings.
        let Ok(facts) = gather::gather(cluster).await else { break };
        findings = checks::all(&facts);
    }
    Ok(findings)
}

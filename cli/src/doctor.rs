//! `porch-fn doctor`: looks an installation over, and says of everything that is wrong what to do about it.
//!
//! [`installation`] makes out of the namespace's objects what was installed, with the flags that each program runs with;
//! [`gather`] asks the cluster and the programs; [`checks`] are pure, and make findings out of the facts.

mod checks;
mod destination;
mod facts;
mod finding;
mod gather;
mod installation;
mod legacy;
mod metrics;
mod porch;
mod quantity;
mod rights;
mod running;

use std::process::ExitCode;
use std::time::Duration;

use clap::ArgAction;
use tokio::time::sleep;

use self::finding::{Finding, Level};
use crate::cluster::ClusterArgs;
use crate::output::{self, Output};

/// How often to look again at what passes by itself, such as a ring on which a runner has just come up: what is still so
/// after 15 s is told.
const LOOKS_AGAIN: usize = 3;
const PAUSE: Duration = Duration::from_secs(5);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Output format
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Output::Table)]
    output: Output,
    /// List the function pods that Porch's own function runner has left, and their Services, and delete them when asked to
    #[arg(long, conflicts_with = "output")]
    clean_legacy: bool,
    /// With --clean-legacy: delete without asking
    #[arg(short, long, action = ArgAction::SetTrue, requires = "clean_legacy")]
    yes: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(crate) async fn run(args: Args) -> ExitCode {
    let cluster = match args.cluster.connect().await {
        Ok(cluster) => cluster,
        Err(error) => return output::fail("doctor", error),
    };
    if args.clean_legacy {
        return legacy::clean(&cluster, args.yes).await;
    }
    let mut findings = Vec::new();
    for look in 0..=LOOKS_AGAIN {
        if look > 0 {
            sleep(PAUSE).await;
        }
        findings = match gather::gather(&cluster).await {
            Ok(facts) => checks::all(&facts),
            Err(error) if look == 0 => return output::fail("doctor", error),
            // What was seen before is told.
            Err(_) => break,
        };
        if !findings.iter().any(Finding::may_pass) {
            break;
        }
    }
    output::show(&match args.output {
        Output::Table => finding::report(&findings),
        Output::Json => finding::json(&findings) + "\n",
    });
    if findings.iter().any(|finding| finding.level == Level::Problem) {
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

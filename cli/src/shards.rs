//! `porch-fn shards`: the router's /shards page as a table.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::process::ExitCode;

use porch_fn_status_page::Shards;

use crate::admin::{AdminPort, DEFAULT_ADDRESS};
use crate::cluster::{ADMIN, CALLED, ClusterArgs, ROUTERS};
use crate::failure::Failure;
use crate::output::{Output, escaped, table};

/// Maximum number of images in the table.
const MAX_IMAGES: usize = 40;

#[derive(Debug, clap::Args)]
pub(crate) struct ShardsArgs {
    /// The router's admin address, where it can be reached without a cluster
    #[arg(long, value_name = "HOST:PORT", default_value = DEFAULT_ADDRESS, conflicts_with_all = ["namespace", "kubeconfig", "context"])]
    address: String,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Output::Table)]
    output: Output,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(crate) async fn run(args: ShardsArgs) -> Result<ExitCode, Failure> {
    let reached = args.cluster.reach(args.address, &[ROUTERS, CALLED], &ADMIN).await?;
    let router = AdminPort { kind: "router", address: reached.address.clone() };
    let page = router.page("/shards").await.map_err(|error| reached.explain(error))?;
    args.output.print(&page, tables);
    Ok(ExitCode::SUCCESS)
}

/// Formats the table of runners at start, before the router has any health data.
pub(crate) fn starting_table(runners: impl Iterator<Item = SocketAddr>) -> String {
    let rows = runners.map(|address| vec![address.to_string(), "healthy".to_owned()]).collect();
    table(&["RUNNER", "STATE"], rows)
}

fn tables(page: &Shards) -> String {
    let rows = page.shards.iter().map(|shard| {
        vec![
            shard.address.clone(),
            shard.state.replace('_', " ") + if shard.listed { "" } else { ", no longer listed" },
            shard.owned.to_string(),
            shard.in_flight.to_string(),
            shard.load.to_string(),
            shard.calls.to_string(),
            shard.failures.to_string(),
        ]
    });
    let columns = ["RUNNER", "STATE", "IMAGES", "IN FLIGHT", "LOAD", "CALLS", "FAILED"];
    let mut text = table(&columns, rows.collect());
    if let Some(error) = &page.discovery_error {
        let _ = writeln!(text, "discovery fails, and keeps the runners that it knew: {}", escaped(error));
    }
    if page.shards.is_empty() {
        text.push_str("no runners known; see the router's --runners\n");
    }
    if !page.images.is_empty() {
        let rows = page
            .images
            .iter()
            .take(MAX_IMAGES)
            .map(|image| vec![image.image.clone(), image.owner.clone(), image.in_flight.to_string()]);
        text.push('\n');
        text.push_str(&table(&["IMAGE", "OWNER", "IN FLIGHT"], rows.collect()));
        if page.images.len() > MAX_IMAGES {
            let _ = writeln!(text, "... and {} more; -o json shows all", page.images.len() - MAX_IMAGES);
        }
    }
    text
}

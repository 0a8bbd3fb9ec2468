//! `porch-fn shards`: prints the router's /shards page as a table.

use std::fmt::Write as _;
use std::process::ExitCode;

use porch_fn_status_page::Shards;

use crate::admin::{AdminPort, PageArgs};
use crate::cluster::ADMIN;
use crate::failure::Failure;
use crate::output::{escaped, table};

/// Maximum number of images in the table.
const MAX_IMAGES: usize = 40;

pub(crate) async fn run(args: PageArgs) -> Result<ExitCode, Failure> {
    let reached = args.cluster.reach(args.address, &ADMIN).await?;
    let router = AdminPort { kind: "router", address: reached.address.clone() };
    let page = router.page("/shards").await.map_err(|error| reached.explain(error))?;
    args.output.print(&page, tables);
    Ok(ExitCode::SUCCESS)
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
        let _ =
            writeln!(text, "discovery fails, so the router keeps the last known runners: {}", escaped(error));
    }
    if page.shards.is_empty() {
        text.push_str("no runners found; check the router's --runners\n");
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

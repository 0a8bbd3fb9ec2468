//! `porch-fn top`: the functions in use, with their calls, failures and durations, from the router's
//! /status.json.

use std::cmp::Reverse;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use porch_fn_status_page::{ImageStatus, Numbers, Status};
use serde_json::json;
use tokio::time::sleep;

use crate::admin::{AdminPort, PageArgs};
use crate::cluster::ADMIN;
use crate::failure::Failure;
use crate::output::{Output, show, table};

/// Interval of the live table. The router's data is at most as old.
const INTERVAL: Duration = Duration::from_secs(2);

#[derive(Debug, clap::Args)]
pub(crate) struct TopArgs {
    /// Sort by this column, largest first
    #[arg(long, value_name = "COLUMN", value_enum, default_value_t = SortBy::Calls)]
    sort_by: SortBy,
    /// Most images to print
    #[arg(long, value_name = "COUNT", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..))]
    limit: u16,
    /// Print the table once. This is the default if the output is not a terminal
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    page: PageArgs,
}

/// A column. The variants have no doc comments, because these would make --help much longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SortBy {
    Calls,
    Errors,
    P50,
    P95,
    P99,
    Queue,
    Pods,
    Waiting,
}

pub(crate) async fn run(args: TopArgs) -> Result<ExitCode, Failure> {
    let TopArgs { sort_by, limit, once, page: PageArgs { address, output, cluster } } = args;
    let reached = cluster.reach(address, &ADMIN).await?;
    let router = AdminPort { kind: "router", address: reached.address.clone() };
    let is_live = output == Output::Table && !once && std::io::stdout().is_terminal();
    if is_live {
        show("\x1b[2J");
    }
    let mut shown = false;
    loop {
        let page = router.page("/status.json").await.map_err(|error| reached.explain(error));
        let text = match page {
            Ok((_, page)) => {
                let top = sorted(page, sort_by, usize::from(limit))?;
                match output {
                    Output::Json => {
                        let json = json!({"at_ms": top.at_ms, "totals": top.totals, "images": top.images});
                        format!("{json:#}\n")
                    }
                    // Overwrites the lines in place, so that the table does not flicker.
                    Output::Table if is_live => {
                        format!("\x1b[H{}\x1b[J", tables(&top).replace('\n', "\x1b[K\n"))
                    }
                    Output::Table => tables(&top),
                }
            }
            // The router may be back soon. The last table stays.
            Err(error) if shown => format!("\x1b[H{error}\x1b[K\n"),
            Err(error) => return Err(error),
        };
        show(&text);
        if !is_live {
            return Ok(ExitCode::SUCCESS);
        }
        shown = true;
        sleep(INTERVAL).await;
    }
}

// === impl SortBy ===

impl SortBy {
    /// The value of an image in this column. Images without a value come last.
    fn value(self, image: &ImageStatus) -> f64 {
        let minute = &image.numbers.minute;
        match self {
            Self::Calls => minute.calls as f64,
            Self::Errors => minute.failed as f64,
            Self::P50 => minute.p50_ms.unwrap_or(-1.0),
            Self::P95 => minute.p95_ms.unwrap_or(-1.0),
            Self::P99 => minute.p99_ms.unwrap_or(-1.0),
            Self::Queue => minute.queue_p95_ms.unwrap_or(-1.0),
            Self::Pods => image.ready as f64,
            Self::Waiting => image.waiting as f64,
        }
    }
}

/// Keeps the first images in the order of `--sort-by`.
fn sorted(mut page: Status, sort_by: SortBy, limit: usize) -> Result<Status, Failure> {
    if page.totals.numbers.ten_minutes.is_empty() {
        return Err(Failure::new(
            "the router is older than 0.2.0 and has no numbers per function: upgrade it, or see its /metrics",
        ));
    }
    page.images.sort_by(|a, b| {
        let calls = |image: &ImageStatus| Reverse((image.numbers.minute.calls, image.numbers.calls));
        let by_calls = || calls(a).cmp(&calls(b)).then_with(|| a.info.image.cmp(&b.info.image));
        sort_by.value(b).total_cmp(&sort_by.value(a)).then_with(by_calls)
    });
    page.images.truncate(limit);
    Ok(page)
}

fn tables(top: &Status) -> String {
    let all = &top.totals;
    let mut rows = vec![row("all", &all.numbers, all.ready, all.waiting)];
    rows.extend(top.images.iter().map(|image| {
        let name = if image.info.image.is_empty() { "all other images" } else { &image.info.image };
        row(name, &image.numbers, image.ready, image.waiting)
    }));
    let columns = ["IMAGE", "CALLS/S", "SUCCESS %", "P50", "P95", "P99", "QUEUE P95", "PODS", "WAITING"];
    let mut text = table(&columns, rows);
    if top.images.is_empty() {
        text.push_str("no function has been called through this router\n");
    }
    text
}

fn row(name: &str, numbers: &Numbers, pods: u64, waiting: u64) -> Vec<String> {
    let minute = &numbers.minute;
    let rate = minute.calls as f64 / 60.0;
    vec![
        name.to_owned(),
        if rate < 10.0 { format!("{rate:.2}") } else { format!("{rate:.0}") },
        success(minute.calls, minute.failed),
        duration(minute.p50_ms),
        duration(minute.p95_ms),
        duration(minute.p99_ms),
        duration(minute.queue_p95_ms),
        pods.to_string(),
        waiting.to_string(),
    ]
}

/// The percentage of calls that did not fail. It is rounded down, so that 100 means all calls.
fn success(calls: u64, failed: u64) -> String {
    let per_mille = calls.saturating_sub(failed).saturating_mul(1000).checked_div(calls);
    match per_mille {
        None => "-".to_owned(),
        Some(1000) => "100".to_owned(),
        Some(tenths) => format!("{}.{}", tenths / 10, tenths % 10),
    }
}

fn duration(ms: Option<f64>) -> String {
    match ms {
        None => "-".to_owned(),
        Some(ms) if ms < 10.0 => format!("{ms:.1}ms"),
        Some(ms) if ms < 1000.0 => format!("{ms:.0}ms"),
        Some(ms) => format!("{:.1}s", ms / 1000.0),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::cluster::ClusterArgs;
    use crate::testing::serve;

    fn image(name: &str, minute: &Value, ready: u64) -> Value {
        json!({"image": name, "owner": "a:1", "in_flight": 0, "ready": ready, "starting": 0, "terminating": 0,
            "in_pods": 0, "waiting": 3, "numbers": {"calls": 9, "minute": minute}})
    }

    fn page() -> Value {
        let minute = json!({"calls": 600, "failed": 1, "p50_ms": 1.25, "p95_ms": 80.4, "p99_ms": 12_345.0,
            "queue_p50_ms": 0.01, "queue_p95_ms": 0.5});
        let failing = json!({"calls": 30, "failed": 30, "p95_ms": 9.0});
        json!({
            "version": "0.2.0", "at_ms": 5, "ring": {"scheme": 1, "virtual_nodes": 1, "slices": []}, "shards": [],
            "images": [
                image("idle:v1", &json!({}), 4), image("\u{1b}[2J", &failing, 1), image("busy:v1", &minute, 2),
                image("", &json!({"calls": 6000}), 0),
            ],
            "truncated": false, "failures": [], "notes": [],
            "totals": {"images": 3, "ready": 7, "starting": 0, "terminating": 0, "waiting": 9,
                "numbers": {"calls": 1, "minute": minute, "ten_minutes": [[1, 0]]}},
        })
    }

    fn top(sort_by: SortBy, limit: usize) -> Status {
        sorted(serde_json::from_value(page()).unwrap(), sort_by, limit).unwrap()
    }

    #[test]
    fn the_table_has_rates_shares_and_durations() {
        assert_eq!(
            tables(&top(SortBy::Calls, 20)),
            "IMAGE              CALLS/S   SUCCESS %   P50     P95     P99     QUEUE P95   PODS   WAITING\n\
             all                10        99.8        1.2ms   80ms    12.3s   0.5ms       7      9\n\
             all other images   100       100         -       -       -       -           0      3\n\
             busy:v1            10        99.8        1.2ms   80ms    12.3s   0.5ms       2      3\n\
             \\u{1b}[2J          0.50      0.0         -       9.0ms   -       -           1      3\n\
             idle:v1            0.00      -           -       -       -       -           4      3\n"
        );
    }

    #[test]
    fn a_router_without_calls_says_so() {
        let top = Status { images: Vec::new(), ..top(SortBy::Calls, 1) };
        assert!(tables(&top).ends_with("\nno function has been called through this router\n"));
    }

    #[test]
    fn images_are_sorted_by_the_column_and_then_by_calls() {
        let first = |sort_by, limit| {
            let images = top(sort_by, limit).images.into_iter();
            images.map(|image| image.info.image).collect::<Vec<_>>()
        };
        assert_eq!(first(SortBy::Errors, 2), ["\u{1b}[2J", "busy:v1"]);
        assert_eq!(first(SortBy::Pods, 2), ["idle:v1", "busy:v1"]);
        assert_eq!(first(SortBy::P95, 3), ["busy:v1", "\u{1b}[2J", ""]);
        for column in [SortBy::P50, SortBy::P99, SortBy::Queue] {
            assert_eq!(first(column, 2), ["busy:v1", ""], "{column:?}");
        }
        assert_eq!(first(SortBy::Waiting, 1), [""]);
    }

    #[tokio::test]
    async fn json_is_printed_once_and_an_older_router_is_recognized() {
        let mut older = page();
        older["totals"].as_object_mut().unwrap().remove("numbers");
        let answers = [page(), older].map(|page| ("200 OK".to_owned(), page.to_string()));
        let (address, asked) = serve(answers.into()).await;
        let args = || {
            let page =
                PageArgs { address: address.clone(), output: Output::Json, cluster: ClusterArgs::default() };
            TopArgs { sort_by: SortBy::Calls, limit: 1, once: false, page }
        };
        assert_eq!(run(args()).await.unwrap(), ExitCode::SUCCESS);
        let refused = run(args()).await.unwrap_err().to_string();
        assert!(refused.contains("older than 0.2.0"), "{refused}");
        assert_eq!(asked.await.unwrap(), ["/status.json"; 2]);
    }
}

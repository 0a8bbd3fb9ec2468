//! `porch-fn config`: the settings that a runner has for an image, and where each is written.

use std::process::ExitCode;

use http::StatusCode;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use porch_fn_settings::Page;

use crate::admin::{AdminPort, DEFAULT_ADDRESS};
use crate::cluster::{ADMIN, CALLED, ClusterArgs, SHARDS};
use crate::failure::Failure;
use crate::output::{Output, table};

#[derive(Debug, clap::Args)]
pub(crate) struct ConfigArgs {
    /// The image, as callers write it
    image: String,
    /// A runner's admin address, where it can be reached without a cluster
    #[arg(long, value_name = "HOST:PORT", default_value = DEFAULT_ADDRESS, conflicts_with_all = ["namespace", "kubeconfig", "context"])]
    address: String,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Output::Table)]
    output: Output,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// A runner's answer to an image that it refuses.
#[derive(serde::Deserialize)]
struct Refusal {
    error: String,
}

pub(crate) async fn run(args: ConfigArgs) -> Result<ExitCode, Failure> {
    let reached = args.cluster.reach(args.address, &[SHARDS, CALLED], &ADMIN).await?;
    let runner = AdminPort { kind: "runner", address: reached.address.clone() };
    let page = fetch(&runner, &args.image).await.map_err(|error| reached.explain(error))?;
    args.output.print(&page.map_err(Failure::new)?, tables);
    Ok(ExitCode::SUCCESS)
}

/// The page, or the runner's reason to refuse the image.
async fn fetch(runner: &AdminPort, image: &str) -> Result<Result<(String, Page), String>, Failure> {
    let path = format!("/config?image={}", utf8_percent_encode(image, NON_ALPHANUMERIC));
    let (status, body) = runner.get(&path).await?;
    if status == StatusCode::BAD_REQUEST
        && let Ok(Refusal { error }) = serde_json::from_slice(&body)
    {
        return Ok(Err(error));
    }
    runner.read(&path, status, &body).map(Ok)
}

fn tables(page: &Page) -> String {
    let rows = page.settings.iter().map(|row| {
        let value = row.value.as_str().map_or_else(|| row.value.to_string(), str::to_owned);
        vec![row.setting.clone(), value, row.from.clone()]
    });
    let settings = table(&["SETTING", "VALUE", "FROM"], rows.collect());
    let notes = match page.notes.as_slice() {
        [] => String::new(),
        notes => format!("\nNOTES\n{}\n", notes.join("\n")),
    };
    format!("{}\n\n{settings}{notes}", page.image)
}

#[cfg(test)]
mod tests {
    use porch_fn_settings::Row;
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::serve;

    fn row(setting: &str, value: Value, from: &str) -> Row {
        Row { setting: setting.to_owned(), value, from: from.to_owned() }
    }

    fn page() -> Page {
        let settings = vec![
            row("ttl", json!("30m0s"), "default of --pod-ttl"),
            row("maxPods", json!(4), "FunctionConfig f"),
            row("securityContext", json!({"runAsUser": 7}), "FunctionConfig f"),
        ];
        Page { image: "ghcr.io/x/f:v1".to_owned(), settings, notes: vec!["one".to_owned(), "two".to_owned()] }
    }

    #[test]
    fn the_table_shows_all() {
        assert_eq!(
            tables(&page()),
            "ghcr.io/x/f:v1\n\n\
             SETTING           VALUE             FROM\n\
             ttl               30m0s             default of --pod-ttl\n\
             maxPods           4                 FunctionConfig f\n\
             securityContext   {\"runAsUser\":7}   FunctionConfig f\n\
             \nNOTES\none\ntwo\n"
        );
        assert!(tables(&Page { notes: vec![], ..page() }).ends_with("FunctionConfig f\n"));
    }

    /// The answer of a runner that gives this one.
    async fn fetched(status: &str, body: String) -> (Result<Result<Page, String>, String>, String, String) {
        let (address, asked) = serve(vec![(status.to_owned(), body)]).await;
        let runner = AdminPort { kind: "runner", address: address.clone() };
        let fetched = fetch(&runner, "localhost:5000/f:v1@sha256:a&b=ä").await;
        let fetched = fetched.map(|page| page.map(|(_, page)| page)).map_err(|error| error.to_string());
        (fetched, address, asked.await.unwrap().remove(0))
    }

    #[tokio::test]
    async fn pages_and_refusals_and_other_servers_are_distinguished() {
        let text = serde_json::to_string(&page()).unwrap();
        let (fetched_page, _, asked) = fetched("200 OK", text).await;
        assert_eq!(fetched_page, Ok(Ok(page())));
        assert_eq!(asked, "/config?image=localhost%3a5000%2ff%3av1%40sha256%3aa%26b%3d%c3%a4");
        let refusal = json!({"error": "not an image"}).to_string();
        assert_eq!(fetched("400 Bad Request", refusal).await.0, Ok(Err("not an image".to_owned())));
        for (status, body) in [("404 Not Found", "pages: /shards"), ("400 Bad Request", "what?")] {
            let (error, address, _) = fetched(status, body.to_owned()).await;
            let expected = format!("{address} is not a runner's admin port (/config is {status})");
            assert_eq!(error.unwrap_err(), expected);
        }
        let (closed, asked) = serve(vec![]).await;
        asked.await.unwrap();
        let runner = AdminPort { kind: "runner", address: closed.clone() };
        let error = fetch(&runner, "X").await.unwrap_err().to_string();
        let refused = "Connection refused (os error 111)";
        assert_eq!(error, format!("cannot reach the runner's admin port at {closed}: {refused}"));
    }
}

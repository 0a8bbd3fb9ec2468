//! `porch-fn config`: what holds for an image, and where it is written, as a runner sees it.

use std::process::ExitCode;

use http::StatusCode;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use porch_fn_settings::Page;
use serde_json::Value;

use crate::admin::{self, AdminError, DEFAULT_ADDRESS, Server};
use crate::cluster::{ADMIN, CALLED, ClusterArgs, SHARDS};
use crate::output::{self, Output, table};

/// Longest value in the table, in characters.
const MAX_VALUE: usize = 100;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
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

#[derive(Debug, thiserror::Error)]
enum ConfigError {
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// The runner's own words.
    #[error("{0}")]
    Refused(String),
}

pub(crate) async fn run(args: Args) -> ExitCode {
    let reached = match args.cluster.reach(args.address, &[SHARDS, CALLED], &ADMIN).await {
        Ok(reached) => reached,
        Err(error) => return output::fail("config", error),
    };
    let fetched = fetch(&reached.address, &args.image).await.map_err(|error| match error {
        ConfigError::Admin(error) => reached.explain(error),
        refused @ ConfigError::Refused(_) => refused.to_string(),
    });
    output::print("config", fetched, args.output, tables)
}

async fn fetch(address: &str, image: &str) -> Result<(String, Page), ConfigError> {
    let runner = Server { kind: "runner", address: address.to_owned() };
    let path = format!("/config?image={}", utf8_percent_encode(image, NON_ALPHANUMERIC));
    let answer = admin::fetch(&runner, &path).await?;
    let refused = || {
        let page: Value = serde_json::from_slice(&answer.body).ok()?;
        page.get("error")?.as_str().map(str::to_owned)
    };
    match (answer.status == StatusCode::BAD_REQUEST).then(refused).flatten() {
        Some(reason) => Err(ConfigError::Refused(reason)),
        None => Ok(answer.page(&runner, "/config")?),
    }
}

fn tables(page: &Page) -> String {
    let rows = page.settings.iter().map(|row| vec![row.setting.clone(), shown(&row.value), row.from.clone()]);
    let mut text = format!("{}\n\n", page.image);
    text.push_str(&table(&["SETTING", "VALUE", "FROM"], rows.collect()));
    for (index, note) in page.notes.iter().enumerate() {
        text.push_str(if index == 0 { "\nNOTES\n" } else { "" });
        text.push_str(note);
        text.push('\n');
    }
    text
}

/// On one line.
fn shown(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match text.char_indices().nth(MAX_VALUE) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use porch_fn_settings::Row;
    use serde_json::json;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

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
        assert_eq!(shown(&json!("\u{e4}".repeat(101))), format!("{}...", "\u{e4}".repeat(100)));
    }

    /// Answers one request with `status` and `body`; the address, and the request's first line.
    async fn server(status: &'static str, body: String) -> (String, tokio::task::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let task = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(stream.read_u8().await.unwrap());
            }
            let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", body.len());
            stream.write_all((head + &body).as_bytes()).await.unwrap();
            String::from_utf8(request).unwrap().lines().next().unwrap().to_owned()
        });
        (address, task)
    }

    #[tokio::test]
    async fn the_image_is_asked_for_as_it_was_written() {
        let (address, task) = server("200 OK", serde_json::to_string(&page()).unwrap()).await;
        let (_, read) = fetch(&address, "localhost:5000/f:v1@sha256:a&b=ä").await.unwrap();
        assert_eq!(read, page());
        let line = "GET /config?image=localhost%3A5000%2Ff%3Av1%40sha256%3Aa%26b%3D%C3%A4 HTTP/1.1";
        assert_eq!(task.await.unwrap(), line);
    }

    #[tokio::test]
    async fn refusals_and_other_servers_are_told_apart() {
        let (address, _task) = server("400 Bad Request", json!({"error": "not an image"}).to_string()).await;
        assert_eq!(fetch(&address, "X").await.unwrap_err().to_string(), "not an image");
        for (status, body, reason) in [
            ("404 Not Found", "pages: /shards", "/config is 404 Not Found"),
            ("400 Bad Request", "what?", "/config is 400 Bad Request"),
        ] {
            let (address, _task) = server(status, body.to_owned()).await;
            let expected = format!("{address} is not a runner's admin port ({reason})");
            assert_eq!(fetch(&address, "X").await.unwrap_err().to_string(), expected);
        }
        let closed = {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            listener.local_addr().unwrap().to_string()
        };
        let error = fetch(&closed, "X").await.unwrap_err().to_string();
        assert!(error.starts_with(&format!("cannot reach the runner's admin port at {closed}: ")), "{error}");
    }
}

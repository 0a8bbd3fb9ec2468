//! `porch-fn shards`: the router's /shards page as a table.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use porch_fn_router::shards::Shards;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Where a router's admin port is unless told otherwise.
pub(crate) const DEFAULT_ADDRESS: &str = "127.0.0.1:9464";
/// How long the router may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Largest page that is read, in bytes.
const MAX_PAGE: usize = 64 * 1024 * 1024;
/// Images shown in the table.
const MAX_IMAGES: usize = 40;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The router's admin address
    #[arg(long, default_value = DEFAULT_ADDRESS)]
    address: String,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// Tables for people
    Table,
    /// The page as the router gives it
    Json,
}

#[derive(Debug, thiserror::Error)]
enum ShardsError {
    #[error("cannot reach the router's admin port at {0}: {1}; see --address")]
    Connect(String, std::io::Error),
    #[error("no answer from {0} in 10 s; see --address")]
    Timeout(String),
    #[error("{0} is not a router's admin port ({1}); see --address")]
    NotARouter(String, String),
}

pub(crate) async fn run(args: Args) -> ExitCode {
    let fetched = timeout(TIMEOUT, fetch(&args.address)).await;
    match fetched.unwrap_or_else(|_| Err(ShardsError::Timeout(args.address.clone()))) {
        Ok((text, page)) => {
            match args.output {
                Output::Json => println!("{text}"),
                Output::Table => print!("{}", tables(&page)),
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("porch-fn shards: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn fetch(address: &str) -> Result<(String, Shards), ShardsError> {
    let wrong = |reason: String| ShardsError::NotARouter(address.to_owned(), reason);
    let stream =
        TcpStream::connect(address).await.map_err(|error| ShardsError::Connect(address.to_owned(), error))?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| wrong(error.to_string()))?;
    let request = Request::get("/shards")
        .header(header::HOST, address)
        .body(Empty::<bytes::Bytes>::new())
        .map_err(|error| wrong(error.to_string()))?;
    let answer = async {
        let response = sender.send_request(request).await.map_err(|error| wrong(error.to_string()))?;
        if response.status() != StatusCode::OK {
            return Err(wrong(format!("/shards is {}", response.status())));
        }
        let body = Limited::new(response.into_body(), MAX_PAGE).collect().await;
        Ok(body.map_err(|error| wrong(error.to_string()))?.to_bytes())
    };
    // The connection makes progress only while it is polled.
    let body = tokio::select! {
        body = answer => body?,
        _ = connection => return Err(wrong("the connection ended".to_owned())),
    };
    let page = serde_json::from_slice(&body).map_err(|error| wrong(error.to_string()))?;
    Ok((String::from_utf8_lossy(&body).into_owned(), page))
}

/// The table of runners before any was asked for anything.
pub(crate) fn starting_table(runners: impl Iterator<Item = SocketAddr>) -> String {
    let rows = runners.map(|address| vec![address.to_string(), "up".to_owned()]).collect();
    table(&["RUNNER", "STATE"], rows)
}

fn tables(page: &Shards) -> String {
    let rows = page.shards.iter().map(|shard| {
        vec![
            shard.address.clone(),
            shard.state.clone(),
            shard.owned.to_string(),
            shard.in_flight.to_string(),
            shard.calls.to_string(),
            shard.failures.to_string(),
        ]
    });
    let mut text = table(&["RUNNER", "STATE", "IMAGES", "IN FLIGHT", "CALLS", "FAILED"], rows.collect());
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

/// Columns as kubectl prints them: left-aligned, three spaces apart.
fn table(header: &[&str], rows: Vec<Vec<String>>) -> String {
    let header: Vec<String> = header.iter().map(|&title| title.to_owned()).collect();
    let lines: Vec<_> = std::iter::once(header).chain(rows).collect();
    let width = |column: usize| lines.iter().filter_map(|line| line.get(column)).map(String::len).max();
    let mut text = String::new();
    for line in &lines {
        let mut row = String::new();
        for (column, cell) in line.iter().enumerate() {
            let _ = write!(row, "{cell:<width$}   ", width = width(column).unwrap_or_default());
        }
        text.push_str(row.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = vec![
            vec!["10.0.0.1:9445".to_owned(), "well".to_owned()],
            vec!["a:1".to_owned(), "draining".to_owned()],
        ];
        assert_eq!(
            table(&["RUNNER", "STATE"], rows),
            "RUNNER          STATE\n10.0.0.1:9445   well\na:1             draining\n"
        );
    }
}

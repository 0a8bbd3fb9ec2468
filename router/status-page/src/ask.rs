//! Requests a report from each runner and each other router, from several in parallel.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use porch_fn_admin::client::get;
use porch_fn_grpc::code_name;
use porch_fn_grpc_client::conn::{Channel, Connection};
use porch_fn_proto::shard::shard_client::ShardClient;
use porch_fn_proto::shard::{DescribeRequest, DescribeResponse};
use tokio::time::{Instant, timeout, timeout_at};
use tonic::{Code, Status};

use crate::answers::Answers;
use crate::peers::{Answer, MAX_ROUTERS};

/// How long one runner or router may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// How long all requests together may take. Runners that have not answered by then are left out.
const ROUND_TIMEOUT: Duration = Duration::from_secs(4);
/// Number of runners, and of routers, that are asked at once.
const AT_ONCE: usize = 16;
/// Largest answer in bytes. The images of an answer have up to 1 MiB; the rest of it is smaller.
const MAX_ANSWER: usize = 2 * 1024 * 1024;
/// Largest page of a router in bytes.
const MAX_PAGE: usize = 8 * 1024 * 1024;

/// Returns the answers of the runners that answer in time.
pub(crate) async fn ask(runners: Vec<(Arc<str>, Arc<Connection>)>) -> Answers {
    let until = Instant::now() + ROUND_TIMEOUT;
    let asked = runners.into_iter().map(async |(runner, connection)| {
        let answer = timeout(ANSWER_TIMEOUT, describe(&connection)).await;
        (runner, answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer in time"))))
    });
    let mut asked = stream::iter(asked).buffer_unordered(AT_ONCE);
    let mut answers = Answers::default();
    while let Ok(Some((runner, answer))) = timeout_at(until, asked.next()).await {
        match answer {
            Ok(answer) => answers.add(&runner, answer),
            Err(status) => {
                let (code, error) = (code_name(status.code()), status.message());
                tracing::debug!(%runner, code, error, "a runner sent no report");
            }
        }
    }
    answers
}

/// Returns the own data of each router at these addresses of admin ports.
pub(crate) async fn ask_routers(addresses: Vec<String>) -> Vec<(String, Answer)> {
    let asked = addresses.into_iter().take(MAX_ROUTERS).map(async |address| {
        let page = get(&address, "/status.json?own", ANSWER_TIMEOUT, MAX_PAGE).await;
        let answer: Answer = page.map_err(|error| error.to_string()).and_then(|page| {
            serde_json::from_slice(&page).map_err(|error| format!("its page is not a router's: {error}"))
        });
        if let Err(error) = &answer {
            tracing::debug!(router = %address, error, "a router sent no report");
        }
        (address, answer)
    });
    stream::iter(asked).buffered(AT_ONCE).collect().await
}

/// Sends the request on the connection that calls use. Returns `None` for an older runner without
/// this method. The outcome does not change the runner's health state.
async fn describe(connection: &Connection) -> Result<Option<DescribeResponse>, Status> {
    let sender = connection.sender().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let client = ShardClient::with_origin(Channel(sender), connection.origin().clone());
    match client.max_decoding_message_size(MAX_ANSWER).describe(DescribeRequest {}).await {
        Ok(response) => Ok(Some(response.into_inner())),
        Err(status) if status.code() == Code::Unimplemented => Ok(None),
        Err(status) => Err(status),
    }
}

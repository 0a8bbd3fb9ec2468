//! Asks one runner about one image.

use std::time::Duration;

use porch_fn_grpc::code_name;
use porch_fn_grpc_client::conn::{Channel, Connection};
use porch_fn_proto::shard::shard_client::ShardClient;
use porch_fn_proto::shard::{DescribeImageRequest, DescribeImageResponse};
use tokio::time::timeout;
use tonic::{Code, Response, Status};

use crate::answers::bounded;

/// How long the runner may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Largest answer in bytes. The configuration comes from objects of the API server, which allows
/// 1.5 MiB each.
const MAX_ANSWER: usize = 4 * 1024 * 1024;

/// Sends the request on the connection that calls use. The outcome does not change the runner's
/// health state. The error says why there is no report.
pub(super) async fn describe_image(
    runner: &str,
    connection: &Connection,
    image: &str,
) -> Result<DescribeImageResponse, String> {
    let answer = async {
        let sender = connection.sender().await;
        let sender = sender.map_err(|error| Status::unavailable(error.to_string()))?;
        let client = ShardClient::with_origin(Channel(sender), connection.origin().clone());
        let request = DescribeImageRequest { image: image.to_owned() };
        client.max_decoding_message_size(MAX_ANSWER).describe_image(request).await
    };
    match timeout(ANSWER_TIMEOUT, answer).await {
        Ok(answer) => answer.map(Response::into_inner).map_err(|status| refusal(runner, &status)),
        Err(_) => Err(format!(
            "runner {runner}, the image's owner, did not answer within {}s: check its load and its log, and try again",
            ANSWER_TIMEOUT.as_secs()
        )),
    }
}

fn refusal(runner: &str, status: &Status) -> String {
    let (code, message) = (code_name(status.code()), bounded(status.message()));
    match status.code() {
        Code::Unimplemented => format!(
            "runner {runner}, the image's owner, is older than 0.2.0 and cannot report about images: upgrade it, or \
             ask its own admin port for /config"
        ),
        // There is no connection, or it was lost.
        Code::Unavailable => format!(
            "the router cannot reach runner {runner}, the image's owner ({message}): check that its pod runs"
        ),
        _ => format!(
            "runner {runner}, the image's owner, refused the request ({code}: {message}): check its log, and try again"
        ),
    }
}

#[cfg(test)]
mod tests {
    use porch_fn_grpc_client::conn::Options;

    use super::*;

    #[test]
    fn each_refusal_says_what_to_do() {
        for (code, expected) in [
            (Code::Unimplemented, "is older than 0.2.0"),
            (Code::Unavailable, "the image's owner (text): check that its pod runs"),
            (Code::ResourceExhausted, "refused the request (RESOURCE_EXHAUSTED: text)"),
        ] {
            let error = refusal("a:1", &Status::new(code, "text"));
            assert!(error.contains("runner a:1") && error.contains(expected), "{error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_runner_that_does_not_answer_is_given_up() {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let options = Options {
            connect_timeout: ANSWER_TIMEOUT * 2,
            ping: None,
            user_timeout: ANSWER_TIMEOUT,
            keepalive: None,
        };
        let address = silent.local_addr().unwrap().to_string();
        let connection = Connection::new(&*address, options, None).unwrap();
        let slow = describe_image("a:1", &connection, "f").await.unwrap_err();
        assert!(slow.contains("did not answer within 1s"), "{slow}");
    }
}

//! Asks one runner about one image.

use std::time::Duration;

use porch_fn_grpc::code_name;
use porch_fn_grpc_client::conn::{Channel, Connection};
use porch_fn_proto::shard::shard_client::ShardClient;
use porch_fn_proto::shard::{DescribeImageRequest, DescribeImageResponse};
use tokio::time::timeout;
use tonic::{Code, Status};

use crate::answers::bounded;

/// How long the runner may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Largest answer in bytes. The configuration comes from objects of the API server, which allows
/// 1.5 MiB each.
const MAX_ANSWER: usize = 4 * 1024 * 1024;

/// Why there is no report about an image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum AskError {
    #[error("there is no runner: check the router's --runners, and that the runners are ready")]
    NoRunner,
    #[error(
        "runner {runner}, the image's owner, is {state} and cannot be asked: check that its pod runs and that \
         the router reaches it; other runners serve the image's calls"
    )]
    Unavailable { runner: String, state: String },
    #[error("the router already asks for {limit} images: try again")]
    TooMany { limit: usize },
    #[error("the router cannot reach runner {runner}, the image's owner ({reason}): check that its pod runs")]
    Connect { runner: String, reason: String },
    #[error(
        "runner {runner}, the image's owner, did not answer within {}s: check its load and its log, and try again",
        ANSWER_TIMEOUT.as_secs()
    )]
    NoAnswer { runner: String },
    #[error(
        "runner {runner}, the image's owner, is older than 0.2.0 and cannot report about images: upgrade it, or \
         ask its own admin port for /config"
    )]
    Older { runner: String },
    #[error(
        "runner {runner}, the image's owner, refused the request ({code}: {message}): check its log, and try again"
    )]
    Refused { runner: String, code: &'static str, message: String },
}

/// Sends the request on the connection that calls use. The outcome does not change the runner's
/// health state.
pub(super) async fn describe_image(
    runner: &str,
    connection: &Connection,
    image: &str,
) -> Result<DescribeImageResponse, AskError> {
    let runner = || runner.to_owned();
    let answer = async {
        let sender = connection.sender().await;
        let sender =
            sender.map_err(|error| AskError::Connect { runner: runner(), reason: error.to_string() })?;
        let client = ShardClient::with_origin(Channel(sender), connection.origin().clone());
        let request = DescribeImageRequest { image: image.to_owned() };
        let answer = client.max_decoding_message_size(MAX_ANSWER).describe_image(request).await;
        answer.map_err(|status| refusal(runner(), &status))
    };
    let answer = timeout(ANSWER_TIMEOUT, answer).await;
    Ok(answer.map_err(|_| AskError::NoAnswer { runner: runner() })??.into_inner())
}

fn refusal(runner: String, status: &Status) -> AskError {
    let (code, message) = (code_name(status.code()), bounded(status.message()));
    match status.code() {
        Code::Unimplemented => AskError::Older { runner },
        // The connection was lost.
        Code::Unavailable => AskError::Connect { runner, reason: message },
        _ => AskError::Refused { runner, code, message },
    }
}

#[cfg(test)]
mod tests {
    use porch_fn_grpc_client::conn::Options;

    use super::*;

    #[test]
    fn each_refusal_says_what_to_do() {
        let (a, message) = (|| "a:1".to_owned(), || "text".to_owned());
        for (code, expected) in [
            (Code::Unimplemented, AskError::Older { runner: a() }),
            (Code::Unavailable, AskError::Connect { runner: a(), reason: message() }),
            (
                Code::ResourceExhausted,
                AskError::Refused { runner: a(), code: "RESOURCE_EXHAUSTED", message: message() },
            ),
        ] {
            let error = refusal(a(), &Status::new(code, "text"));
            assert!(error.to_string().contains("runner a:1"), "{error}");
            assert_eq!(error, expected);
        }
        let older = AskError::Older { runner: a() }.to_string();
        assert!(older.contains("is older than 0.2.0"), "{older}");
        let slow = AskError::NoAnswer { runner: a() }.to_string();
        assert!(slow.contains("did not answer within 1s"), "{slow}");
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
        let slow = describe_image("a:1", &connection, "f").await.unwrap_err().to_string();
        assert!(slow.contains("did not answer within 1s"), "{slow}");
    }
}

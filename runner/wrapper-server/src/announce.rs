//! Reports to the runner that created this pod that the wrapper-server serves (the runner's
//! `--pod-announce`). If that fails, the runner uses the pod as soon as the API server reports its
//! address.

use std::ffi::OsString;
use std::io;
use std::time::Duration;

use porch_fn_proto::shard::AnnounceRequest;
use prost::Message as _;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::client::call;

/// The variables of a new pod: the runner's address, a one-time token, and the pod's address.
const VARIABLES: [&str; 3] = ["PORCH_FN_ANNOUNCE_TO", "PORCH_FN_ANNOUNCE_TOKEN", "PORCH_FN_ANNOUNCE_ADDRESS"];
const PATH: &str = "/porch_fn.v1.Shard/Announce";
/// After these attempts, the API server has reported the address anyway.
const ATTEMPTS: u32 = 3;
const ATTEMPT_TIMEOUT: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(50);

/// What the pod announces, and to whom.
pub(crate) struct Announcement {
    runner: String,
    message: AnnounceRequest,
}

impl Announcement {
    /// Reads the variables; `None` unless the runner has set all of them.
    pub(crate) fn of(variable: impl Fn(&str) -> Option<OsString>) -> Option<Self> {
        let [runner, token, address] = VARIABLES.map(|name| variable(name)?.into_string().ok());
        Some(Self { runner: runner?, message: AnnounceRequest { token: token?, address: address? } })
    }

    pub(crate) async fn send(self) {
        for attempt in 1..=ATTEMPTS {
            let message = self.message.encode_to_vec();
            match timeout(ATTEMPT_TIMEOUT, announce(&self.runner, message)).await {
                Ok(Ok(true)) => return tracing::debug!("announced this pod to its runner"),
                Ok(Ok(false)) => return tracing::debug!("the runner does not expect this announcement"),
                Ok(Err(error)) => tracing::debug!(attempt, %error, "cannot announce this pod to its runner"),
                Err(_) => tracing::debug!(attempt, "the runner does not answer the announcement of this pod"),
            }
            sleep(PAUSE).await;
        }
    }
}

/// The environment of functions: all variables except those of the announcement.
pub(crate) fn without_announcement(
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> Vec<(OsString, OsString)> {
    variables.filter(|(name, _)| !VARIABLES.iter().any(|secret| name == secret)).collect()
}

async fn announce(runner: &str, message: Vec<u8>) -> io::Result<bool> {
    let stream = TcpStream::connect(runner).await?;
    let answer = call(stream, PATH, message).await.map_err(io::Error::other)?;
    Ok(answer.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_do_not_see_the_token() {
        let all = [("PATH", "/bin"), (VARIABLES[0], "r:1"), (VARIABLES[1], "t"), (VARIABLES[2], "10.0.0.9")];
        let all = all.map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let variable = |wanted: &str| {
            let found = all.iter().find(|(name, _)| name == wanted);
            found.map(|(_, value)| value.clone())
        };
        let announcement = Announcement::of(variable).unwrap();
        let expected = AnnounceRequest { token: "t".to_owned(), address: "10.0.0.9".to_owned() };
        assert_eq!((announcement.runner, announcement.message), ("r:1".to_owned(), expected));
        assert!(Announcement::of(|name| variable(name).filter(|_| name != VARIABLES[1])).is_none());
        assert_eq!(without_announcement(all.into_iter()), [("PATH".into(), "/bin".into())]);
    }
}

//! One case of the matrix: what a client sends on its own connection, and what must come of it. The
//! server must answer, other calls on the connection go on, and a caller beside notices nothing.

use std::time::Duration;
use tokio::time::Instant;

use porch_fn_tests::process::Usage;
use porch_fn_tests::raw::{
    CANCEL, DEFAULT_WINDOW, Habits, Seen, Wire, call_of, data, headers, hpack::encode, message, reset,
    window_update,
};

use super::target::{Method, Target};

/// The stream of a case, and that of the call after it.
pub(super) const STREAM: u32 = 1;
const NEXT: u32 = 101;

/// How long an answer may take, with the limits of the servers in mind.
const PATIENCE: Duration = Duration::from_secs(8);
/// The most memory above that of an idle server, in KiB.
pub(super) const MORE_MEMORY: u64 = 64 * 1024;
/// For the caller beside.
pub(super) const P99: Duration = Duration::from_millis(300);
/// A case beside which the caller waits too long is repeated, because other programs use the machine,
/// too. A server that is the cause is slow each time.
const TRIES: usize = 3;

#[derive(Debug, Clone)]
pub(super) struct Case {
    pub(super) axis: &'static str,
    pub(super) name: String,
    /// The client's settings.
    pub(super) own: Vec<(u16, u32)>,
    pub(super) habits: Habits,
    pub(super) steps: Vec<Step>,
    pub(super) want: Want,
}

#[derive(Debug, Clone)]
pub(super) enum Step {
    /// Sends bytes.
    Send(Vec<u8>),
    /// Waits until the server has read everything.
    Settle,
    /// Waits for the headers of the answer.
    Head,
}

/// What must come of [`STREAM`].
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Want {
    /// What comes of an ordinary call.
    Same,
    /// One of these codes.
    Code(&'static [u32]),
    /// One of these codes, or what comes of an ordinary call.
    CodeOrSame(&'static [u32]),
    /// Any code but OK, or a reset.
    Refusal,
    /// Anything, as other calls of the connection go on.
    Anything,
    /// Anything, and the connection may end.
    AnythingOrEnd,
    /// The connection ends.
    End,
    /// The call is refused, or the connection ends.
    RefusalOrEnd,
}

/// What came of a stream.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Got {
    Code(u32),
    /// No status of gRPC.
    Http(String),
    Reset(u32),
    /// An answer that does not end.
    Watching,
    /// The connection ended.
    End,
    Nothing,
}

impl Case {
    pub(super) fn new(axis: &'static str, name: impl Into<String>, steps: Vec<Step>, want: Want) -> Self {
        Self { axis, name: name.into(), own: Vec::new(), habits: Habits::default(), steps, want }
    }

    #[must_use]
    pub(super) fn with_window(mut self, window: u32) -> Self {
        self.own = vec![(porch_fn_tests::raw::INITIAL_WINDOW_SIZE, window)];
        self
    }

    /// Runs the case. The error says what was wrong.
    pub(super) async fn run(&self, target: &Target, method: &Method, plain: &Got) -> Result<(), String> {
        let mut slow = String::new();
        for _ in 0..TRIES {
            Usage::reset_peak(target.pid());
            let began = Instant::now();
            self.once(target, method, plain).await?;
            let (met, _) = target.since(began).await?;
            if met.p99 <= P99 {
                return Ok(());
            }
            slow = format!("p99 beside {:?} of {} calls", met.p99, met.calls);
        }
        Err(slow)
    }

    async fn once(&self, target: &Target, method: &Method, plain: &Got) -> Result<(), String> {
        let wire = Wire::with(target.address, &self.own, self.habits).await;
        let sent = |step: &Step| if let Step::Send(bytes) = step { bytes.len() } else { 0 };
        if self.steps.iter().map(sent).sum::<usize>() >= DEFAULT_WINDOW as usize {
            // The server's windows hold only after its settings.
            wire.settle(PATIENCE).await;
        }
        for step in &self.steps {
            match step {
                Step::Send(bytes) => _ = wire.send(bytes.clone()).await,
                Step::Settle => _ = wire.settle(PATIENCE).await,
                Step::Head => {
                    let has_head = |seen: &Seen| {
                        seen.streams.get(&STREAM).is_some_and(|stream| !stream.lists.is_empty())
                    };
                    if wire.wait(PATIENCE, |seen| has_head(seen).then_some(())).await.is_none() {
                        return Err("no headers of an answer".into());
                    }
                }
            }
        }
        let got = match self.want {
            Want::Anything | Want::AnythingOrEnd => Got::Nothing,
            Want::End => got_end(&wire).await,
            _ => got(&wire, STREAM, method).await,
        };
        let is_right = match (&self.want, &got) {
            (Want::Anything | Want::AnythingOrEnd, _) | (Want::End | Want::RefusalOrEnd, Got::End) => true,
            (Want::Same, got) => got == plain,
            (Want::Code(codes), Got::Code(code)) => codes.contains(code),
            (Want::CodeOrSame(codes), got) => {
                got == plain || matches!(got, Got::Code(code) if codes.contains(code))
            }
            (Want::Refusal | Want::RefusalOrEnd, got) => {
                matches!(got, Got::Code(1..) | Got::Reset(_) | Got::Http(_))
            }
            _ => false,
        };
        if !is_right {
            return Err(format!("{got:?}, and {:?} was expected; an ordinary call: {plain:?}", self.want));
        }
        if got != Got::End && self.want != Want::AnythingOrEnd {
            let next = again(&wire, method).await;
            if next != *plain {
                let ended = wire.look(|seen| format!("{:?}", seen.go_aways));
                return Err(format!("the next call of the connection: {next:?} {ended}"));
            }
        }
        Ok(())
    }
}

/// What comes of an ordinary call.
pub(super) async fn plain(target: &Target, method: &Method) -> Got {
    again(&Wire::open(target.address).await, method).await
}

async fn again(wire: &Wire, method: &Method) -> Got {
    let head = headers(NEXT, &encode(&call_of(&method.path)), false);
    let body = data(NEXT, &message(&method.message), true);
    // The case may have set a small window.
    wire.send([head, body, window_update(NEXT, 1 << 20)].concat()).await;
    let got = got(wire, NEXT, method).await;
    if got == Got::Watching {
        wire.send(reset(NEXT, CANCEL)).await;
    }
    got
}

async fn got_end(wire: &Wire) -> Got {
    if wire.wait_closed(PATIENCE).await { Got::End } else { Got::Nothing }
}

async fn got(wire: &Wire, stream: u32, method: &Method) -> Got {
    let is_stream = method.is_stream();
    let found = wire.wait(PATIENCE, |seen| {
        let stream = seen.streams.get(&stream);
        match stream {
            Some(stream) if stream.is_over() => Some(match (stream.code(), stream.reset) {
                (Some(code), _) => Got::Code(code),
                (None, Some(code)) => Got::Reset(code),
                (None, None) => Got::Http(stream.field(":status").unwrap_or_default().to_owned()),
            }),
            Some(stream) if is_stream && stream.bytes > 0 => Some(Got::Watching),
            _ => seen.is_closed.then_some(Got::End),
        }
    });
    found.await.unwrap_or(Got::Nothing)
}

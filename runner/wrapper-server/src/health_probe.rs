//! As much of `grpc-health-probe` as the probes of Porch's pod templates need: one gRPC health check, told by the exit
//! code. Images have no shell and no tools; they carry this binary under that name as well.
//!
//! Every function pod gets a copy of the binary, and an HTTP/2 client would make it 6 % larger. A probe sends one small
//! request on a connection of its own and needs no header of the answer: a message means that all went well. That much
//! of HTTP/2 is written out here. Names are not looked up, since a probe asks its own pod.

#![allow(clippy::disallowed_methods, reason = "it runs without tokio, whose clock tests can pause")]

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::{Duration, Instant};

use porch_fn_service::flags::{DurationError, parse_duration};

/// The name under which the binary is the probe.
pub(crate) const NAME: &str = "grpc-health-probe";

const USAGE: &str = "usage: grpc-health-probe -addr IP:PORT|localhost:PORT [-service NAME] [-connect-timeout 1s] \
                     [-rpc-timeout 1s]; exit codes: 0 SERVING, 1 wrong flags, 2 no connection, 3 no answer, 4 not SERVING";

/// HTTP/2 (RFC 9113, section 6): what frames are.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Nobody may send us longer ones, and we send none.
const LONGEST_FRAME: usize = 16_384;
/// The only stream.
const STREAM: u32 = 1;
/// Before a message: not compressed, and four bytes of length.
const PREFIX_LEN: usize = 5;
/// An answer is a few bytes, the name of a service as well.
const LONGEST_MESSAGE: usize = 100;

#[derive(Debug)]
struct Flags {
    addr: Target,
    service: String,
    connect_timeout: Duration,
    rpc_timeout: Duration,
}

/// Where a server may listen, and the name it is called by.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Target {
    name: String,
    addresses: Vec<SocketAddr>,
}

/// A connection and when what is read from it has to be there.
struct Connection {
    stream: TcpStream,
    deadline: Instant,
}

struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

#[derive(Debug, thiserror::Error)]
#[error("-addr {0:?} is neither IP:PORT (IPv6 in brackets) nor localhost:PORT")]
struct TargetError(String);

#[derive(Debug, thiserror::Error)]
enum UsageError {
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error("-addr must be set")]
    NoTarget,
    #[error("-service is longer than {LONGEST_MESSAGE} bytes")]
    LongService,
    #[error("{0:?} needs a value")]
    NoValue(String),
    #[error("{0:?} is not known here")]
    Unknown(String),
    #[error("-{0}: {1}")]
    Duration(&'static str, #[source] DurationError),
}

/// The exit codes are those of the tool whose name this is.
#[derive(Debug, thiserror::Error)]
enum ProbeError {
    #[error("no connection: {0}")]
    Connect(#[source] io::Error),
    #[error("no answer within -rpc-timeout")]
    Timeout,
    #[error("the call broke off: {0}")]
    Call(#[source] io::Error),
    #[error("the server does not speak HTTP/2, or refuses the connection")]
    NoHttp2,
    #[error(
        "the server refuses the call: it does not know that service, or implements no gRPC health (grpc.health.v1.Health)"
    )]
    Refused,
    #[error("the answer is none of gRPC health")]
    Answer,
    #[error("the server is not healthy: {0}")]
    Unhealthy(&'static str),
}

/// The whole process, from the arguments after its name to its exit code.
pub(crate) fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let flags = match Flags::parse(args) {
        Ok(flags) => flags,
        Err(problem) => {
            eprintln!("{NAME}: {problem}; {USAGE}");
            return ExitCode::from(1);
        }
    };
    match check(&flags) {
        Ok(()) => {
            println!("status: SERVING");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{NAME}: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

fn check(flags: &Flags) -> Result<(), ProbeError> {
    let stream = flags.addr.connect(flags.connect_timeout).map_err(ProbeError::Connect)?;
    let mut connection = Connection { stream, deadline: Instant::now() + flags.rpc_timeout };
    connection.send(&request(&flags.addr.name, &flags.service))?;
    let answer = connection.answer()?;
    match answer.get(PREFIX_LEN..) {
        // HealthCheckResponse has one field, of number 1, which is left out when it is 0.
        Some([0x08, 1]) => Ok(()),
        Some([0x08, 2]) => Err(ProbeError::Unhealthy("NOT_SERVING")),
        Some([0x08, 3]) => Err(ProbeError::Unhealthy("SERVICE_UNKNOWN")),
        Some([] | [0x08, 0]) => Err(ProbeError::Unhealthy("UNKNOWN")),
        _ if answer.is_empty() => Err(ProbeError::Refused),
        _ => Err(ProbeError::Answer),
    }
}

/// All that is sent of one's own accord.
fn request(authority: &str, service: &str) -> Vec<u8> {
    // HPACK (RFC 7541): two whole entries of the static table, then literals that are not to be remembered, their names
    // by number where the table has them.
    let mut headers = vec![0x83, 0x86]; // :method POST, :scheme http
    headers.push(4); // :path
    literal(&mut headers, "/grpc.health.v1.Health/Check");
    headers.push(1); // :authority
    literal(&mut headers, authority);
    headers.extend([0x0f, 31 - 15]); // content-type
    literal(&mut headers, "application/grpc");
    headers.push(0);
    literal(&mut headers, "te");
    literal(&mut headers, "trailers");

    let mut message = Vec::new();
    if !service.is_empty() {
        message.push(0x0a); // HealthCheckRequest.service
        literal(&mut message, service);
    }
    let mut framed = vec![0];
    framed.extend((message.len() as u32).to_be_bytes());
    framed.extend(message);

    let frames = [
        frame(SETTINGS, 0, 0, &[]),
        frame(HEADERS, END_HEADERS, STREAM, &headers),
        frame(DATA, END_STREAM, STREAM, &framed),
    ];
    [PREFACE, &frames.concat()].concat()
}

/// A text behind its length, which both formats write in one byte up to 126. Ours are shorter.
fn literal(out: &mut Vec<u8>, text: &str) {
    debug_assert!(text.len() <= LONGEST_MESSAGE);
    out.push(text.len() as u8);
    out.extend(text.as_bytes());
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, length @ ..] = (payload.len() as u32).to_be_bytes();
    [&length[..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

// === impl Connection ===

impl Connection {
    fn send(&mut self, bytes: &[u8]) -> Result<(), ProbeError> {
        self.stream.set_write_timeout(Some(self.remains()?)).map_err(ProbeError::Call)?;
        self.stream.write_all(bytes).map_err(ProbeError::of_call)
    }

    /// What the body of the answer holds; nothing when the call was refused.
    fn answer(&mut self) -> Result<Vec<u8>, ProbeError> {
        let mut body = Vec::new();
        loop {
            let Frame { kind, flags, stream, payload } = self.frame()?;
            match (kind, stream) {
                (DATA, STREAM) => body.extend(unpadded(flags, &payload)?),
                (RST_STREAM, STREAM) | (GOAWAY, _) => return Err(ProbeError::Refused),
                (SETTINGS, _) if flags & ACK == 0 => self.send(&frame(SETTINGS, ACK, 0, &[]))?,
                (PING, _) if flags & ACK == 0 => self.send(&frame(PING, ACK, 0, &payload))?,
                _ => {}
            }
            if body.len() > LONGEST_MESSAGE {
                return Err(ProbeError::Answer);
            }
            if matches!(kind, DATA | HEADERS) && stream == STREAM && flags & END_STREAM != 0 {
                return Ok(body);
            }
        }
    }

    fn frame(&mut self) -> Result<Frame, ProbeError> {
        let [a, b, c, kind, flags, stream @ ..] = self.read()?;
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        if length > LONGEST_FRAME {
            // What another protocol says, read as a length.
            return Err(ProbeError::NoHttp2);
        }
        let mut payload = vec![0; length];
        self.fill(&mut payload)?;
        Ok(Frame { kind, flags, stream: u32::from_be_bytes(stream), payload })
    }

    /// The head of a frame.
    fn read(&mut self) -> Result<[u8; 9], ProbeError> {
        let mut head = [0; 9];
        self.fill(&mut head)?;
        Ok(head)
    }

    fn fill(&mut self, mut buffer: &mut [u8]) -> Result<(), ProbeError> {
        while !buffer.is_empty() {
            self.stream.set_read_timeout(Some(self.remains()?)).map_err(ProbeError::Call)?;
            match self.stream.read(buffer) {
                Ok(0) => return Err(ProbeError::Call(io::ErrorKind::UnexpectedEof.into())),
                Ok(read) => buffer = &mut buffer[read..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(ProbeError::of_call(error)),
            }
        }
        Ok(())
    }

    fn remains(&self) -> Result<Duration, ProbeError> {
        let remains = self.deadline.saturating_duration_since(Instant::now());
        if remains.is_zero() { Err(ProbeError::Timeout) } else { Ok(remains) }
    }
}

fn unpadded(flags: u8, payload: &[u8]) -> Result<&[u8], ProbeError> {
    if flags & PADDED == 0 {
        return Ok(payload);
    }
    let (&padding, rest) = payload.split_first().ok_or(ProbeError::Answer)?;
    rest.len().checked_sub(padding.into()).and_then(|end| rest.get(..end)).ok_or(ProbeError::Answer)
}

// === impl Flags ===

impl Flags {
    /// As Go's `flag` package does, with one dash or two. The command line's own parser would make the binary larger
    /// than these four flags are worth.
    fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Self, UsageError> {
        let (mut addr, mut service) = (None, String::new());
        let (mut connect_timeout, mut rpc_timeout) = (Duration::from_secs(1), Duration::from_secs(1));
        let mut args = args.into_iter().map(|arg| arg.to_string_lossy().into_owned());
        while let Some(arg) = args.next() {
            let flag = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-')).unwrap_or_default();
            let (name, value) =
                flag.split_once('=').map_or((flag, None), |(name, value)| (name, Some(value.to_owned())));
            let mut value =
                || value.clone().or_else(|| args.next()).ok_or_else(|| UsageError::NoValue(arg.clone()));
            match name {
                "addr" => addr = Some(value()?.parse()?),
                "service" => service = value()?,
                "connect-timeout" => connect_timeout = duration("connect-timeout", &value()?)?,
                "rpc-timeout" => rpc_timeout = duration("rpc-timeout", &value()?)?,
                // Tells more of what this tells anyway.
                "v" => {}
                _ => return Err(UsageError::Unknown(arg)),
            }
        }
        if service.len() > LONGEST_MESSAGE {
            return Err(UsageError::LongService);
        }
        Ok(Self { addr: addr.ok_or(UsageError::NoTarget)?, service, connect_timeout, rpc_timeout })
    }
}

fn duration(flag: &'static str, text: &str) -> Result<Duration, UsageError> {
    parse_duration(text).map_err(|error| UsageError::Duration(flag, error))
}

// === impl Target ===

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        let error = || TargetError(text.to_owned());
        if let Ok(address) = text.parse() {
            return Ok(Self { name: text.to_owned(), addresses: vec![address] });
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(error)?;
        let port: u16 = port.parse().map_err(|_| error())?;
        // Go dials this machine when the host is left out.
        if !matches!(host, "localhost" | "") {
            return Err(error());
        }
        let local: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        let addresses = local.map(|address| SocketAddr::new(address, port)).into();
        Ok(Self { name: format!("localhost:{port}"), addresses })
    }
}

impl Target {
    /// The first that accepts.
    fn connect(&self, within: Duration) -> io::Result<TcpStream> {
        let deadline = Instant::now() + within;
        let mut last = io::ErrorKind::TimedOut.into();
        for address in &self.addresses {
            let remains = deadline.saturating_duration_since(Instant::now());
            if remains.is_zero() {
                break;
            }
            match TcpStream::connect_timeout(address, remains) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

// === impl ProbeError ===

impl ProbeError {
    fn of_call(error: io::Error) -> Self {
        match error.kind() {
            // A socket's timeout is told as either.
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::Timeout,
            _ => Self::Call(error),
        }
    }

    fn exit_code(&self) -> u8 {
        match self {
            Self::Connect(_) => 2,
            Self::Timeout | Self::Call(_) | Self::NoHttp2 | Self::Refused | Self::Answer => 3,
            Self::Unhealthy(_) => 4,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_addresses_or_this_machine() {
        let addresses = |text: &str| -> Vec<String> {
            text.parse::<Target>().unwrap().addresses.iter().map(ToString::to_string).collect()
        };
        assert_eq!(addresses("10.0.0.1:9445"), ["10.0.0.1:9445"]);
        assert_eq!(addresses("[fd00::1]:9445"), ["[fd00::1]:9445"]);
        assert_eq!(addresses("localhost:9446"), ["127.0.0.1:9446", "[::1]:9446"]);
        assert_eq!(addresses(":9446"), ["127.0.0.1:9446", "[::1]:9446"]);
        for wrong in
            ["", "localhost", "localhost:", "localhost:70000", "example.com:9446", "::1:9446", "10.0.0.1"]
        {
            let error = wrong.parse::<Target>().unwrap_err().to_string();
            assert!(error.contains("IP:PORT") && error.contains("localhost:PORT"), "{wrong}: {error}");
        }
    }
}

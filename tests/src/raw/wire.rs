//! One connection of HTTP/2. What arrives is decoded and kept; what leaves is the test's own bytes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::hpack::{Decoder, encode};
use super::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, Field, GOAWAY, HEADERS, PADDED, PING, PREFACE,
    RST_STREAM, SETTINGS, WITH_PRIORITY, frame, headers, ping, settings, window_update,
};

/// The bytes of a stream that are kept.
const KEPT: usize = 4096;
/// In bytes. The windows under test are those of streams.
const CONNECTION_WINDOW: u32 = 1 << 30;
/// Writes that wait for the connection.
const QUEUE: usize = 4;

/// What the connection does by itself.
#[derive(Debug, Clone, Copy)]
pub struct Habits {
    /// Acknowledges pings.
    pub answers_pings: bool,
    /// Gives the peer as much window for a stream as it has used.
    pub grants: bool,
}

impl Default for Habits {
    fn default() -> Self {
        Self { answers_pings: true, grants: true }
    }
}

#[derive(Debug)]
pub struct Wire {
    seen: watch::Receiver<Seen>,
    out: mpsc::Sender<Vec<u8>>,
    next: AtomicU32,
    _tasks: JoinSet<()>,
}

/// Everything that the peer has sent.
#[derive(Debug, Default)]
pub struct Seen {
    pub streams: BTreeMap<u32, Stream>,
    /// The last stream and the error of each GOAWAY.
    pub go_aways: Vec<(u32, u32)>,
    /// Pings that are no acknowledgements.
    pub pings: Vec<Vec<u8>>,
    /// Acknowledged pings.
    pub pongs: usize,
    pub is_closed: bool,
}

/// One stream, as the peer sent it.
#[derive(Debug, Default, Clone)]
pub struct Stream {
    /// Headers, and then trailers.
    pub lists: Vec<Vec<Field>>,
    /// The number of bytes.
    pub bytes: usize,
    /// The first bytes.
    pub head: Vec<u8>,
    pub has_ended: bool,
    pub reset: Option<u32>,
}

// === impl Wire ===

impl Wire {
    /// A client with HTTP/2's defaults that reads everything.
    pub async fn open(address: SocketAddr) -> Self {
        Self::with(address, &[], Habits::default()).await
    }

    /// A client with these settings.
    pub async fn with(address: SocketAddr, own: &[(u16, u32)], habits: Habits) -> Self {
        let wire = Self::silent(address, habits).await;
        wire.send([PREFACE, &settings(own), &window_update(0, CONNECTION_WINDOW)].concat()).await;
        wire
    }

    /// A client that has sent nothing.
    pub async fn silent(address: SocketAddr, habits: Habits) -> Self {
        let stream = TcpStream::connect(address).await.expect("a listening server");
        Self::over(stream, habits, false)
    }

    /// The server of a connection. It has sent nothing.
    pub fn accepted(stream: TcpStream, habits: Habits) -> Self {
        Self::over(stream, habits, true)
    }

    fn over(stream: TcpStream, habits: Habits, is_server: bool) -> Self {
        let _ = stream.set_nodelay(true);
        let (reader, writer) = stream.into_split();
        let (out, queue) = mpsc::channel(QUEUE);
        let (seen, watched) = watch::channel(Seen::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(write(writer, queue));
        let answers = out.clone();
        tasks.spawn(async move {
            let mut reader = BufReader::new(reader);
            if is_server {
                let _ = reader.read_exact(&mut [0; PREFACE.len()]).await;
            }
            read(&mut reader, habits, &seen, &answers).await;
            seen.send_modify(|seen| seen.is_closed = true);
            // The peer may have closed one direction only.
            seen.closed().await;
        });
        Self { seen: watched, out, next: AtomicU32::new(1), _tasks: tasks }
    }

    /// The number of another stream.
    pub fn stream(&self) -> u32 {
        self.next.fetch_add(2, Ordering::Relaxed)
    }

    /// Sends any bytes. Returns whether the connection took them within a few seconds.
    pub async fn send(&self, bytes: Vec<u8>) -> bool {
        timeout(Duration::from_secs(5), self.out.send(bytes)).await.is_ok_and(|sent| sent.is_ok())
    }

    /// Sends a header list, and returns its stream.
    pub async fn begin(&self, list: &[Field], is_last: bool) -> u32 {
        let stream = self.stream();
        self.send(headers(stream, &encode(list), is_last)).await;
        stream
    }

    /// Waits until the peer has sent what `find` looks for.
    pub async fn wait<T>(&self, within: Duration, mut find: impl FnMut(&Seen) -> Option<T>) -> Option<T> {
        let mut found = None;
        let mut seen = self.seen.clone();
        let waited = timeout(
            within,
            seen.wait_for(|seen| {
                found = find(seen);
                found.is_some() || seen.is_closed
            }),
        );
        let _ = waited.await.map(|seen| seen.map(drop));
        found
    }

    /// Waits until the stream or the connection has ended.
    pub async fn ended(&self, stream: u32, within: Duration) -> Option<Stream> {
        let of = |seen: &Seen| seen.streams.get(&stream).filter(|stream| stream.is_over()).cloned();
        self.wait(within, of).await
    }

    /// Waits until the peer has read everything that was sent. Returns whether it has.
    pub async fn settle(&self, within: Duration) -> bool {
        let pongs = self.look(|seen| seen.pongs);
        self.send(ping()).await;
        self.wait(within, |seen| (seen.pongs > pongs).then_some(())).await.is_some()
    }

    pub async fn wait_closed(&self, within: Duration) -> bool {
        self.wait(within, |seen| seen.is_closed.then_some(())).await.is_some()
    }

    pub fn look<T>(&self, look: impl FnOnce(&Seen) -> T) -> T {
        look(&self.seen.borrow())
    }

    /// Whether the peer has ended the connection, and with this error.
    pub fn has_ended_with(&self, code: u32) -> bool {
        self.look(|seen| seen.go_aways.iter().any(|&(_, error)| error == code))
    }
}

async fn write(mut writer: OwnedWriteHalf, mut queue: mpsc::Receiver<Vec<u8>>) {
    while let Some(bytes) = queue.recv().await {
        if writer.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

/// Reads until the connection ends, or until a frame is malformed.
async fn read(
    reader: &mut BufReader<OwnedReadHalf>,
    habits: Habits,
    seen: &watch::Sender<Seen>,
    out: &mpsc::Sender<Vec<u8>>,
) -> Option<()> {
    let mut decoder = Decoder::default();
    loop {
        let (kind, flags, stream, mut payload) = one(reader).await?;
        match kind {
            HEADERS => {
                let mut is_whole = flags & END_HEADERS != 0;
                payload = unpadded(flags, payload)?;
                if flags & WITH_PRIORITY != 0 {
                    payload = payload.get(5..)?.to_vec();
                }
                while !is_whole {
                    let (kind, flags, _, more) = one(reader).await?;
                    is_whole = kind != CONTINUATION || flags & END_HEADERS != 0;
                    payload.extend(more);
                }
                let list = decoder.decode(&payload)?;
                seen.send_modify(|seen| {
                    let stream = seen.streams.entry(stream).or_default();
                    stream.lists.push(list);
                    stream.has_ended |= flags & END_STREAM != 0;
                });
            }
            DATA => {
                let used = u32::try_from(payload.len()).unwrap_or_default();
                payload = unpadded(flags, payload)?;
                let is_last = flags & END_STREAM != 0;
                seen.send_modify(|seen| {
                    let stream = seen.streams.entry(stream).or_default();
                    stream.bytes += payload.len();
                    let room = KEPT.saturating_sub(stream.head.len()).min(payload.len());
                    stream.head.extend(&payload[..room]);
                    stream.has_ended |= is_last;
                });
                if habits.grants && used > 0 && !is_last {
                    let _ = out.send([window_update(stream, used), window_update(0, used)].concat()).await;
                }
            }
            RST_STREAM => {
                let code = number(&payload)?;
                seen.send_modify(|seen| seen.streams.entry(stream).or_default().reset = Some(code));
            }
            GOAWAY => {
                let (last, code) = (number(&payload)?, number(payload.get(4..)?)?);
                seen.send_modify(|seen| seen.go_aways.push((last, code)));
            }
            PING if flags & ACK != 0 => seen.send_modify(|seen| seen.pongs += 1),
            PING => {
                if habits.answers_pings {
                    let _ = out.send(frame(PING, ACK, 0, &payload)).await;
                }
                seen.send_modify(|seen| seen.pings.push(payload));
            }
            SETTINGS if flags & ACK == 0 => drop(out.send(frame(SETTINGS, ACK, 0, &[])).await),
            _ => {}
        }
    }
}

async fn one(reader: &mut BufReader<OwnedReadHalf>) -> Option<(u8, u8, u32, Vec<u8>)> {
    let mut head = [0; 9];
    reader.read_exact(&mut head).await.ok()?;
    let [first, second, third, kind, flags, stream @ ..] = head;
    let mut payload = vec![0; u32::from_be_bytes([0, first, second, third]) as usize];
    reader.read_exact(&mut payload).await.ok()?;
    Some((kind, flags, u32::from_be_bytes(stream) & 0x7fff_ffff, payload))
}

fn unpadded(flags: u8, payload: Vec<u8>) -> Option<Vec<u8>> {
    if flags & PADDED == 0 {
        return Some(payload);
    }
    let (&padding, rest) = payload.split_first()?;
    Some(rest.get(..rest.len().checked_sub(padding.into())?)?.to_vec())
}

fn number(payload: &[u8]) -> Option<u32> {
    payload.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

// === impl Stream ===

impl Stream {
    pub fn is_over(&self) -> bool {
        self.has_ended || self.reset.is_some()
    }

    /// A field of the trailers, or else of the headers.
    pub fn field(&self, name: &str) -> Option<&str> {
        let fields = self.lists.iter().rev().flatten();
        fields.into_iter().find(|field| field.0 == name).map(|field| &*field.1)
    }

    /// The number of the gRPC status.
    pub fn code(&self) -> Option<u32> {
        self.field("grpc-status")?.parse().ok()
    }
}

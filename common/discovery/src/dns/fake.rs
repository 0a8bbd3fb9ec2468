//! A DNS server for tests: a table of answers over UDP and TCP, a few bytes by hand. A real server crate
//! would be far larger than what it tests.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, UdpSocket},
    task::JoinSet,
};

pub(super) const A: u16 = 1;
pub(super) const AAAA: u16 = 28;
const CNAME: u16 = 5;

pub(super) const SERVFAIL: u8 = 2;
pub(super) const NXDOMAIN: u8 = 3;
pub(super) const REFUSED: u8 = 5;

/// The most that an answer over UDP may take here, as without EDNS.
const UDP_LIMIT: usize = 512;

/// What to say to one question.
#[derive(Debug, Clone)]
pub(super) enum Reply {
    /// Addresses, each with its own TTL in seconds. None: the name exists, without such records.
    Addresses(Vec<(IpAddr, u32)>),
    /// An alias with its TTL, and the addresses of the aliased name in the same answer.
    Alias(&'static str, u32, Vec<(IpAddr, u32)>),
    /// An error, by response code.
    Code(u8),
    /// Nothing, so that the question times out.
    Silence,
}

/// Runs until dropped. A question that is not in the table gets NXDOMAIN.
pub(super) struct FakeDns {
    pub(super) address: SocketAddr,
    state: Arc<State>,
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct State {
    table: Mutex<HashMap<(String, u16), Reply>>,
    asked: Mutex<Vec<(String, u16)>>,
}

// === impl FakeDns ===

impl FakeDns {
    pub(super) async fn start() -> Self {
        let (udp, tcp) = bind().await;
        let address = udp.local_addr().unwrap();
        let state = Arc::new(State::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(serve_udp(udp, Arc::clone(&state)));
        tasks.spawn(serve_tcp(tcp, Arc::clone(&state)));
        Self { address, state, _tasks: tasks }
    }

    /// Sets the reply to one question. `name` is written without its final dot.
    pub(super) fn set(&self, name: &str, kind: u16, reply: Reply) {
        self.state.table.lock().unwrap().insert((name.to_owned(), kind), reply);
    }

    /// Sets the addresses of a name for both kinds of records, with one TTL.
    pub(super) fn set_addresses(&self, name: &str, addresses: &[&str], ttl: u32) {
        let all = addresses.iter().map(|address| (address.parse::<IpAddr>().unwrap(), ttl));
        let (v4, v6) = all.partition(|(address, _)| address.is_ipv4());
        self.set(name, A, Reply::Addresses(v4));
        self.set(name, AAAA, Reply::Addresses(v6));
    }

    /// The names that were asked for as `kind`, in order.
    pub(super) fn asked(&self, kind: u16) -> Vec<String> {
        let asked = self.state.asked.lock().unwrap();
        asked.iter().filter(|(_, asked)| *asked == kind).map(|(name, _)| name.clone()).collect()
    }
}

/// One port for both protocols: a free UDP port may be taken on TCP.
async fn bind() -> (UdpSocket, TcpListener) {
    loop {
        let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        if let Ok(tcp) = TcpListener::bind(udp.local_addr().unwrap()).await {
            return (udp, tcp);
        }
    }
}

async fn serve_udp(socket: UdpSocket, state: Arc<State>) {
    let mut buffer = [0; 4096];
    while let Ok((length, peer)) = socket.recv_from(&mut buffer).await {
        if let Some(answer) = state.answer(&buffer[..length], UDP_LIMIT) {
            let _ = socket.send_to(&answer, peer).await;
        }
    }
}

async fn serve_tcp(listener: TcpListener, state: Arc<State>) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let state = Arc::clone(&state);
        tokio::spawn(async move {
            loop {
                let length = stream.read_u16().await?;
                let mut question = vec![0; length.into()];
                stream.read_exact(&mut question).await?;
                if let Some(answer) = state.answer(&question, usize::from(u16::MAX)) {
                    stream.write_u16(answer.len() as u16).await?;
                    stream.write_all(&answer).await?;
                }
            }
            #[allow(unreachable_code, reason = "names the type of the block's errors")]
            io::Result::Ok(())
        });
    }
}

// === impl State ===

impl State {
    fn answer(&self, question: &[u8], limit: usize) -> Option<Vec<u8>> {
        // Header, name, type, class; what follows (EDNS) is not needed.
        let name_end = 12 + question.get(12..)?.iter().position(|byte| *byte == 0)? + 1;
        let kind = u16::from_be_bytes([*question.get(name_end)?, *question.get(name_end + 1)?]);
        let question = question.get(..name_end + 4)?;
        let name = read_name(&question[12..name_end]);
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).push((name.clone(), kind));
        let reply = self.table.lock().unwrap_or_else(PoisonError::into_inner).get(&(name, kind)).cloned();

        let (code, records) = match reply.unwrap_or(Reply::Code(NXDOMAIN)) {
            Reply::Silence => return None,
            Reply::Code(code) => (code, Vec::new()),
            // 0xc00c points to the name in the question.
            Reply::Addresses(addresses) => (0, addresses.iter().map(|to| record(&[0xc0, 12], to)).collect()),
            Reply::Alias(to, ttl, addresses) => {
                let target = write_name(to);
                let mut records = vec![raw_record(&[0xc0, 12], CNAME, ttl, &target)];
                records.extend(addresses.iter().map(|to| record(&target, to)));
                (0, records)
            }
        };
        let fits = question.len() + records.concat().len() <= limit;
        let records = if fits { records } else { Vec::new() };
        let mut out = question.to_vec();
        out[2] = 0x81 | if fits { 0 } else { 0x02 }; // response, recursion desired; truncated
        out[3] = 0x80 | code; // recursion available
        out[6..8].copy_from_slice(&(records.len() as u16).to_be_bytes());
        out[8..12].fill(0);
        out.extend(records.concat());
        Some(out)
    }
}

fn record(name: &[u8], (address, ttl): &(IpAddr, u32)) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => raw_record(name, A, *ttl, &address.octets()),
        IpAddr::V6(address) => raw_record(name, AAAA, *ttl, &address.octets()),
    }
}

fn raw_record(name: &[u8], kind: u16, ttl: u32, data: &[u8]) -> Vec<u8> {
    let class_in = 1_u16.to_be_bytes();
    let length = (data.len() as u16).to_be_bytes();
    [name, &kind.to_be_bytes(), &class_in, &ttl.to_be_bytes(), &length, data].concat()
}

fn read_name(mut bytes: &[u8]) -> String {
    let mut labels = Vec::new();
    while let [length, rest @ ..] = bytes
        && *length > 0
        && rest.len() >= usize::from(*length)
    {
        let (label, rest) = rest.split_at(usize::from(*length));
        labels.push(String::from_utf8_lossy(label).to_lowercase());
        bytes = rest;
    }
    labels.join(".")
}

fn write_name(name: &str) -> Vec<u8> {
    let mut out = Vec::new();
    for label in name.split('.') {
        out.push(label.len() as u8);
        out.extend(label.as_bytes());
    }
    out.push(0);
    out
}

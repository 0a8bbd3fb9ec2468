//! A DNS server for tests: a table of answers over UDP.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use hickory_resolver::proto::op::{Message, ResponseCode};
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType, rdata::CNAME};
use tokio::net::UdpSocket;
use tokio::task::JoinSet;

/// The reply to one query.
#[derive(Clone)]
pub(super) enum Reply {
    /// Addresses. An empty list means that the name exists without records of this type.
    Addresses(Vec<IpAddr>),
    /// An alias, and the addresses of the aliased name in the same answer.
    Alias(&'static str, Vec<IpAddr>),
    Code(ResponseCode),
    /// No reply, so that the query times out.
    Silence,
}

/// Runs until dropped. A query that is not in the table gets NXDOMAIN.
pub(super) struct FakeDns {
    pub(super) address: SocketAddr,
    state: Arc<State>,
    _task: JoinSet<()>,
}

#[derive(Default)]
struct State {
    table: Mutex<HashMap<(String, RecordType), Reply>>,
    asked: Mutex<Vec<(String, RecordType)>>,
}

impl FakeDns {
    pub(super) async fn start() -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let (address, state, mut task) =
            (socket.local_addr().unwrap(), Arc::<State>::default(), JoinSet::new());
        task.spawn(serve(socket, Arc::clone(&state)));
        Self { address, state, _task: task }
    }

    /// Sets the reply to one query. `name` is written without its final dot.
    pub(super) fn set(&self, name: &str, kind: RecordType, reply: Reply) {
        self.state.table.lock().unwrap().insert((name.to_owned(), kind), reply);
    }

    /// Sets the addresses of a name for both kinds of records.
    pub(super) fn set_addresses(&self, name: &str, addresses: &[&str]) {
        let all = addresses.iter().map(|address| address.parse::<IpAddr>().unwrap());
        let (v4, v6) = all.partition(IpAddr::is_ipv4);
        self.set(name, RecordType::A, Reply::Addresses(v4));
        self.set(name, RecordType::AAAA, Reply::Addresses(v6));
    }

    /// The names of the queries for IPv4 addresses, in order.
    pub(super) fn asked(&self) -> Vec<String> {
        let asked = self.state.asked.lock().unwrap();
        asked.iter().filter(|(_, kind)| *kind == RecordType::A).map(|(name, _)| name.clone()).collect()
    }
}

async fn serve(socket: UdpSocket, state: Arc<State>) {
    let mut buffer = [0; 4096];
    loop {
        let (length, peer) = socket.recv_from(&mut buffer).await.unwrap();
        if let Some(answer) = state.answer(&buffer[..length]) {
            socket.send_to(&answer, peer).await.unwrap();
        }
    }
}

impl State {
    fn answer(&self, query: &[u8]) -> Option<Vec<u8>> {
        let mut message = Message::from_vec(query).unwrap().into_response();
        let query = message.queries[0].clone();
        let name = query.name().to_ascii().trim_end_matches('.').to_lowercase();
        self.asked.lock().unwrap().push((name.clone(), query.query_type()));
        let reply = self.table.lock().unwrap().get(&(name, query.query_type())).cloned();
        let mut add = |name: &Name, addresses: Vec<IpAddr>| {
            let record = |address| Record::from_rdata(name.clone(), 3600, RData::from(address));
            message.add_answers(addresses.into_iter().map(record));
        };
        match reply.unwrap_or(Reply::Code(ResponseCode::NXDomain)) {
            Reply::Silence => return None,
            Reply::Code(code) => message.metadata.response_code = code,
            Reply::Addresses(addresses) => add(query.name(), addresses),
            Reply::Alias(to, addresses) => {
                let to = Name::from_ascii(format!("{to}.")).unwrap();
                add(&to, addresses);
                let alias = RData::CNAME(CNAME(to));
                message.add_answer(Record::from_rdata(query.name().clone(), 3600, alias));
            }
        }
        Some(message.to_vec().unwrap())
    }
}

//! DNS as the system is configured for it, with TTLs.
//!
//! The C library gives no TTL and blocks a thread, hence hickory. Three things are ours, because a wrong
//! answer here empties or halves a ring:
//! - hickory returns the IPv4 addresses alone when the IPv6 lookup fails (and the reverse); we say so in
//!   [`Lookup::unanswered`].
//! - Along a search list it reports the last name's error, so a failure followed by "no such name" looks
//!   like an empty answer. We walk the list ourselves: an answer is empty only if no name of it failed.
//! - Its cache would hide changes until the TTL ends; [`MAX_VALID_FOR`](super::MAX_VALID_FOR) may be earlier.

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    str::FromStr as _,
    time::Duration,
};

use hickory_resolver::{
    Hosts, TokioResolver,
    config::{NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts},
    net::{DnsError, NetError, runtime::TokioRuntimeProvider},
    proto::{
        op::{Query, ResponseCode},
        rr::{Name, RecordType},
    },
    system_conf::read_system_conf,
};

use super::resolver::{Family, Lookup, LookupError, MAX_VALID_FOR, MIN_VALID_FOR, Resolver};

/// A [`Resolver`] over `/etc/hosts`, `/etc/resolv.conf` (servers, search list, `ndots`) and DNS.
///
/// Both files are read once.
#[derive(Debug)]
pub struct DnsResolver {
    resolver: TokioResolver,
    hosts: Hosts,
    search: Vec<Name>,
    ndots: usize,
}

/// DNS cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub enum DnsSetupError {
    /// hickory refused the configuration.
    #[error("cannot set up DNS from /etc/resolv.conf: {0}; correct that file or use static:///HOST:PORT")]
    Build(#[source] NetError),
}

// === impl DnsResolver ===

impl DnsResolver {
    /// A resolver that asks `server`, or else those of the system, or else 127.0.0.1 as the C library and
    /// Go do. The system's search list applies in every case.
    ///
    /// # Errors
    /// [`DnsSetupError`] when the configuration cannot be used.
    pub fn new(server: Option<SocketAddr>) -> Result<Self, DnsSetupError> {
        let (config, options) = read_system_conf().unwrap_or_else(|error| {
            if server.is_none() {
                tracing::warn!(%error, "/etc/resolv.conf names no DNS server: asking 127.0.0.1");
            }
            (ResolverConfig::from_parts(None, Vec::new(), Vec::new()), ResolverOpts::default())
        });
        Self::build(server, config, options)
    }

    fn build(
        server: Option<SocketAddr>,
        config: ResolverConfig,
        mut options: ResolverOpts,
    ) -> Result<Self, DnsSetupError> {
        let (domain, mut search, mut servers) = config.into_parts();
        if search.is_empty() {
            search.extend(domain);
        }
        if let Some(server) = server {
            servers = vec![name_server(server)];
        } else if servers.is_empty() {
            servers = vec![NameServerConfig::udp_and_tcp(Ipv4Addr::LOCALHOST.into())];
        }
        let ndots = options.ndots;
        options.use_hosts_file = ResolveHosts::Never;
        let config = ResolverConfig::from_parts(None, Vec::new(), servers);
        let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
        *builder.options_mut() = options;
        let resolver = builder.build().map_err(DnsSetupError::Build)?;
        Ok(Self { resolver, hosts: Hosts::from_system().unwrap_or_default(), search, ndots })
    }

    /// The full names to ask for, in order, as `resolv.conf(5)` has it.
    fn candidates(&self, host: &str) -> Result<Vec<Name>, LookupError> {
        let name = Name::from_str(host).map_err(|error| {
            LookupError(format!("{host:?} is not a DNS name ({error}); correct the target"))
        })?;
        if name.is_fqdn() {
            return Ok(vec![name]);
        }
        let mut full = name.clone();
        full.set_fqdn(true);
        let dots = usize::from(name.num_labels()).saturating_sub(1);
        // A name that gets too long by a search domain is left out, as the C library does.
        let mut names: Vec<Name> =
            self.search.iter().filter_map(|domain| name.clone().append_domain(domain).ok()).collect();
        if dots >= self.ndots || name.is_localhost() {
            names.insert(0, full);
        } else {
            names.push(full);
        }
        Ok(names)
    }

    /// Both families of one full name.
    async fn lookup_name(&self, name: &Name) -> (Answer, Answer) {
        let from_hosts = |kind| {
            let found = self.hosts.lookup_static_host(&Query::query(name.clone(), kind));
            found.map(|lookup| Answer::from_lookup(&lookup))
        };
        match (from_hosts(RecordType::A), from_hosts(RecordType::AAAA)) {
            (None, None) => {}
            // As in the C library, a name in the hosts file is not asked for in DNS.
            (v4, v6) => return (v4.unwrap_or(Answer::NO_DATA), v6.unwrap_or(Answer::NO_DATA)),
        }
        tokio::join!(self.query(name, RecordType::A), self.query(name, RecordType::AAAA))
    }

    async fn query(&self, name: &Name, kind: RecordType) -> Answer {
        match self.resolver.lookup(name.clone(), kind).await {
            Ok(lookup) => Answer::from_lookup(&lookup),
            Err(NetError::Dns(DnsError::NoRecordsFound(none))) => match none.response_code {
                ResponseCode::NXDomain => Answer::NoSuchName,
                _ => Answer::NO_DATA,
            },
            Err(error) => Answer::Failed(error),
        }
    }
}

impl Resolver for DnsResolver {
    async fn lookup(&self, host: &str) -> Result<Lookup, LookupError> {
        let names = self.candidates(host)?;
        self.resolver.clear_cache();
        let mut failure = None;
        let mut name_exists = false;
        for name in names {
            let (v4, v6) = self.lookup_name(&name).await;
            name_exists |= v4.name_exists() || v6.name_exists();
            if let Some(lookup) = combine(&v4, &v6) {
                return Ok(lookup);
            }
            for answer in [v4, v6] {
                if let Answer::Failed(error) = answer {
                    failure.get_or_insert(error);
                }
            }
        }
        match failure {
            None => {
                // Nothing can be served until this changes, so it is worth asking often.
                Ok(Lookup { name_exists, ..Lookup::new(Vec::new(), MIN_VALID_FOR) })
            }
            Some(NetError::Timeout) => Err(LookupError::timeout(host)),
            Some(error) => Err(LookupError::failed(host, error)),
        }
    }
}

fn name_server(address: SocketAddr) -> NameServerConfig {
    let mut server = NameServerConfig::udp_and_tcp(address.ip());
    for connection in &mut server.connections {
        connection.port = address.port();
    }
    server
}

// === impl Answer ===

/// What is known about one family of one name.
#[derive(Debug)]
enum Answer {
    /// Possibly none: the name exists, with other records.
    Addresses {
        addresses: Vec<IpAddr>,
        ttl: Duration,
    },
    NoSuchName,
    Failed(NetError),
}

impl Answer {
    const NO_DATA: Self = Self::Addresses { addresses: Vec::new(), ttl: MAX_VALID_FOR };

    fn from_lookup(lookup: &hickory_resolver::lookup::Lookup) -> Self {
        let records = lookup.answers();
        // A CNAME on the way counts as well.
        let ttl = records.iter().map(|record| record.ttl).min();
        Self::Addresses {
            addresses: records.iter().filter_map(|record| record.data.ip_addr()).collect(),
            ttl: ttl.map_or(MAX_VALID_FOR, |seconds| Duration::from_secs(seconds.into())),
        }
    }

    fn name_exists(&self) -> bool {
        matches!(self, Self::Addresses { .. })
    }
}

/// The answer for a name, if it has any address.
fn combine(v4: &Answer, v6: &Answer) -> Option<Lookup> {
    let mut lookup = Lookup::new(Vec::new(), Duration::MAX);
    for (family, answer) in [(Family::V4, v4), (Family::V6, v6)] {
        match answer {
            Answer::Addresses { addresses, ttl } => {
                lookup.addresses.extend(addresses.iter().map(IpAddr::to_canonical));
                lookup.valid_for = lookup.valid_for.min(*ttl);
            }
            Answer::NoSuchName => {}
            Answer::Failed(error) => {
                tracing::debug!(?family, %error, "one of the two lookups failed");
                lookup.unanswered = Some(family);
            }
        }
    }
    (!lookup.addresses.is_empty()).then_some(lookup)
}

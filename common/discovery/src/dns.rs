//! A DNS resolver with the system's configuration.
//!
//! The C library blocks a thread, so this module uses hickory. A wrong answer would empty or halve
//! the hash ring of runners, so this module works around three properties of hickory:
//! - When the lookup of one address family fails, hickory returns only the other family's
//!   addresses. A [`Lookup`] keeps the two results separate.
//! - For a search list, hickory reports only the last name's error. A failure followed by "no such
//!   name" would look like an empty answer. So this module, not hickory, goes through the list. An
//!   answer is empty only if no lookup of the list failed.
//! - hickory's cache would hide changes until the TTL ends, so it is cleared before each lookup.

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr as _;

use hickory_resolver::config::{NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts};
use hickory_resolver::lookup;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::{Query, ResponseCode};
use hickory_resolver::proto::rr::{Name, RecordType};
use hickory_resolver::system_conf::read_system_conf;
use hickory_resolver::{Hosts, TokioResolver};

/// A resolver over `/etc/hosts`, `/etc/resolv.conf` (servers, search list, `ndots`) and DNS.
///
/// Both files are read once, when the resolver is created.
#[derive(Debug)]
pub(crate) struct DnsResolver {
    resolver: TokioResolver,
    hosts: Hosts,
    search: Vec<Name>,
    ndots: usize,
}

/// The answer to a lookup.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Lookup {
    /// IPv4 and IPv6 addresses, in any order, possibly repeated. `None`: the lookup of this family
    /// failed, and the other lookup returned addresses.
    pub(crate) addresses: [Option<Vec<IpAddr>>; 2],
    /// `false` if the answer was "no such name". Then there are no addresses either.
    pub(crate) name_exists: bool,
}

/// The addresses of one family of one name. `None`: the name does not exist.
type Records = Option<Vec<IpAddr>>;

/// The error text for a lookup that no DNS server answered.
pub(crate) fn no_answer(host: &str) -> String {
    format!(
        "no DNS server answered for {host:?}; check the servers in /etc/resolv.conf and the network to them"
    )
}

impl DnsResolver {
    /// A resolver that queries `server`. `None` means the system's servers. If the system has none,
    /// the resolver queries 127.0.0.1, like the C library and Go. The system's search list always
    /// applies.
    ///
    /// # Errors
    /// hickory's error when the configuration is not valid.
    pub(crate) fn new(server: Option<SocketAddr>) -> Result<Self, NetError> {
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
    ) -> Result<Self, NetError> {
        let (domain, mut search, mut servers) = config.into_parts();
        if search.is_empty() {
            search.extend(domain);
        }
        if let Some(address) = server {
            let mut server = NameServerConfig::udp_and_tcp(address.ip());
            server.connections.iter_mut().for_each(|connection| connection.port = address.port());
            servers = vec![server];
        } else if servers.is_empty() {
            servers = vec![NameServerConfig::udp_and_tcp(Ipv4Addr::LOCALHOST.into())];
        }
        let ndots = options.ndots;
        options.use_hosts_file = ResolveHosts::Never;
        let config = ResolverConfig::from_parts(None, Vec::new(), servers);
        let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
        *builder.options_mut() = options;
        let resolver = builder.build()?;
        Ok(Self { resolver, hosts: Hosts::from_system().unwrap_or_default(), search, ndots })
    }

    /// All IPv4 and IPv6 addresses of `host`.
    ///
    /// # Errors
    /// When a lookup failed and none returned addresses; the text tells the user what to check. A
    /// name that does not exist or has no addresses is not an error but a [`Lookup`].
    pub(crate) async fn lookup(&self, host: &str) -> Result<Lookup, String> {
        self.resolver.clear_cache();
        let (mut failure, mut name_exists) = (None, false);
        for name in self.candidates(host)? {
            let mut lookup = Lookup { addresses: [None, None], name_exists: true };
            for (addresses, answer) in lookup.addresses.iter_mut().zip(self.lookup_name(&name).await) {
                match answer {
                    Ok(records) => {
                        name_exists |= records.is_some();
                        *addresses = Some(records.unwrap_or_default());
                    }
                    Err(error) => {
                        tracing::debug!(host = %name, %error, "the lookup of one address family failed");
                        failure.get_or_insert(error);
                    }
                }
            }
            if lookup.addresses.iter().flatten().any(|addresses| !addresses.is_empty()) {
                return Ok(lookup);
            }
        }
        match failure {
            None => Ok(Lookup { addresses: [Some(Vec::new()), Some(Vec::new())], name_exists }),
            Some(NetError::Timeout) => Err(no_answer(host)),
            Some(error) => {
                Err(format!("the lookup of {host:?} failed ({error}); check the DNS server's own log"))
            }
        }
    }

    /// The full names to look up, in the order of `resolv.conf(5)`.
    fn candidates(&self, host: &str) -> Result<Vec<Name>, String> {
        let name = Name::from_str(host)
            .map_err(|error| format!("{host:?} is not a DNS name ({error}); correct the target"))?;
        if name.is_fqdn() {
            return Ok(vec![name]);
        }
        let mut full = name.clone();
        full.set_fqdn(true);
        let dots = usize::from(name.num_labels()).saturating_sub(1);
        // A name that a search domain makes too long is left out, like in the C library.
        let mut names: Vec<Name> =
            self.search.iter().filter_map(|domain| name.clone().append_domain(domain).ok()).collect();
        let first = dots >= self.ndots || name.is_localhost();
        names.insert(if first { 0 } else { names.len() }, full);
        Ok(names)
    }

    /// Looks up both families of one full name.
    async fn lookup_name(&self, name: &Name) -> [Result<Records, NetError>; 2] {
        let kinds = [RecordType::A, RecordType::AAAA];
        let from_hosts = kinds.map(|kind| self.hosts.lookup_static_host(&Query::query(name.clone(), kind)));
        // A name in the hosts file is not looked up in DNS, like in the C library.
        if from_hosts.iter().any(Option::is_some) {
            return from_hosts.map(|found| Ok(Some(found.as_ref().map(records).unwrap_or_default())));
        }
        tokio::join!(self.query(name, kinds[0]), self.query(name, kinds[1])).into()
    }

    async fn query(&self, name: &Name, kind: RecordType) -> Result<Records, NetError> {
        match self.resolver.lookup(name.clone(), kind).await {
            Ok(lookup) => Ok(Some(records(&lookup))),
            Err(NetError::Dns(DnsError::NoRecordsFound(none))) => {
                Ok((none.response_code != ResponseCode::NXDomain).then(Vec::new))
            }
            Err(error) => Err(error),
        }
    }
}

fn records(lookup: &lookup::Lookup) -> Vec<IpAddr> {
    let addresses = lookup.answers().iter().filter_map(|record| record.data.ip_addr());
    addresses.map(|address| address.to_canonical()).collect()
}

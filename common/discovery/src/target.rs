//! Targets of discovery: the values of `--runners` and `--peers`.
//!
//! The forms follow gRPC's target names, which users know. The syntax is checked completely here.
//! So the process refuses to start with a malformed target, instead of serving with an empty ring.

#[cfg(test)]
mod tests;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Port of a DNS server when the target names none.
const DNS_PORT: u16 = 53;

/// The longest host name of DNS, without the final dot.
const MAX_NAME: usize = 253;

/// The end of every error message about a target.
const ACCEPTED: &str = "use HOST:PORT, dns:///HOST:PORT, static:///HOST:PORT,HOST:PORT or \
                        kubernetes:///NAMESPACE/SERVICE:PORT";

/// A set of servers, by list or by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// `static:///a:9445,b:9445`: exactly these servers.
    Static(Vec<HostPort>),
    /// `dns:///host:9445`, or `host:9445`: every address of the name.
    Dns {
        /// The DNS server of `dns://10.0.0.10:53/host:9445`. `None` uses the system's DNS servers.
        server: Option<SocketAddr>,
        /// The name to look up and the port of the servers.
        name: HostPort,
    },
    /// `kubernetes:///namespace/service:9445`: the pods of a Service, from its EndpointSlices.
    Kubernetes {
        /// The Service's namespace.
        namespace: String,
        /// The Service.
        service: String,
        /// The port of the servers. The ports of the Service are ignored.
        port: u16,
    },
}

/// A host name or IP address, and a port. Prints as `host:port`, an IPv6 address in brackets.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostPort {
    /// As the user wrote it; an IP address in its canonical form, without brackets.
    pub host: String,
    /// Never 0.
    pub port: u16,
}

/// An invalid target. The text is one line and lists the accepted forms.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TargetError(String);

/// An error about `part`, with the accepted forms.
fn wrong(part: &str, problem: &str) -> TargetError {
    TargetError(format!("{part:?} {problem}; {ACCEPTED}"))
}

impl Target {
    /// The name that the servers' certificates must contain. For DNS it is the name that is looked
    /// up, as in gRPC. For a Service it is `SERVICE.NAMESPACE.svc`. `None` means that each
    /// certificate must contain its server's address.
    pub fn server_name(&self) -> Option<String> {
        match self {
            Self::Static(_) => None,
            Self::Dns { name, .. } => Some(name.host.trim_end_matches('.').to_owned()),
            Self::Kubernetes { namespace, service, .. } => Some(format!("{service}.{namespace}.svc")),
        }
    }

    /// Parses a target. A host without a port gets `default_port`.
    ///
    /// # Errors
    /// [`TargetError`] if the text has none of the forms of [`Target`].
    pub fn parse(text: &str, default_port: u16) -> Result<Self, TargetError> {
        let target = text.trim();
        let wrong = |problem| wrong(target, problem);
        let Some((scheme, rest)) = target.split_once("://") else {
            let name = HostPort::parse(target, default_port)?;
            return Ok(Self::Dns { server: None, name });
        };
        if !matches!(scheme, "static" | "dns" | "kubernetes") {
            return Err(wrong("has an unknown scheme"));
        }
        let (authority, path) = rest.split_once('/').ok_or_else(|| wrong(SLASHES))?;
        if !authority.is_empty() && scheme != "dns" {
            return Err(wrong(SLASHES));
        }
        match scheme {
            "static" => {
                let hosts = path.split(',').map(|host| HostPort::parse(host.trim(), default_port));
                hosts.collect::<Result<_, _>>().map(Self::Static)
            }
            "dns" => {
                let server = if authority.is_empty() { None } else { Some(parse_server(authority)?) };
                Ok(Self::Dns { server, name: HostPort::parse(path, default_port)? })
            }
            _ => {
                let (namespace, service) = path.split_once('/').ok_or_else(|| wrong(UNNAMED))?;
                let HostPort { host: service, port } = HostPort::parse(service, default_port)?;
                if !is_object_name(namespace) || !is_object_name(&service) {
                    return Err(wrong(UNNAMED));
                }
                Ok(Self::Kubernetes { namespace: namespace.to_owned(), service, port })
            }
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Static(hosts) => {
                let hosts: Vec<_> = hosts.iter().map(ToString::to_string).collect();
                write!(f, "static:///{}", hosts.join(","))
            }
            Self::Dns { server: None, name } => write!(f, "dns:///{name}"),
            Self::Dns { server: Some(server), name } => write!(f, "dns://{server}/{name}"),
            Self::Kubernetes { namespace, service, port } => {
                write!(f, "kubernetes:///{namespace}/{service}:{port}")
            }
        }
    }
}

fn parse_server(authority: &str) -> Result<SocketAddr, TargetError> {
    let server = HostPort::parse(authority, DNS_PORT).ok();
    let server = server.and_then(|server| Some(SocketAddr::new(server.ip()?, server.port)));
    server.ok_or_else(|| wrong(authority, "is not the IP:PORT of a DNS server"))
}

impl HostPort {
    /// Parses `host:port`, `host`, `[::1]:port`, `[::1]` or `::1`. The default port is
    /// `default_port`.
    ///
    /// # Errors
    /// [`TargetError`] with the reason.
    pub fn parse(text: &str, default_port: u16) -> Result<Self, TargetError> {
        let wrong = |problem| wrong(text, problem);
        if text.is_empty() {
            return Err(wrong("names no host"));
        }
        if text.contains(',') {
            return Err(wrong("is a list, which only static:/// takes"));
        }
        if let Some((address, port)) = text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            let address: Ipv6Addr = address.parse().map_err(|_| wrong(BRACKETS))?;
            let port = match port.strip_prefix(':') {
                Some(port) => parse_port(port).ok_or_else(|| wrong(PORT_PROBLEM))?,
                None if port.is_empty() => default_port,
                None => return Err(wrong(BRACKETS)),
            };
            return Ok(Self { host: address.to_string(), port });
        }
        if let Ok(address) = text.parse::<Ipv6Addr>() {
            return Ok(Self { host: address.to_string(), port: default_port });
        }
        let (host, port) = match text.split_once(':') {
            Some((_, port)) if port.contains(':') => return Err(wrong(BRACKETS)),
            Some((host, port)) => (host, parse_port(port).ok_or_else(|| wrong(PORT_PROBLEM))?),
            None => (text, default_port),
        };
        if !is_host_name(host) {
            return Err(wrong("has no valid host name"));
        }
        Ok(Self { host: host.to_owned(), port })
    }

    /// The host as an IP address; `None` if it is a name.
    pub fn ip(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

const SLASHES: &str = "needs three slashes";
const UNNAMED: &str = "does not name a namespace and a Service";
const PORT_PROBLEM: &str = "has no port between 1 and 65535";
const BRACKETS: &str = "has too many colons: write an IPv6 address with a port as [ADDRESS]:PORT";

fn parse_port(text: &str) -> Option<u16> {
    // `u16::from_str` alone would accept a plus sign.
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|port| digits && *port != 0)
}

/// Accepts an IPv4 address, or labels of at most 63 letters, digits, `-` and `_`. A final dot is
/// allowed.
fn is_host_name(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    // The last label of a DNS name is no number. So a text whose last label is a number must be an
    // IPv4 address. This refuses `10.0.0` and `:9445`.
    let last = name.rsplit('.').next().unwrap_or_default();
    if last.bytes().all(|byte| byte.is_ascii_digit()) {
        return name.parse::<Ipv4Addr>().is_ok();
    }
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    name.len() <= MAX_NAME && name.split('.').all(is_label)
}

/// Kubernetes' rule for the names of namespaces and Services. The name becomes part of a request's
/// path.
fn is_object_name(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&name.len())
        && name.bytes().all(inner)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

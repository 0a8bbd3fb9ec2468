//! Classes of addresses: public, loopback, link-local, or in the cluster.
//!
//! Callers choose images, and with them the registries. A registry must not use the runner to reach
//! internal addresses, such as a port on loopback, the node's metadata service or a Service. So
//! its redirects and token realms may lead only to public addresses and to addresses of the
//! registry's own class. No I/O.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AddressClass {
    Public,
    Loopback,
    LinkLocal,
    /// Private and reserved ranges, where clusters have their pods and Services.
    Cluster,
}

impl AddressClass {
    pub(crate) const ALL: [Self; 4] = [Self::Public, Self::Loopback, Self::LinkLocal, Self::Cluster];

    /// Whether a registry of this class may send the runner to addresses of the class `target`, by
    /// a redirect or a token realm.
    pub(crate) fn leads_to(self, target: Self) -> bool {
        target == Self::Public || target == self
    }

    pub(crate) fn of_address(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Self::of_v4(address),
            IpAddr::V6(address) => Self::of_v6(address),
        }
    }

    /// The class of a URL's host, without a DNS lookup. Most names count as public until they are
    /// resolved.
    pub(crate) fn of_host(host: &str) -> Self {
        let host = host.trim_start_matches('[').trim_end_matches([']', '.']);
        if let Ok(address) = host.parse() {
            return Self::of_address(address);
        }
        let is_below =
            |domain: &str| host.strip_suffix(domain).is_some_and(|it| it.is_empty() || it.ends_with('.'));
        if is_below("localhost") {
            Self::Loopback
        } else if is_below("svc") || is_below("cluster.local") {
            Self::Cluster
        } else {
            Self::Public
        }
    }

    fn of_v4(address: Ipv4Addr) -> Self {
        match address.octets() {
            // Linux connects 0.0.0.0 to loopback.
            [0 | 127, ..] => Self::Loopback,
            // 168.63.129.16 is Azure's host, which serves each machine's configuration.
            [169, 254, ..] | [168, 63, 129, 16] => Self::LinkLocal,
            // Private ranges, and ranges reserved for protocols, documentation, benchmarks and
            // multicast.
            [10 | 224..=255, ..]
            | [100, 64..=127, ..]
            | [172, 16..=31, ..]
            | [192, 168, ..]
            | [192, 0, 0 | 2, _]
            | [198, 18 | 19, ..]
            | [198, 51, 100, _]
            | [203, 0, 113, _] => Self::Cluster,
            _ => Self::Public,
        }
    }

    fn of_v6(address: Ipv6Addr) -> Self {
        match address.segments() {
            // `::`, `::1`, mapped IPv4 and NAT64.
            [0, 0, 0, 0, 0, 0 | 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
                Self::of_v4(Ipv4Addr::from(u32::from(high) << 16 | u32::from(low)))
            }
            [0xfe80..=0xfebf, ..] => Self::LinkLocal,
            // Protocols (Teredo is one), documentation, 6to4.
            [0x2001, 0..=0x1ff | 0xdb8, ..] | [0x2002, ..] => Self::Cluster,
            [0x2000..=0x3fff, ..] => Self::Public,
            _ => Self::Cluster,
        }
    }
}

#[cfg(test)]
mod tests {
    use reqwest::Url;

    use super::AddressClass::{self, Cluster, LinkLocal, Loopback, Public};

    #[test]
    fn hosts_have_the_class_of_their_address_or_name() {
        for (class, hosts) in [
            (Loopback, "127.0.0.1 127.255.255.255 0.0.0.0 0.1.2.3 2130706433 0x7f.1 127.0.0.1."),
            (Loopback, "[::1] [::] [::ffff:127.0.0.1] [64:ff9b::127.0.0.1] [::127.0.0.1]"),
            (Loopback, "localhost LOCALHOST localhost. a.localhost"),
            (LinkLocal, "169.254.169.254 169.254.0.0 168.63.129.16"),
            (LinkLocal, "[fe80::1] [febf::1] [::ffff:169.254.1.1]"),
            (Cluster, "10.96.0.1 172.16.0.1 172.31.255.255 192.168.0.1 100.64.0.1 100.127.0.1"),
            (Cluster, "192.0.0.1 192.0.2.1 198.18.0.1 198.19.0.1 198.51.100.1 203.0.113.1"),
            (Cluster, "224.0.0.1 239.0.0.1 240.0.0.1 255.255.255.255"),
            (Cluster, "[fc00::1] [fd00:ec2::254] [fec0::1] [ff02::1] [64:ff9b:1::1] [100::1]"),
            (Cluster, "[::ffff:10.0.0.1] [64:ff9b::10.0.0.1] [2001::1] [2001:db8::1] [2002:a00:1::]"),
            (Cluster, "a.b.svc kubernetes.default.svc. a.b.svc.cluster.local A.SVC svc"),
            (Public, "1.1.1.1 9.255.255.255 11.0.0.0 100.63.0.1 100.128.0.1 128.0.0.1"),
            (Public, "169.253.0.1 172.15.0.1 172.32.0.1 192.0.1.1 192.169.0.1 223.255.255.255"),
            (Public, "[2001:200::1] [2606:4700::1111] [3fff::1] [::ffff:1.1.1.1] [64:ff9b::1.1.1.1]"),
            (Public, "ghcr.io notlocalhost localhost.test a.notsvc svc.test cluster.local.test"),
        ] {
            for host in hosts.split(' ') {
                let url = Url::parse(&format!("https://{host}/")).unwrap();
                assert_eq!(AddressClass::of_host(url.host_str().unwrap()), class, "{host}");
            }
        }
    }
}

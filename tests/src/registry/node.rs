//! How the node's containerd finds a registry: it reads a folder per host at each pull. What is told here stays when the test
//! has ended: whoever gets the port next overwrites it.

use std::fmt::Write;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use crate::cluster::Own;

/// The registry is asked by plain HTTP.
pub fn plain(own: &Own, registry: SocketAddr) {
    write(own, registry, &format!("http://{registry}"), None);
}

/// Its certificates are by an authority in this file.
pub fn trusting(own: &Own, registry: SocketAddr, authority: &Path) {
    write(own, registry, &format!("https://{registry}"), Some(authority));
}

fn write(own: &Own, registry: SocketAddr, url: &str, authority: Option<&Path>) {
    let folder = own.directory().join("certs.d").join(registry.to_string());
    let mut text =
        format!("server = \"{url}\"\n[host.\"{url}\"]\n  capabilities = [\"pull\", \"resolve\"]\n");
    if let Some(authority) = authority {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  ca = \"{}\"", authority.display());
    }
    fs::create_dir_all(&folder).expect("the node's folder of registries");
    fs::write(folder.join("hosts.toml"), text).expect("a file there");
}

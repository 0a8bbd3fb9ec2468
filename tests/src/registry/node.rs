//! How the node's containerd finds a registry: it reads a folder per host at each pull.

use std::fmt::Write;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::cluster::Own;

/// What the node knows of one registry. Dropping it makes the node forget it.
#[derive(Debug)]
pub struct NodeHosts {
    folder: PathBuf,
}

// === impl NodeHosts ===

impl NodeHosts {
    /// The registry is asked by plain HTTP.
    pub fn plain(own: &Own, registry: SocketAddr) -> Self {
        Self::write(own, registry, &format!("http://{registry}"), None)
    }

    /// Its certificates are by an authority in this file.
    pub fn trusting(own: &Own, registry: SocketAddr, authority: &Path) -> Self {
        Self::write(own, registry, &format!("https://{registry}"), Some(authority))
    }

    /// What images name is in truth asked of another, by plain HTTP: the node goes past a proxy.
    pub fn instead(own: &Own, registry: SocketAddr, asked: &str) -> Self {
        Self::write(own, registry, &format!("http://{asked}"), None)
    }

    fn write(own: &Own, registry: SocketAddr, url: &str, authority: Option<&Path>) -> Self {
        let folder = own.directory().join("certs.d").join(registry.to_string());
        let mut text =
            format!("server = \"{url}\"\n[host.\"{url}\"]\n  capabilities = [\"pull\", \"resolve\"]\n");
        if let Some(authority) = authority {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "  ca = \"{}\"", authority.display());
        }
        fs::create_dir_all(&folder).expect("the node's folder of registries");
        fs::write(folder.join("hosts.toml"), text).expect("a file there");
        Self { folder }
    }
}

impl Drop for NodeHosts {
    fn drop(&mut self) {
        // Another test may have got the port, and its folder is as good as none.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

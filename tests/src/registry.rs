//! OCI registries for tests: Debian's `docker-registry` as a child process, with or without a
//! password and TLS.
//!
//! The test cluster also has its own registry, which needs no credentials.

mod authority;

use std::fmt::Write as _;
use std::fs::{self, File};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::Stdio;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::process::Child;

pub use authority::Authority;

use crate::cluster::Machine;
use crate::process::{Sandbox, eventually};

/// What a registry requires of its clients.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// The only user. `None`: the registry requires no credentials.
    pub user: Option<User>,
    /// The certificate authority of the registry, if the registry uses TLS.
    pub tls: Option<Authority>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub password: String,
}

/// A `docker-registry` process. Dropping the sandbox kills the process.
#[derive(Debug)]
pub struct Registry<'a> {
    sandbox: &'a Sandbox,
    name: String,
    access: Access,
    address: SocketAddr,
    child: Child,
}

// === impl User ===

impl User {
    pub fn new(name: &str, password: &str) -> Self {
        Self { name: name.into(), password: password.into() }
    }
}

// === impl Registry ===

impl<'a> Registry<'a> {
    /// Starts a registry on a free port of `ip`. Its files are in the folder `name` of the sandbox.
    pub async fn start(sandbox: &'a Sandbox, name: &str, ip: IpAddr, access: Access) -> Self {
        fs::create_dir_all(sandbox.path(name)).expect("a directory");
        if let Some(user) = &access.user {
            write_user(sandbox, name, user).await;
        }
        if let Some(authority) = &access.tls {
            authority.issue(sandbox, &format!("{name}/server"), &format!("IP:{ip}"), 2).await;
        }
        let (child, address) = spawn(sandbox, name, &access, ip).await;
        Self { sandbox, name: name.into(), access, address, child }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The reference of the image at `path`.
    pub fn image(&self, path: &str) -> String {
        format!("{}/{path}", self.address)
    }

    /// Configures the node's containerd for this registry. containerd has a folder for each
    /// registry, and reads it at each pull. The folder stays after the test; the next registry at
    /// this address overwrites it.
    pub fn register_with(&self, machine: &Machine) {
        let scheme = if self.access.tls.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{}", self.address);
        let mut text =
            format!("server = \"{url}\"\n[host.\"{url}\"]\n  capabilities = [\"pull\", \"resolve\"]\n");
        if let Some(authority) = &self.access.tls {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "  ca = \"{}\"", authority.path().display());
        }
        let folder = machine.directory().join("certs.d").join(self.address.to_string());
        fs::create_dir_all(&folder).expect("the node's folder of registries");
        fs::write(folder.join("hosts.toml"), text).expect("a file there");
    }

    /// Pushes a copy of `from`, changed by these flags of `crane mutate`. The label gives the copy
    /// its own digest even without flags.
    pub async fn change(&self, from: &str, to: &str, flags: &[&str]) {
        let label = format!("--label=of-the-test={to}");
        self.crane(&[&["mutate", from, "--tag", to, &label], flags].concat()).await;
    }

    /// The digest of an image or, if the reference names an index, of the index.
    pub async fn digest(&self, image: &str) -> String {
        self.crane(&["digest", image]).await.trim().to_owned()
    }

    /// Runs `crane` with the registry's credentials and authority. `crane` is on PATH inside the
    /// cluster's network namespace.
    async fn crane(&self, args: &[&str]) -> String {
        let mut words = Vec::new();
        if let Some(user) = &self.access.user {
            let config = docker_config([(self.address.to_string().as_str(), user)]);
            self.sandbox.write(&format!("{}/crane/config.json", self.name), config);
            let folder = self.sandbox.path(&format!("{}/crane", self.name));
            words.push(format!("DOCKER_CONFIG={}", folder.display()));
        }
        if let Some(authority) = &self.access.tls {
            words.push(format!("SSL_CERT_FILE={}", authority.path().display()));
        }
        words.extend(["crane"].iter().chain(args).chain(&["--insecure"]).map(ToString::to_string));
        let ended = self.sandbox.run("env", words, b"").await;
        assert!(ended.status.success(), "crane {args:?}: {}", String::from_utf8_lossy(&ended.stderr));
        String::from_utf8_lossy(&ended.stdout).into_owned()
    }

    /// Sends a signal. After SIGSTOP the kernel still accepts connections, but the registry does
    /// not answer.
    pub fn signal(&self, signal: Signal) {
        let pid =
            self.child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)).expect("a running process");
        kill_process(pid, signal).expect("a running process");
    }
}

/// The file that `docker login` writes, for these registries and their users.
pub fn docker_config<'a>(auths: impl IntoIterator<Item = (&'a str, &'a User)>) -> String {
    let auth = |(host, user): (&str, &User)| {
        (host.to_owned(), json!({"auth": base64(&format!("{}:{}", user.name, user.password))}))
    };
    let auths: serde_json::Map<String, Value> = auths.into_iter().map(auth).collect();
    json!({ "auths": auths }).to_string()
}

pub fn base64(text: &str) -> String {
    STANDARD.encode(text)
}

async fn write_user(sandbox: &Sandbox, name: &str, user: &User) {
    // The lowest cost that bcrypt allows, because the registry computes the hash at every request.
    let args = ["-B", "-C", "4", "-b", "-n", &user.name, &user.password];
    let ended = sandbox.run("htpasswd", args, b"").await;
    assert!(ended.status.success(), "htpasswd: {}", String::from_utf8_lossy(&ended.stderr));
    sandbox.write(&format!("{name}/htpasswd"), ended.stdout);
}

async fn spawn(sandbox: &Sandbox, name: &str, access: &Access, ip: IpAddr) -> (Child, SocketAddr) {
    let file = |part: &str| sandbox.path(&format!("{name}/{part}"));
    let mut config = json!({
        "version": 0.1,
        "log": {"level": "info", "formatter": "json", "accesslog": {"disabled": true}},
        "storage": {"filesystem": {"rootdirectory": file("data")}, "delete": {"enabled": true}},
        "http": {"addr": SocketAddr::new(ip, 0).to_string(), "secret": "of the tests"},
    });
    if access.tls.is_some() {
        config["http"]["tls"] = json!({"certificate": file("server.crt"), "key": file("server.key")});
    }
    if access.user.is_some() {
        config["auth"] = json!({"htpasswd": {"realm": "test", "path": file("htpasswd")}});
    }
    // The registry expects YAML. JSON is valid YAML.
    let written = sandbox.write(&format!("{name}/config.yml"), config.to_string());
    let log = file("log");
    let mut command = sandbox.command("docker-registry");
    command.arg("serve").arg(written).stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(File::create(&log).expect("a log file"));
    let mut child = command.spawn().expect("docker-registry is installed");
    let listening = eventually("docker-registry listens", async || {
        if let Some(ended) = child.try_wait().expect("an exit status") {
            panic!("docker-registry ended with {ended}: {}", read(&log));
        }
        read(&log).lines().find_map(listening)
    });
    let address = listening.await;
    (child, address)
}

fn read(log: &PathBuf) -> String {
    fs::read_to_string(log).unwrap_or_default()
}

/// The address on which the registry listens, if this log line reports it.
fn listening(line: &str) -> Option<SocketAddr> {
    let line: Value = serde_json::from_str(line).ok()?;
    let (_, address) = line["msg"].as_str()?.split_once("listening on ")?;
    address.trim_end_matches(", tls").parse().ok()
}

//! OCI registries for tests: Debian's `docker-registry` as a child process, open or with a
//! password, with TLS or without, which may be stopped.
//!
//! The tests' cluster has an open registry of its own; these stand beside it.

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

/// Who may ask what of a registry.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// User and password, when it wants them.
    pub user: Option<User>,
    /// TLS, by a certificate of this authority.
    pub tls: Option<Authority>,
}

/// Credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// The name.
    pub name: String,
    /// The password.
    pub password: String,
}

/// A `docker-registry`. Its sandbox kills it at the end.
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
    /// A user of that name with that password.
    pub fn new(name: &str, password: &str) -> Self {
        Self { name: name.into(), password: password.into() }
    }
}

// === impl Registry ===

impl<'a> Registry<'a> {
    /// Starts one on a free port of `ip`, with files of its own under `name` in the sandbox.
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

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `HOST:PORT/PATH`.
    pub fn image(&self, path: &str) -> String {
        format!("{}/{path}", self.address)
    }

    /// Has the node's containerd find it: that reads a folder per host at each pull. This stays
    /// when the test has ended; whoever gets the port next overwrites it.
    pub fn is_found_by(&self, machine: &Machine) {
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

    /// Puts an image into it, changed as the flags of `crane mutate` say. With a label of its name
    /// it is another image even where nothing else is changed.
    pub async fn change(&self, from: &str, to: &str, flags: &[&str]) {
        let label = format!("--label=of-the-test={to}");
        self.crane(&[&["mutate", from, "--tag", to, &label], flags].concat()).await;
    }

    /// The digest of what a reference stands for: of an index its own.
    pub async fn digest(&self, image: &str) -> String {
        self.crane(&["digest", image]).await.trim().to_owned()
    }

    /// Runs `crane`, which is on PATH in the cluster's network, with the registry's own credentials
    /// and authority.
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

    /// Stops it: connections are taken by the kernel and never answered.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on.
    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let pid = self.child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)).expect("it runs");
        kill_process(pid, signal).expect("it runs");
    }
}

/// `{"auths": …}` as `docker login` writes it: a key is a registry, a value user and password.
pub fn docker_config<'a>(auths: impl IntoIterator<Item = (&'a str, &'a User)>) -> String {
    let auth = |(host, user): (&str, &User)| {
        (host.to_owned(), json!({"auth": base64(&format!("{}:{}", user.name, user.password))}))
    };
    let auths: serde_json::Map<String, Value> = auths.into_iter().map(auth).collect();
    json!({ "auths": auths }).to_string()
}

/// Text in base64.
pub fn base64(text: &str) -> String {
    STANDARD.encode(text)
}

async fn write_user(sandbox: &Sandbox, name: &str, user: &User) {
    // The cheapest bcrypt there is: the registry computes it at every request.
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
    // JSON is YAML.
    let written = sandbox.write(&format!("{name}/config.yml"), config.to_string());
    let log = file("log");
    let mut command = sandbox.command("docker-registry");
    command.arg("serve").arg(written).stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(File::create(&log).expect("a log file"));
    let mut child = command.spawn().expect("docker-registry is installed");
    let listening = eventually("docker-registry listens", async || {
        if let Some(ended) = child.try_wait().expect("it can be waited for") {
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

/// From the line in which it says so.
fn listening(line: &str) -> Option<SocketAddr> {
    let line: Value = serde_json::from_str(line).ok()?;
    let (_, address) = line["msg"].as_str()?.split_once("listening on ")?;
    address.trim_end_matches(", tls").parse().ok()
}

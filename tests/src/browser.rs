//! A headless Chromium. Tests control it with Chromium's debugging protocol, over two pipes.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::time::timeout;

use crate::foreign::installed;
use crate::process::{PATIENCE, Sandbox, eventually};

/// A browser with one page.
#[derive(Debug)]
pub struct Browser {
    _child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    last_id: u64,
    session: Option<String>,
    console_errors: Vec<String>,
    requested_urls: Vec<String>,
}

pub fn chromium() -> PathBuf {
    installed(&["chromium", "chromium-browser", "google-chrome"])
}

impl Browser {
    /// Starts `program`. It can reach no host other than 127.0.0.1.
    pub async fn start(sandbox: &Sandbox, program: &Path) -> Self {
        // Chromium reads commands from file descriptor 3 and writes answers to 4.
        let mut command = sandbox.command("sh");
        command.args(["-c", "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1", "sh"]);
        command.arg(program).args([
            "--headless",
            "--remote-debugging-pipe",
            "--hide-scrollbars",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--no-first-run",
            // Without this flag Chromium refuses to run as root. Our own page needs no sandbox.
            "--no-sandbox",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        ]);
        command.arg(format!("--user-data-dir={}", sandbox.path("chromium").display()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("sh starts");
        let commands = child.stdin.take().expect("a pipe");
        let answers = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut browser = Self {
            _child: child,
            commands,
            answers,
            last_id: 0,
            session: None,
            console_errors: Vec::new(),
            requested_urls: Vec::new(),
        };
        let target = browser.command("Target.createTarget", json!({"url": "about:blank"})).await;
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let attached = browser.command("Target.attachToTarget", attach).await;
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network", "Accessibility"] {
            browser.command(&format!("{domain}.enable"), json!({})).await;
        }
        browser
    }

    pub async fn set_window(&mut self, width: u32, height: u32, dark: bool) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.command("Emulation.setDeviceMetricsOverride", size).await;
        let scheme = json!({"name": "prefers-color-scheme", "value": if dark { "dark" } else { "light" }});
        self.command("Emulation.setEmulatedMedia", json!({"features": [scheme]})).await;
    }

    /// Runs a script before the scripts of each page that is opened later.
    pub async fn run_first(&mut self, script: &str) {
        self.command("Page.addScriptToEvaluateOnNewDocument", json!({"source": script})).await;
    }

    pub async fn open(&mut self, url: &str) {
        let opened = self.command("Page.navigate", json!({"url": url})).await;
        assert!(opened["errorText"].is_null(), "{url}: {opened}");
    }

    /// Evaluates a JavaScript expression in the page.
    pub async fn value(&mut self, expression: &str) -> Value {
        let parameters = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let mut answer = self.command("Runtime.evaluate", parameters).await;
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].take()
    }

    /// Waits until an expression is true.
    pub async fn until(&mut self, expression: &str) {
        eventually(expression, async || (self.value(expression).await == true).then_some(())).await;
    }

    /// Presses and releases a key, such as `Tab`, `Enter` or `Escape`.
    pub async fn press(&mut self, key: &str) {
        let code = match key {
            "Tab" => 9,
            "Enter" => 13,
            "Escape" => 27,
            _ => panic!("{key}: add its virtual key code"),
        };
        let mut event = json!({"type": "keyDown", "key": key, "code": key, "windowsVirtualKeyCode": code});
        // A browser activates a button on the character that Enter types.
        if key == "Enter" {
            event["text"] = "\r".into();
        }
        self.command("Input.dispatchKeyEvent", event.clone()).await;
        event["type"] = "keyUp".into();
        self.command("Input.dispatchKeyEvent", event).await;
    }

    /// The role and the name of each element that a screen reader gets, in the tree's order.
    pub async fn accessible(&mut self) -> Vec<(String, String)> {
        let tree = self.command("Accessibility.getFullAXTree", json!({})).await;
        let text = |node: &Value, field: &str| node[field]["value"].as_str().unwrap_or_default().to_owned();
        let nodes = tree["nodes"].as_array().into_iter().flatten();
        let seen = nodes.filter(|node| node["ignored"] == false);
        seen.map(|node| (text(node, "role"), text(node, "name"))).collect()
    }

    /// Takes a screenshot, as PNG.
    pub async fn picture(&mut self) -> Vec<u8> {
        let answer = self.command("Page.captureScreenshot", json!({"format": "png"})).await;
        STANDARD.decode(answer["data"].as_str().expect("a picture")).expect("base64")
    }

    /// The console's messages so far, such as script errors and violations of the content security
    /// policy.
    pub fn console_errors(&self) -> &[String] {
        &self.console_errors
    }

    pub fn requested_urls(&self) -> &[String] {
        &self.requested_urls
    }

    async fn command(&mut self, method: &str, parameters: Value) -> Value {
        self.last_id += 1;
        let mut message = json!({"id": self.last_id, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        let mut line = message.to_string().into_bytes();
        line.push(0);
        self.commands.write_all(&line).await.expect("the browser reads");
        loop {
            let mut message = self.message(method).await;
            if message["id"] == self.last_id {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].take();
            }
            self.record_event(&message);
        }
    }

    async fn message(&mut self, method: &str) -> Value {
        let mut bytes = Vec::new();
        let read = timeout(PATIENCE, self.answers.read_until(0, &mut bytes)).await;
        read.unwrap_or_else(|_| panic!("{method}: no answer")).expect("the browser answers");
        assert_eq!(bytes.pop(), Some(0), "{method}: the browser ended");
        serde_json::from_slice(&bytes).expect("JSON")
    }

    fn record_event(&mut self, event: &Value) {
        let parameters = &event["params"];
        match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => {
                self.console_errors.push(parameters["exceptionDetails"].to_string());
            }
            Some("Runtime.consoleAPICalled") => self.console_errors.push(parameters["args"].to_string()),
            Some("Log.entryAdded") => self.console_errors.push(parameters["entry"].to_string()),
            Some("Network.requestWillBeSent") => {
                self.requested_urls.extend(parameters["request"]["url"].as_str().map(str::to_owned));
            }
            _ => {}
        }
    }
}

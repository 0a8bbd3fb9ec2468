//! Against an API server of a few canned answers.

use porch_fn_service::kubernetes::client;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::*;

/// What the API server says for now.
#[derive(Debug, Clone, Copy)]
struct Answers {
    list: u16,
    /// Whether discovery knows the kind.
    kind: bool,
}

/// An API server, and a runner's look at it.
struct Rig {
    answers: Arc<Mutex<Answers>>,
    /// Lists that were asked for.
    lists: watch::Receiver<usize>,
    state: watch::Receiver<Option<Arc<FunctionConfigs>>>,
    _tasks: JoinSet<()>,
}

// === impl Rig ===

impl Rig {
    async fn start(first: Answers) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let client = client(kube::Config::new(url.parse().unwrap())).unwrap();
        let answers = Arc::new(Mutex::new(first));
        let (listed, lists) = watch::channel(0);
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(listener, Arc::clone(&answers), listed));
        let source = Source {
            client,
            namespace: "ns".to_owned(),
            default_prefix: "example.com".to_owned(),
            retry_every: Duration::from_millis(1),
        };
        let (state, receiver) = watch::channel(None);
        let owned = watch::channel(Ownership::None).1;
        tasks.spawn(follow(source, owned, state, watch::Sender::default()));
        Self { answers, lists, state: receiver, _tasks: tasks }
    }

    /// Changes what the API server says, and waits until it was asked twice: what comes of the first is done then.
    async fn say(&mut self, answers: Answers) {
        *self.answers.lock() = answers;
        let asked = *self.lists.borrow();
        // One may have been asked, but not answered, before.
        self.lists.wait_for(|lists| *lists >= asked + 3).await.unwrap();
    }

    /// How many objects are in effect; `None` if that is not known.
    fn objects(&self) -> Option<usize> {
        self.state.borrow().as_ref().map(|configs| configs.iter().count())
    }
}

async fn serve(listener: TcpListener, answers: Arc<Mutex<Answers>>, listed: watch::Sender<usize>) {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let path = path(&mut stream).await;
        let Answers { list, kind } = *answers.lock();
        let (code, body) = if path.contains("watch=") {
            refusal(500)
        } else if path.contains("/functionconfigs") {
            listed.send_modify(|lists| *lists += 1);
            if list == 200 { (200, objects()) } else { refusal(list) }
        } else if kind {
            (200, resources())
        } else {
            refusal(404)
        };
        let body = body.to_string();
        let head =
            format!("HTTP/1.1 {code} X\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    }
}

/// What a request asks for.
async fn path(stream: &mut TcpStream) -> String {
    let mut read = Vec::new();
    while !read.ends_with(b"\r\n\r\n") {
        read.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(read).unwrap().split(' ').nth(1).unwrap().to_owned()
}

fn refusal(code: u16) -> (u16, Value) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "x", "message": "x",
        "code": code});
    (code, status)
}

fn objects() -> Value {
    let item = json!({
        "apiVersion": "config.porch.kpt.dev/v1alpha1",
        "kind": "FunctionConfig",
        "metadata": {"name": "f", "namespace": "ns", "uid": "u", "resourceVersion": "1", "generation": 1},
        "spec": {"image": "f", "podExecutor": {}},
    });
    json!({"apiVersion": "config.porch.kpt.dev/v1alpha1", "kind": "FunctionConfigList",
        "metadata": {"resourceVersion": "1"}, "items": [item]})
}

fn resources() -> Value {
    let kind = json!({"name": PLURAL, "singularName": "", "namespaced": true, "kind": "FunctionConfig",
        "verbs": ["list"]});
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{GROUP}/{VERSION}"),
        "resources": [kind]})
}

const UNKNOWN: Answers = Answers { list: 404, kind: false };

#[tokio::test]
async fn one_answer_alone_takes_no_object_away() {
    let mut rig = Rig::start(Answers { list: 200, kind: true }).await;
    rig.state.wait_for(Option::is_some).await.unwrap();
    assert_eq!(rig.objects(), Some(1));
    rig.say(Answers { list: 404, kind: true }).await;
    assert_eq!(rig.objects(), Some(1), "discovery knows better");
    rig.say(Answers { list: 403, kind: true }).await;
    assert_eq!(rig.objects(), Some(1), "they are there, if out of sight");
    rig.say(UNKNOWN).await;
    assert_eq!(rig.objects(), Some(0), "they went with their kind");
}

#[tokio::test]
async fn nothing_is_known_before_an_answer() {
    let mut rig = Rig::start(Answers { list: 500, kind: true }).await;
    rig.say(Answers { list: 404, kind: true }).await;
    assert_eq!(rig.objects(), None);
    rig.say(UNKNOWN).await;
    assert_eq!(rig.objects(), Some(0), "there are none");
}

#[tokio::test]
async fn who_may_not_look_knows_what_there_is_to_know() {
    let mut rig = Rig::start(Answers { list: 403, kind: true }).await;
    rig.state.wait_for(Option::is_some).await.unwrap();
    assert_eq!(rig.objects(), Some(0));
}

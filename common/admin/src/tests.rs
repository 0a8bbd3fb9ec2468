//! The admin port over HTTP/1.1: clients that send or read nothing, pages that take long, names of the
//! server, and probes.

use super::*;
use std::io::{Read, Write};

use futures_util::FutureExt;
use http_body_util::BodyExt;
use prometheus_client::metrics::counter::Counter;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

async fn get(admin: &Admin, path: &str) -> (u16, String) {
    let response = admin.answer(&Request::get(path).body(()).unwrap()).await;
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_the_answer_is_disconnected() {
    let page = Page {
        path: "/large",
        content_type: JSON,
        policy: None,
        content: Box::new(|_| async { Ok("x".repeat(32 * 1024 * 1024).into()) }.boxed()),
    };
    let admin = Admin::new(Health::new(), None, vec![page], &[]);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    peer.write_all(b"GET /large HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    timeout(CONNECTION_TIMEOUT * 2, connection(stream, admin, Arc::default())).await.expect("it ends");
    // The request was read, and the answer had begun.
    assert_eq!(peer.read_u8().await.unwrap(), b'H');
}

#[tokio::test]
async fn probes_are_answered_despite_many_silent_clients() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let _serving = tokio::spawn(serve(listener, Admin::new(Health::new(), None, Vec::new(), &[])));
    let mut silent = Vec::new();
    for _ in 0..3 {
        for _ in 0..MAX_CONNECTIONS {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let mut probe = TcpStream::connect(address).await.unwrap();
        probe.write_all(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        let read = timeout(Duration::from_secs(1), probe.read_to_string(&mut answer)).await;
        read.expect("an answer in time").unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    // The oldest silent connections were closed.
    assert_eq!(silent[0].read(&mut [0]).await.unwrap_or_default(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_burst_of_clients_closes_no_connection_before_its_minimum_time() {
    let since = Instant::now();
    let mut tasks = JoinSet::new();
    let mut open: VecDeque<_> = (0..MAX_CONNECTIONS)
        .map(|_| Open { since, requested: Arc::default(), task: tasks.spawn(std::future::pending::<()>()) })
        .collect();
    open[0].requested.store(true, Ordering::Relaxed);
    make_room(&mut open).await;
    assert_eq!(since.elapsed(), GRACE);
    // Connections with a request are kept longer than connections without one.
    assert_eq!(open.len(), MAX_CONNECTIONS - 1);
    assert!(open[0].requested.load(Ordering::Relaxed));
}

#[test]
fn a_value_of_the_query_is_decoded() {
    for (query, expected) in [
        ("image=a%2Fb:v1%40x%26y&x=1", Some("a/b:v1@x&y")),
        ("x=1&image=f=g", Some("f=g")),
        ("image=", None),
        ("image", None),
        ("images=f", None),
        ("", None),
    ] {
        assert_eq!(query_value(query, "image").as_deref(), expected, "{query}");
    }
}

#[tokio::test]
async fn pages_and_probes() {
    let health = Health::new();
    let mut registry = Registry::default();
    let counter = Counter::<u64>::default();
    registry.register("calls", "Calls", counter.clone());
    counter.inc();
    let page = Page {
        path: "/shards",
        content_type: JSON,
        policy: None,
        content: Box::new(|query| {
            let content = match query {
                "no" => Err((StatusCode::BAD_REQUEST, "not so".to_owned())),
                "busy" => Err((StatusCode::SERVICE_UNAVAILABLE, "later".to_owned())),
                query => Ok(format!("{{{query}}}").into()),
            };
            async { content }.boxed()
        }),
    };
    let for_people = Page {
        path: "/",
        content_type: HTML,
        policy: Some(HeaderValue::from_static("script-src 'self'")),
        content: Box::new(|_| async { Ok("<p>".into()) }.boxed()),
    };
    let admin = Admin::new(health.clone(), Some(registry), vec![page, for_people], &[]);
    assert_eq!(get(&admin, "/healthz").await.0, 200);
    assert_eq!(get(&admin, "/readyz").await.0, 503);
    health.set("", true);
    assert_eq!(get(&admin, "/readyz").await.0, 200);
    assert!(get(&admin, "/metrics").await.1.contains("calls_total 1"));
    assert_eq!(get(&admin, "/shards").await, (200, "{}".to_owned()));
    assert_eq!(get(&admin, "/shards?a=b").await, (200, "{a=b}".to_owned()));
    assert_eq!(get(&admin, "/shards?no").await, (400, "not so".to_owned()));
    let busy = admin.answer(&Request::get("/shards?busy").body(()).unwrap()).await;
    assert_eq!((busy.status().as_u16(), busy.headers()[header::RETRY_AFTER].to_str().unwrap()), (503, "1"));
    assert_eq!(get(&admin, "/x").await, (404, "pages: /metrics /healthz /readyz /shards /\n".to_owned()));
    assert_eq!(admin.answer(&Request::post("/metrics").body(()).unwrap()).await.status(), 405);
    assert_eq!(get(&Admin::new(health, None, Vec::new(), &[]), "/metrics").await.0, 404);
    // Only a page with its own policy may run anything.
    for (path, policy) in [
        ("/", "script-src 'self'"),
        ("/shards", NOTHING.to_str().unwrap()),
        ("/x", NOTHING.to_str().unwrap()),
    ] {
        let response = admin.answer(&Request::get(path).body(()).unwrap()).await;
        assert_eq!(response.headers()[header::CONTENT_SECURITY_POLICY], policy, "{path}");
        assert_eq!(response.headers()[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
    }
}

/// Serves `page`, sends the bytes of a request, and returns the answer.
async fn answer_to(page: Page, request: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let _serving = tokio::spawn(serve(listener, Admin::new(Health::new(), None, vec![page], &[])));
    client.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn a_page_that_blocks_its_thread_delays_no_task_of_the_server() {
    let (begun, mut has_begun) = tokio::sync::mpsc::unbounded_channel();
    let (task_ran, waits) = std::sync::mpsc::channel();
    let waits = parking_lot::Mutex::new(waits);
    let content = move |_: &str| {
        begun.send(()).unwrap();
        let waited = waits.lock().recv_timeout(Duration::from_secs(10));
        async move { Ok(format!("{waited:?}").into()) }.boxed()
    };
    let page = Page { path: "/slow", content_type: JSON, policy: None, content: Box::new(content) };
    tokio::spawn(async move {
        has_begun.recv().await;
        task_ran.send(()).unwrap();
    });
    let answer = answer_to(page, "GET /slow HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert!(answer.ends_with("Ok(())"), "{answer}");
}

#[tokio::test]
async fn a_foreign_name_gets_no_page_but_probes() {
    for (path, host, expected) in [
        ("/page", "host: evil.example\r\n", "HTTP/1.1 403"),
        ("/page", "host: a\r\nhost: evil.example\r\n", "HTTP/1.1 403"),
        ("/metrics", "host: evil.example\r\n", "HTTP/1.1 403"),
        ("/page", "host: 127.0.0.1:1\r\n", "HTTP/1.1 200"),
        ("/page", "", "HTTP/1.1 200"),
        ("/healthz", "host: evil.example\r\n", "HTTP/1.1 200"),
        ("/readyz", "host: evil.example\r\n", "HTTP/1.1 503"),
    ] {
        let content = |_: &str| async { Ok("page".into()) }.boxed();
        let page = Page { path: "/page", content_type: JSON, policy: None, content: Box::new(content) };
        let answer = answer_to(page, &format!("GET {path} HTTP/1.1\r\n{host}\r\n")).await;
        assert!(answer.starts_with(expected), "{path} {host} {answer}");
        assert_eq!(answer.contains("--admin-hosts"), expected.ends_with("403"), "{answer}");
    }
}

#[tokio::test]
async fn while_the_threads_of_calls_hang_only_probes_have_no_answer() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let _serving = tokio::spawn(serve(listener, Admin::new(Health::new(), None, Vec::new(), &[])));
    yield_now().await;
    // From here to the next `await`, the runtime hangs.
    let ask = |path: &str| {
        let mut client = std::net::TcpStream::connect(address).unwrap();
        write!(client, "GET {path} HTTP/1.1\r\n\r\n").unwrap();
        client
    };
    let read = |mut client: std::net::TcpStream, limit: Duration| {
        let mut answer = String::new();
        client.set_read_timeout(Some(limit)).unwrap();
        client.read_to_string(&mut answer).map(|_| answer)
    };
    let (health, ready) = (ask("/healthz"), ask("/readyz"));
    let other = read(ask("/metrics"), Duration::from_secs(10)).unwrap();
    assert!(other.starts_with("HTTP/1.1 404"), "{other}");
    for probe in [&health, &ready] {
        read(probe.try_clone().unwrap(), Duration::from_millis(100)).unwrap_err();
    }
    let limit = Duration::from_secs(10);
    let health = tokio::task::spawn_blocking(move || read(health, limit)).await.unwrap().unwrap();
    assert!(health.starts_with("HTTP/1.1 200"), "{health}");
}

//! Redirects and addresses, checked at the connection. `localhost` stands for a name that looks
//! public.

use std::net::SocketAddr;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use http::StatusCode;

use super::*;

/// Without proxies, whatever the environment has.
async fn http() -> Http {
    let trusted = Roots::system().trusted().await;
    let http = Http::new(&trusted, "test", Insecure::default()).unwrap();
    Http { proxies: Arc::new(Matcher::builder().build()), ..http }
}

/// Redirects `/` to `/there` at 127.0.0.1, and keeps its connections open; the requests that came.
async fn server() -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let seen = Arc::<Mutex<Vec<String>>>::default();
    let requests = Arc::clone(&seen);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let requests = Arc::clone(&requests);
            tokio::spawn(async move {
                let mut buffer = [0; 4096];
                while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                    let request = String::from_utf8_lossy(&buffer[..read]).into_owned();
                    let status =
                        if request.starts_with("GET / ") { "307 Temporary Redirect" } else { "200 OK" };
                    requests.lock().push(request);
                    let place = format!("http://me:pw@127.0.0.1:{}/there", address.port());
                    let reply =
                        format!("HTTP/1.1 {status}\r\nlocation: {place}\r\ncontent-length: 0\r\n\r\n");
                    stream.write_all(reply.as_bytes()).await.unwrap();
                }
            });
        }
    });
    (address, seen)
}

fn lines(seen: &Mutex<Vec<String>>) -> Vec<String> {
    seen.lock().iter().map(|request| request.lines().next().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_name_that_resolves_to_another_class_is_not_connected_to() {
    let (address, seen) = server().await;
    let url = format!("http://localhost:{}/there", address.port());
    let http = http().await;
    // Loopback is the second: its connection is kept, and not used for the others.
    for class in AddressClass::ALL {
        let sent = http.guarded[class as usize].get(&url).send().await;
        if class == AddressClass::Loopback {
            sent.unwrap();
            continue;
        }
        assert_eq!(why(sent.unwrap_err()), RegistryError::InternalAddress);
    }
    assert_eq!(lines(&seen), ["GET /there HTTP/1.1"]);
}

#[tokio::test]
async fn a_registry_is_where_it_is_connected_to() {
    let (address, seen) = server().await;
    let trusted = Roots::system().trusted().await;
    let any = Client::builder().no_proxy().redirect(Policy::none()).resolve("registry.invalid", address);
    let any = any.tls_backend_preconfigured(tls(&trusted).unwrap()).build().unwrap();
    let http = Http { any, ..http().await };
    let url = Url::parse(&format!("http://registry.invalid:{}/", address.port())).unwrap();
    let send =
        async |http: &Http, registry| http.send(Request::new(Method::GET, url.clone()), registry).await;

    let response = send(&http, None).await.unwrap();
    assert_eq!((response.status(), http.class_of(&response)), (StatusCode::OK, AddressClass::Loopback));
    assert_eq!(lines(&seen), ["GET / HTTP/1.1", "GET /there HTTP/1.1"]);
    assert!(!seen.lock()[1].contains("authorization"), "{seen:?}");

    // Others lead to the same URL by the resolver, and not to its addresses by their text.
    let unresolved = send(&http, Some(AddressClass::Loopback)).await;
    assert_eq!(unresolved.unwrap_err(), RegistryError::Unreachable);
    let literal = Url::parse(&format!("http://{address}/there")).unwrap();
    let posted = http.send(Request::new(Method::POST, literal), Some(AddressClass::Public)).await;
    assert_eq!(posted.unwrap_err(), RegistryError::InternalAddress);
    assert_eq!(lines(&seen).len(), 2);

    // A connection to a proxy says nothing of the registry.
    let proxies = Arc::new(Matcher::builder().all(format!("http://{address}")).no("127.0.0.1").build());
    let refused = send(&Http { proxies, ..http }, None).await;
    assert_eq!(refused.unwrap_err(), RegistryError::InternalAddress);
    assert_eq!(lines(&seen)[2..], ["GET / HTTP/1.1"]);
}

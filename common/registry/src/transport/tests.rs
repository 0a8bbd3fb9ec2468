//! Tests of the address check of each connection. `localhost` stands for a registry's name that
//! resolves to loopback.

use http::StatusCode;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;

/// Starts a server that redirects `/` to `/there`, with a user in the URL. Returns its address and
/// requests.
async fn server() -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (seen, place) = (Arc::<Mutex<Vec<String>>>::default(), address.clone());
    let requests = Arc::clone(&seen);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut buffer = [0; 4096];
            let Ok(read @ 1..) = stream.read(&mut buffer).await else { continue };
            let request = String::from_utf8_lossy(&buffer[..read]).into_owned();
            let status = if request.starts_with("GET / ") { "307 Temporary Redirect" } else { "200 OK" };
            requests.lock().push(request);
            let head = format!("HTTP/1.1 {status}\r\nlocation: http://me:pw@{place}/there\r\n");
            let reply = format!("{head}content-length: 0\r\nconnection: close\r\n\r\n");
            stream.write_all(reply.as_bytes()).await.unwrap();
        }
    });
    (address, seen)
}

fn http() -> Http {
    Http::new(RootCertStore::empty(), Vec::new(), &[], true).unwrap()
}

#[tokio::test]
async fn a_name_that_resolves_to_a_forbidden_class_is_rejected() {
    let (address, seen) = server().await;
    let url = format!("http://{}/there", address.replace("127.0.0.1", "localhost"));
    let http = http();
    for class in AddressClass::ALL {
        let sent = http.guarded[class as usize].get(&url).send().await.map_err(why);
        let expected =
            if class == AddressClass::Loopback { None } else { Some(RegistryError::InternalAddress) };
        assert_eq!(sent.err(), expected, "{class:?}");
    }
    assert_eq!(seen.lock().len(), 1);
}

#[tokio::test]
async fn the_class_of_a_registry_follows_from_its_connection() {
    let (address, seen) = server().await;
    let name = "registry.invalid";
    let any = Client::builder().no_proxy().redirect(Policy::none()).resolve(name, address.parse().unwrap());
    let tls = tls(RootCertStore::empty(), Vec::new()).unwrap();
    let any = any.tls_backend_preconfigured(tls).build().unwrap();
    // Ignore the proxies of the environment.
    let http = Http { any, proxies: Arc::new(Matcher::builder().build()), ..http() };
    let url = format!("http://{}/", address.replace("127.0.0.1", name));
    let request = |http: &Http| http.any.get(&url);

    let response = http.send(request(&http), None).await.unwrap();
    assert_eq!((response.status(), http.class_of(&response)), (StatusCode::OK, AddressClass::Loopback));
    let requests: Vec<String> = std::mem::take(&mut *seen.lock());
    assert!(requests.len() == 2 && requests[1].starts_with("GET /there HTTP/1.1"), "{requests:?}");
    assert!(!requests[1].contains("authorization"), "{requests:?}");

    // Behind a proxy, the connection's address is the proxy's, not the registry's.
    let proxies = Arc::new(Matcher::builder().all(format!("http://{address}")).no("127.0.0.1").build());
    let http = Http { proxies, ..http };
    assert_eq!(http.send(request(&http), None).await.unwrap_err(), RegistryError::InternalAddress);
    assert_eq!(seen.lock().len(), 1);
}

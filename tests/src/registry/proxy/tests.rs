//! The proxy in front of registries keeps the rules that it is to test clients by.

use std::net::Ipv4Addr;

use super::*;

const HOME: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Answers every request with a tag list, in the wrong order.
async fn upstream() -> SocketAddr {
    let listener = TcpListener::bind((HOME, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(list)));
        }
    });
    address
}

async fn list(_: Request<Incoming>) -> Result<Answer, Broken> {
    Ok(answer(StatusCode::OK, &json!({"name": "a/b", "tags": ["c", "a", "b"]})))
}

/// Status, challenge or link, and body.
async fn ask(
    proxy: &RegistryProxy,
    method: &str,
    path: &str,
    authorization: &str,
    form: &str,
) -> (u16, String, Value) {
    let request = Request::builder().method(method).uri(path).header(AUTHORIZATION, authorization);
    let stream = TcpStream::connect(proxy.address()).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = request.header(HOST, "proxy").body(Full::<Bytes>::from(form.to_owned())).unwrap();
    let answered = sender.send_request(request).await.unwrap();
    let header =
        [header::WWW_AUTHENTICATE, LINK].iter().find_map(|name| answered.headers().get(name).cloned());
    let header = header.map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default();
    let status = answered.status().as_u16();
    let body = answered.into_body().collect().await.unwrap().to_bytes();
    (status, header, serde_json::from_slice(&body).unwrap_or_default())
}

#[tokio::test]
async fn a_token_is_got_with_a_password_or_an_identity_and_is_good_for_one_repository() {
    let lifetime = Duration::from_mins(1);
    let proxy = RegistryProxy::start(HOME, upstream().await, Auth::Token { lifetime }).await;
    let user = User::new("one", "secret");
    proxy.set_users(&[&user]);
    proxy.set_identities(&["an identity"]);
    let tags = "/v2/a/b/tags/list";
    let (status, challenge, _) = ask(&proxy, "GET", tags, "", "").await;
    let address = proxy.address();
    let expected = format!(
        "Bearer realm=\"http://{address}/token\",service=\"registry at {address}\",scope=\"repository:a/b:pull\""
    );
    assert_eq!((status, challenge), (401, expected));

    let query = format!("service=registry+at%20{address}&scope=repository%3Aa/b:pull");
    let basic = format!("Basic {}", basic(&user));
    let (status, _, by_password) = ask(&proxy, "GET", &format!("/token?{query}"), &basic, "").await;
    assert_eq!(status, 200);
    let form = format!("grant_type=refresh_token&refresh_token=an+identity&{query}");
    let (status, _, by_identity) = ask(&proxy, "POST", "/token", "", &form).await;
    assert_eq!(status, 200);
    let bearers = [&by_password["token"], &by_identity["access_token"]]
        .map(|token| format!("Bearer {}", token.as_str().unwrap()));
    for bearer in &bearers {
        assert_eq!(ask(&proxy, "GET", tags, bearer, "").await.0, 200);
        let (status, challenge, _) = ask(&proxy, "GET", "/v2/other/tags/list", bearer, "").await;
        assert!(status == 401 && challenge.ends_with("error=\"insufficient_scope\""), "{challenge}");
    }
    proxy.revoke();
    for bearer in &bearers {
        let (status, challenge, _) = ask(&proxy, "GET", tags, bearer, "").await;
        assert!(status == 401 && challenge.ends_with("error=\"invalid_token\""), "{challenge}");
    }
    proxy.set_users(&[&User::new("one", "another")]);
    assert_eq!(ask(&proxy, "GET", &format!("/token?{query}"), &basic, "").await.0, 401);
    assert_eq!(proxy.count(Kind::Token), 3);
    assert_eq!(proxy.tokens().len(), 2);
}

#[tokio::test]
async fn tags_come_in_pages_and_requests_are_counted() {
    let proxy = RegistryProxy::start(HOME, upstream().await, Auth::Open).await;
    proxy.set_page(2);
    let (_, link, body) = ask(&proxy, "GET", "/v2/a/b/tags/list?n=1000", "", "").await;
    assert_eq!(
        (link.as_str(), &body["tags"]),
        ("</v2/a/b/tags/list?last=b&n=2>; rel=\"next\"", &json!(["a", "b"]))
    );
    let (_, link, body) = ask(&proxy, "GET", "/v2/a/b/tags/list?last=b&n=2", "", "").await;
    assert_eq!((link.as_str(), &body["tags"]), ("", &json!(["c"])));

    proxy.fail(Some(StatusCode::SERVICE_UNAVAILABLE));
    assert_eq!(ask(&proxy, "HEAD", "/v2/a/b/manifests/sha256:1", "", "").await.0, 503);
    proxy.fail(None);
    ask(&proxy, "GET", "/v2/", "", "").await;
    assert_eq!(proxy.counts(), BTreeMap::from([("a/b".to_owned(), 3), (String::new(), 1)]));
    let manifest = &proxy.asked()[2];
    let (kind, reference) = (manifest.kind, manifest.reference.as_str());
    assert_eq!((kind, reference, manifest.status), (Kind::Manifest, "sha256:1", 503));
}

//! A registry in front of another that counts what it is asked, gives tokens out by the distribution specification, has
//! its tag lists in pages, and fails when it is told to.

mod asked;
mod tokens;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, LINK, TRANSFER_ENCODING};
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

pub use asked::{Asked, Kind};
use tokens::Tokens;

use super::{User, basic};

/// What it wants before it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Auth {
    /// Nothing.
    Open,
    /// User and password with each request.
    Basic,
    /// A token for the repository, which user and password, or an identity token, get.
    Token {
        /// How long it is good for.
        lifetime: Duration,
    },
}

/// The registry. Dropping it ends it.
#[derive(Debug)]
pub struct RegistryProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    serving: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    address: SocketAddr,
    upstream: SocketAddr,
    auth: Auth,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    asked: Vec<Asked>,
    users: Vec<User>,
    /// What `docker login` calls identity tokens.
    identities: Vec<String>,
    tokens: Tokens,
    failure: Option<StatusCode>,
    page: Option<usize>,
}

type Broken = Box<dyn std::error::Error + Send + Sync>;
type Answer = Response<Full<Bytes>>;

// === impl RegistryProxy ===

impl RegistryProxy {
    /// Listens on a free port of `ip`, in front of the open registry at `upstream`.
    ///
    /// # Panics
    /// When it cannot.
    pub async fn start(ip: IpAddr, upstream: SocketAddr, auth: Auth) -> Self {
        let listener = TcpListener::bind((ip, 0)).await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared { address, upstream, auth, state: Mutex::default() });
        let serving = tokio::spawn(serve(listener, Arc::clone(&shared)));
        Self { address, shared, serving }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `HOST:PORT/PATH`.
    pub fn image(&self, path: &str) -> String {
        format!("{}/{path}", self.address)
    }

    /// From now on these users and no others have access. Tokens that were given out stay good.
    pub fn set_users(&self, users: &[&User]) {
        self.shared.state().users = users.iter().map(|user| (*user).clone()).collect();
    }

    /// From now on these identity tokens and no others get tokens.
    pub fn set_identities(&self, identities: &[&str]) {
        self.shared.state().identities = identities.iter().map(ToString::to_string).collect();
    }

    /// Tokens given out so far are good no more.
    pub fn revoke(&self) {
        self.shared.state().tokens.revoke();
    }

    /// All tokens that were ever given out.
    pub fn tokens(&self) -> Vec<String> {
        self.shared.state().tokens.all()
    }

    /// From now on it answers with this status, or as it should.
    pub fn fail(&self, status: Option<StatusCode>) {
        self.shared.state().failure = status;
    }

    /// At most so many tags are in one answer.
    pub fn set_page(&self, tags: usize) {
        self.shared.state().page = Some(tags);
    }

    /// What it was asked so far, in order, whatever it answered.
    pub fn asked(&self) -> Vec<Asked> {
        self.shared.state().asked.clone()
    }

    /// How many requests there were so far, by repository. Those for tokens have the repository of their scope; the
    /// question whether there is a registry at all has none.
    pub fn counts(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for asked in &self.shared.state().asked {
            *counts.entry(asked.repository.clone()).or_default() += 1;
        }
        counts
    }

    /// How many requests of one kind there were so far.
    pub fn count(&self, kind: Kind) -> usize {
        self.shared.state().asked.iter().filter(|asked| asked.kind == kind).count()
    }
}

impl Drop for RegistryProxy {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok((stream, _)) = listener.accept().await else { continue };
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            let answer = service_fn(move |request| passed(Arc::clone(&shared), request));
            // A connection that breaks is the client's to notice.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
        });
    }
}

/// An error closes the connection without an answer.
async fn passed(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Answer, Broken> {
    let (head, body) = request.into_parts();
    let request = Request::from_parts(head, body.collect().await?.to_bytes());
    let mut asked = Asked::of(&request);
    let answered = shared.decide(&asked, request).await?;
    asked.status = answered.status().as_u16();
    shared.state().asked.push(asked);
    Ok(answered)
}

// === impl Shared ===

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn decide(&self, asked: &Asked, request: Request<Bytes>) -> Result<Answer, Broken> {
        if let Some(status) = self.state().failure {
            return Ok(refused(status, "UNKNOWN"));
        }
        if asked.kind == Kind::Token {
            return Ok(self.token(asked, &request));
        }
        if let Some(refused) = self.refuses(asked, &request) {
            return Ok(refused);
        }
        let page = self.state().page;
        match page {
            Some(size) if asked.kind == Kind::Tags => self.page(asked, request, size).await,
            _ => forward(self.upstream, request).await,
        }
    }

    /// The answer to one who may not ask that.
    fn refuses(&self, asked: &Asked, request: &Request<Bytes>) -> Option<Answer> {
        let given = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let state = self.state();
        let challenge = match self.auth {
            Auth::Open => return None,
            Auth::Basic if state.is_user(given) => return None,
            Auth::Basic => "Basic realm=\"test\"".to_owned(),
            Auth::Token { .. } => {
                let token = given.and_then(|given| given.strip_prefix("Bearer "));
                let flaw = match token {
                    Some(token) => state.tokens.flaw(token, &asked.repository)?,
                    None => "",
                };
                let scope = match asked.repository.as_str() {
                    "" => String::new(),
                    repository => format!(",scope=\"repository:{repository}:pull\""),
                };
                let service = self.service();
                format!("Bearer realm=\"http://{}/token\",service=\"{service}\"{scope}{flaw}", self.address)
            }
        };
        let mut answer = refused(StatusCode::UNAUTHORIZED, "UNAUTHORIZED");
        answer.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_str(&challenge).ok()?);
        Some(answer)
    }

    fn service(&self) -> String {
        format!("registry at {}", self.address)
    }

    /// `GET` with user and password, or a form with those or an identity token.
    fn token(&self, asked: &Asked, request: &Request<Bytes>) -> Answer {
        let Auth::Token { lifetime } = self.auth else {
            return refused(StatusCode::NOT_FOUND, "UNKNOWN");
        };
        let fields = asked::fields(request);
        let field = |name: &str| fields.get(name).map_or("", String::as_str);
        let mut state = self.state();
        let known = match field("grant_type") {
            "refresh_token" => state.identities.iter().any(|identity| identity == field("refresh_token")),
            "password" => state.users.contains(&User::new(field("username"), field("password"))),
            _ => state.is_user(request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok())),
        };
        if !known || field("service") != self.service() {
            return refused(StatusCode::UNAUTHORIZED, "UNAUTHORIZED");
        }
        let token = state.tokens.issue(&asked.repository, lifetime);
        let seconds = lifetime.as_secs();
        // One of the two names each, as there are servers.
        let body = match request.method() {
            &http::Method::POST => {
                json!({"access_token": token, "expires_in": seconds, "scope": field("scope")})
            }
            _ => json!({"token": token, "expires_in": seconds}),
        };
        answer(StatusCode::OK, &body)
    }

    /// A part of the tag list, and where the next one is. The registry behind knows no pages.
    async fn page(&self, asked: &Asked, request: Request<Bytes>, size: usize) -> Result<Answer, Broken> {
        let fields = asked::fields(&request);
        let whole = forward(self.upstream, request).await?;
        if whole.status() != StatusCode::OK {
            return Ok(whole);
        }
        let whole: Value = serde_json::from_slice(&whole.into_body().collect().await?.to_bytes())?;
        let mut tags: Vec<&str> =
            whole["tags"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        tags.sort_unstable();
        if let Some(last) = fields.get("last") {
            tags.retain(|tag| *tag > last.as_str());
        }
        let size = fields.get("n").and_then(|n| n.parse().ok()).unwrap_or(size).min(size);
        let more = tags.len() > size;
        tags.truncate(size);
        let mut answer = answer(StatusCode::OK, &json!({"name": asked.repository, "tags": tags}));
        if let Some(last) = tags.last().filter(|_| more) {
            let link = format!("</v2/{}/tags/list?last={last}&n={size}>; rel=\"next\"", asked.repository);
            answer.headers_mut().insert(LINK, HeaderValue::from_str(&link)?);
        }
        Ok(answer)
    }
}

// === impl State ===

impl State {
    fn is_user(&self, authorization: Option<&str>) -> bool {
        let given = authorization.and_then(|given| given.strip_prefix("Basic "));
        given.is_some_and(|given| self.users.iter().any(|user| basic(user) == given))
    }
}

fn answer(status: StatusCode, body: &Value) -> Answer {
    let mut answer = Response::new(Full::from(body.to_string()));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

/// An error by the distribution specification.
fn refused(status: StatusCode, code: &str) -> Answer {
    answer(status, &json!({"errors": [{"code": code, "message": "a failure of the test", "detail": null}]}))
}

async fn forward(upstream: SocketAddr, request: Request<Bytes>) -> Result<Answer, Broken> {
    let (mut head, body) = request.into_parts();
    head.uri = head.uri.path_and_query().map_or("/", |path| path.as_str()).parse()?;
    for name in [CONNECTION, TRANSFER_ENCODING, AUTHORIZATION, CONTENT_LENGTH] {
        head.headers.remove(name);
    }
    head.headers.insert(HOST, HeaderValue::from_str(&upstream.to_string())?);
    let stream = TcpStream::connect(upstream).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let answered = sender.send_request(Request::from_parts(head, Full::<Bytes>::from(body))).await?;
    let (mut head, body) = answered.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    connection.abort();
    for name in [CONNECTION, TRANSFER_ENCODING] {
        head.headers.remove(name);
    }
    Ok(Response::from_parts(head, Full::from(body)))
}

#[cfg(test)]
mod tests;

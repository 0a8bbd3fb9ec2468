//! One lookup's requests to one registry, shown with what the registry wants to see.
//!
//! What a registry wants is asked of it once and remembered, so that the requests of later images do not begin with one
//! that is refused. A refusal makes us read the credentials again, once: they may have been rotated.

use std::sync::Arc;

use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderValue, Method, StatusCode};
use parking_lot::Mutex;
use porch_fn_image::Image;
use reqwest::{Response, Url};
use tokio::sync::{MutexGuard, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::RegistryError;
use crate::auth::{BearerChallenge, Challenge, TOKEN, challenge, parse_token};
use crate::credentials::CredentialFile;
use crate::docker_config::Credential;
use crate::manifest::malformed;
use crate::secret::{Secret, basic_header, bearer_header};
use crate::tokens::{TokenCache, TokenKey};
use crate::transport::{BodyError, Http, Insecure, Transport, meaning, read_body, was_closed};

/// Names us to token servers.
const CLIENT_ID: &str = "porch-fn";
const MAX_TOKEN_BODY: usize = 64 << 10;
/// The first, one with what was asked for, one with a new token or challenge, one with new credentials.
const MAX_ATTEMPTS: usize = 4;
/// So that one hanging registry leaves some of all requests to the others.
const PER_REGISTRY: usize = 4;

/// What all lookups share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) transport: Transport,
    pub(crate) credentials: CredentialFile,
    pub(crate) insecure: Insecure,
    pub(crate) tokens: Mutex<TokenCache>,
}

/// What is known of a registry.
#[derive(Debug)]
pub(crate) struct Peer {
    scheme: Mutex<Option<Scheme>>,
    /// While nothing is known one finds out, and the others wait.
    first: tokio::sync::Mutex<()>,
    pub(crate) permits: Arc<Semaphore>,
}

/// What a registry wants to see.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Scheme {
    Open,
    Basic,
    /// In [`Peer`], without the scope: that is the image's.
    Bearer(BearerChallenge),
}

/// What was shown.
struct Shown {
    header: Option<HeaderValue>,
    /// A token from before, which the registry may have taken back.
    cached: bool,
}

/// Why no token came.
enum NoToken {
    Refused,
    Failed(RegistryError),
}

/// One lookup.
pub(crate) struct Session<'a> {
    shared: &'a Shared,
    peer: Arc<Peer>,
    http: Http,
    image: &'a Image,
    base: Url,
    credential: Option<Credential>,
    /// The credentials were read again.
    renewed: bool,
    _permits: [OwnedSemaphorePermit; 2],
}

// === impl Peer ===

impl Peer {
    pub(crate) fn new() -> Self {
        Self {
            scheme: Mutex::default(),
            first: tokio::sync::Mutex::default(),
            permits: Arc::new(Semaphore::new(PER_REGISTRY)),
        }
    }

    fn scheme(&self) -> Option<Scheme> {
        self.scheme.lock().clone()
    }

    fn learn(&self, scheme: Option<Scheme>) {
        *self.scheme.lock() = scheme.map(|scheme| match scheme {
            Scheme::Bearer(challenge) => Scheme::Bearer(BearerChallenge { scope: None, ..challenge }),
            scheme => scheme,
        });
    }
}

// === impl Session ===

impl<'a> Session<'a> {
    pub(crate) async fn new(
        shared: &'a Shared,
        peer: Arc<Peer>,
        image: &'a Image,
        permits: [OwnedSemaphorePermit; 2],
    ) -> Result<Self, RegistryError> {
        let host = match image.registry() {
            "docker.io" => "registry-1.docker.io",
            other => other,
        };
        let scheme = if shared.insecure.holds(image.registry()) { "http" } else { "https" };
        let base = Url::parse(&format!("{scheme}://{host}/v2/{}/", path(image)))
            .map_err(|_| malformed("name", "it makes no URL"))?;
        let credential = shared.credentials.lookup(image).await?;
        let http = shared.transport.http().await?;
        Ok(Self { shared, peer, http, image, base, credential, renewed: false, _permits: permits })
    }

    /// The image's repository: `…/v2/NAME/`.
    pub(crate) fn base(&self) -> &Url {
        &self.base
    }

    /// Asks, and once more with what the registry wants to see.
    ///
    /// The answer is 200, or of HEAD any status that tells something.
    pub(crate) async fn send(
        &mut self,
        method: &Method,
        url: &Url,
        accept: &'static str,
        what: &'static str,
    ) -> Result<Response, RegistryError> {
        let peer = Arc::clone(&self.peer);
        let mut first: Option<MutexGuard<'_, ()>> = None;
        if peer.scheme().is_none() {
            first = Some(peer.first.lock().await);
        }
        let mut scheme = peer.scheme().map(|scheme| self.scoped(scheme));
        if scheme.is_some() {
            first = None;
        }
        for _ in 0..MAX_ATTEMPTS {
            let shown = match self.authorize(scheme.as_ref()).await {
                Ok(shown) => shown,
                Err(NoToken::Refused) => {
                    if self.renew().await? {
                        continue;
                    }
                    return Err(RegistryError::Unauthorized);
                }
                Err(NoToken::Failed(error)) => {
                    // The registry may have another token server now.
                    peer.learn(None);
                    return Err(error);
                }
            };
            let response = self.request(method, url, accept, shown.header.as_ref()).await?;
            let is_refusal = matches!(response.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
                // Storage that the registry sends us to does not know our credentials.
                && same_origin(response.url(), &self.base);
            if !is_refusal {
                if scheme.is_none() && !response.status().is_server_error() {
                    peer.learn(Some(Scheme::Open));
                }
                return check(response, method, what);
            }
            let headers = response.headers().get_all(WWW_AUTHENTICATE);
            let wanted = challenge(headers.iter().filter_map(|value| value.to_str().ok()));
            let wanted = wanted.map(|wanted| match wanted {
                Challenge::Basic => Scheme::Basic,
                Challenge::Bearer(challenge) => self.scoped(Scheme::Bearer(challenge)),
            });
            if wanted.is_some() {
                peer.learn(wanted.clone());
            }
            first = None;
            let is_news = wanted.is_some() && wanted != scheme;
            if is_news {
                scheme = wanted;
            } else if self.renewed || !(self.renew().await? || shown.cached) {
                break;
            }
        }
        drop(first);
        Err(RegistryError::Unauthorized)
    }

    /// The body of an answer.
    pub(crate) async fn body(
        &self,
        response: Response,
        what: &'static str,
        limit: usize,
    ) -> Result<Vec<u8>, RegistryError> {
        read_body(response, what, limit).await.map_err(|error| match error {
            BodyError::TooLarge(error) => error,
            BodyError::Broken(error) => self.failed(error),
        })
    }

    fn scoped(&self, scheme: Scheme) -> Scheme {
        match scheme {
            Scheme::Bearer(challenge) => Scheme::Bearer(BearerChallenge {
                scope: challenge.scope.or_else(|| Some(format!("repository:{}:pull", path(self.image)))),
                ..challenge
            }),
            scheme => scheme,
        }
    }

    /// Reads the credentials again, once, and forgets what they brought. Whether there are others now.
    async fn renew(&mut self) -> Result<bool, RegistryError> {
        if self.renewed {
            return Ok(false);
        }
        self.renewed = true;
        self.shared.tokens.lock().forget(self.image.registry());
        self.shared.credentials.reload().await;
        let credential = self.shared.credentials.lookup(self.image).await?;
        let is_new = credential != self.credential;
        self.credential = credential;
        Ok(is_new)
    }

    async fn authorize(&self, scheme: Option<&Scheme>) -> Result<Shown, NoToken> {
        let fresh = |header| Shown { header, cached: false };
        match (scheme, &self.credential) {
            (None | Some(Scheme::Open), _)
            | (Some(Scheme::Basic), None | Some(Credential::Identity { .. })) => Ok(fresh(None)),
            (Some(_), Some(Credential::Bearer { token })) => Ok(fresh(bearer_header(token))),
            (Some(Scheme::Basic), Some(Credential::Basic { user, password })) => {
                Ok(fresh(basic_header(user, password)))
            }
            (Some(Scheme::Bearer(challenge)), credential) => {
                let key = TokenKey {
                    registry: self.image.registry().to_owned(),
                    challenge: challenge.clone(),
                    credential: credential.clone(),
                };
                let known = self.shared.tokens.lock().get(&key, Instant::now());
                if let Some(token) = known {
                    return Ok(Shown { header: bearer_header(&token), cached: true });
                }
                Ok(fresh(bearer_header(&self.fetch_token(key).await?)))
            }
        }
    }

    async fn fetch_token(&self, key: TokenKey) -> Result<Secret, NoToken> {
        let mut realm = self.realm(&key.challenge.realm).map_err(NoToken::Failed)?;
        let BearerChallenge { service, scope, .. } = &key.challenge;
        let mut pairs: Vec<(&str, &str)> = Vec::new();
        pairs.extend(service.as_deref().map(|service| ("service", service)));
        pairs.extend(scope.as_deref().map(|scope| ("scope", scope)));

        let asked_at = Instant::now();
        let request = if let Some(Credential::Identity { token }) = &key.credential {
            pairs.extend([
                ("grant_type", "refresh_token"),
                ("client_id", CLIENT_ID),
                ("refresh_token", token.expose()),
            ]);
            // A form is written as a query is.
            let mut form = realm.clone();
            form.query_pairs_mut().clear().extend_pairs(pairs);
            self.http
                .direct
                .post(realm)
                .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
                .body(form.query().unwrap_or_default().to_owned())
        } else {
            realm.query_pairs_mut().extend_pairs(pairs);
            let request = self.http.following.get(realm);
            match &key.credential {
                Some(Credential::Basic { user, password }) => match basic_header(user, password) {
                    Some(header) => request.header(AUTHORIZATION, header),
                    None => request,
                },
                _ => request,
            }
        };
        let response = request.send().await.map_err(|error| NoToken::Failed(self.failed(error)))?;
        match response.status() {
            StatusCode::OK => {}
            // OAuth 2 says 400 of a token that is no longer good.
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::BAD_REQUEST => {
                return Err(NoToken::Refused);
            }
            status => return Err(NoToken::Failed(unexpected(status, TOKEN))),
        }
        let body = self.body(response, TOKEN, MAX_TOKEN_BODY).await.map_err(NoToken::Failed)?;
        let token = parse_token(&body).map_err(NoToken::Failed)?;
        self.shared.tokens.lock().put(key, &token, asked_at);
        Ok(token.secret)
    }

    /// Where tokens come from: never a place that credentials go to in clear, unless the user said so.
    fn realm(&self, realm: &str) -> Result<Url, RegistryError> {
        let malformed = |reason| malformed(TOKEN, reason);
        let url = Url::parse(realm).map_err(|_| malformed("the realm is not a URL"))?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(malformed("the realm names a user"));
        }
        let insecure = &self.shared.insecure;
        match url.scheme() {
            "https" => Ok(url),
            "http" if insecure.holds(self.image.registry()) || insecure.holds_url(&url) => Ok(url),
            _ => Err(malformed(
                "its realm is not HTTPS, and credentials would be readable on their way; name the registry or the \
                 realm's host in --insecure-registries if that is meant",
            )),
        }
    }

    /// Sends once, or twice where a kept connection was closed meanwhile.
    async fn request(
        &self,
        method: &Method,
        url: &Url,
        accept: &'static str,
        authorization: Option<&HeaderValue>,
    ) -> Result<Response, RegistryError> {
        let send = || {
            let request = self.http.following.request(method.clone(), url.clone()).header(ACCEPT, accept);
            match authorization {
                Some(authorization) => request.header(AUTHORIZATION, authorization.clone()),
                None => request,
            }
            .send()
        };
        let sent = match send().await {
            Err(error) if was_closed(&error) => send().await,
            sent => sent,
        };
        sent.map_err(|error| self.failed(error))
    }

    /// Says the cause in the log, and what it means.
    fn failed(&self, error: reqwest::Error) -> RegistryError {
        let (error, cause) = meaning(error);
        let (registry, repository) = (self.image.registry(), self.image.repository());
        tracing::warn!(registry, repository, cause, "a registry was not reached");
        error
    }
}

/// The repository without its registry.
fn path(image: &Image) -> &str {
    &image.repository()[image.registry().len() + 1..]
}

pub(crate) fn same_origin(one: &Url, other: &Url) -> bool {
    one.scheme() == other.scheme()
        && one.host_str() == other.host_str()
        && one.port_or_known_default() == other.port_or_known_default()
}

fn check(response: Response, method: &Method, what: &'static str) -> Result<Response, RegistryError> {
    match response.status() {
        StatusCode::OK => Ok(response),
        // Without a body nothing else says why; GET will.
        StatusCode::BAD_REQUEST | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED
            if method == Method::HEAD =>
        {
            Ok(response)
        }
        StatusCode::NOT_FOUND => Err(RegistryError::NotFound),
        status => Err(unexpected(status, what)),
    }
}

fn unexpected(status: StatusCode, what: &'static str) -> RegistryError {
    if status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error() {
        RegistryError::Busy { status: status.as_u16() }
    } else {
        malformed(what, &format!("it came with status {}", status.as_u16()))
    }
}

//! One lookup's requests to one registry, shown with what the registry wants to see.
//!
//! What a registry wants is asked of it once and remembered, so that the requests of later images do not begin with one
//! that is refused. A refusal makes us read the credentials again, once: they may have been rotated.
//!
//! Some registries are open, and say of private images that they are not there. So whoever has credentials shows them
//! before that is believed.

use std::sync::Arc;

use http::header::WWW_AUTHENTICATE;
use http::{HeaderValue, Method, StatusCode};
use parking_lot::Mutex;
use porch_fn_image::Image;
use reqwest::{Response, Url};
use tokio::sync::{MutexGuard, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::RegistryError;
use crate::address_class::AddressClass;
use crate::auth::{BearerChallenge, Challenge, TOKEN, challenge, parse_token};
use crate::budget::Budget;
use crate::credentials::CredentialFile;
use crate::docker_config::Credential;
use crate::manifest::malformed;
use crate::peer::{Peer, Scheme};
use crate::requests::Http;
use crate::secret::{Secret, basic_header, bearer_header};
use crate::tokens::{TokenCache, TokenKey};
use crate::transport::{HttpError, Insecure, Transport, meaning, read_body};

/// Names us to token servers.
const CLIENT_ID: &str = "porch-fn";
const MAX_TOKEN_BODY: usize = 64 << 10;
/// The first, one with what was asked for, one with a new token or challenge, one with new credentials.
const MAX_ATTEMPTS: usize = 4;

/// What all lookups share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) transport: Transport,
    pub(crate) credentials: CredentialFile,
    pub(crate) insecure: Insecure,
    pub(crate) tokens: Mutex<TokenCache>,
    /// For lookups that hold much.
    pub(crate) large: Arc<Semaphore>,
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
    /// Why there is none, for any image.
    unusable: Option<String>,
    /// The credentials were read again.
    renewed: bool,
    /// What the registry wants to see before it shows what is private, though it is open.
    hidden: Option<Scheme>,
    /// That was asked.
    probed: bool,
    pub(crate) budget: Budget,
    _permits: [OwnedSemaphorePermit; 2],
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
        let (credential, unusable) = looked_up(shared, image).await;
        Ok(Self {
            http: shared.transport.http().await?,
            budget: Budget::new(Arc::clone(&shared.large)),
            shared,
            peer,
            image,
            base,
            credential,
            unusable,
            renewed: false,
            hidden: None,
            probed: false,
            _permits: permits,
        })
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
        if self.hidden.is_some() {
            scheme.clone_from(&self.hidden);
        }
        if scheme.is_some() {
            first = None;
        }
        for _ in 0..MAX_ATTEMPTS {
            let shown = match self.authorize(scheme.as_ref()).await {
                Ok(shown) => shown,
                Err(NoToken::Refused) => {
                    if self.renew().await {
                        continue;
                    }
                    return Err(self.refused());
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
                first = None;
                if response.status() == StatusCode::NOT_FOUND
                    && same_origin(response.url(), &self.base)
                    && self.may_be_hidden(scheme.as_ref()).await?
                {
                    scheme.clone_from(&self.hidden);
                    continue;
                }
                return check(response, method, what);
            }
            let wanted = self.wanted(&response);
            if self.hidden.is_some() {
                // What it wants of others stays as it is.
                self.hidden = wanted.clone().or(self.hidden.take());
            } else if wanted.is_some() {
                peer.learn(wanted.clone());
            }
            first = None;
            let is_news = wanted.is_some() && wanted != scheme;
            if is_news {
                scheme = wanted;
            } else if self.renewed || !(self.renew().await || shown.cached) {
                break;
            }
        }
        drop(first);
        Err(self.refused())
    }

    /// Whether an image that is not there for anybody may be there for us; then `hidden` says what to show.
    ///
    /// Asked once. Without usable credentials it is an error if the registry has something to hide.
    async fn may_be_hidden(&mut self, shown: Option<&Scheme>) -> Result<bool, RegistryError> {
        let is_open = matches!(shown, None | Some(Scheme::Open));
        if let (Some(Scheme::Basic), Some(problem)) = (shown, &self.unusable) {
            return Err(RegistryError::Credentials(problem.clone()));
        }
        if !is_open || self.probed || (self.credential.is_none() && self.unusable.is_none()) {
            return Ok(false);
        }
        self.probed = true;
        let Ok(top) = self.base.join("/v2/") else { return Ok(false) };
        // Its failure says nothing of the image.
        let Ok(response) = self.request(&Method::GET, &top, "*/*", None).await else { return Ok(false) };
        let wanted = self.wanted(&response).filter(|_| same_origin(response.url(), &self.base));
        if let Some(problem) = &self.unusable {
            return match wanted {
                Some(_) => Err(RegistryError::Credentials(problem.clone())),
                None => Ok(false),
            };
        }
        // It does not say what it wants: what can be shown without being asked.
        let unasked = !matches!(self.credential, Some(Credential::Identity { .. }));
        self.hidden = wanted.or(unasked.then_some(Scheme::Basic));
        Ok(self.hidden.is_some())
    }

    /// The scheme that a refusal asks for.
    fn wanted(&self, response: &Response) -> Option<Scheme> {
        let headers = response.headers().get_all(WWW_AUTHENTICATE);
        let wanted = challenge(headers.iter().filter_map(|value| value.to_str().ok()))?;
        Some(match wanted {
            Challenge::Basic => Scheme::Basic,
            Challenge::Bearer(challenge) => {
                self.scoped(Scheme::Bearer(challenge, self.http.class_of(response)))
            }
        })
    }

    fn refused(&self) -> RegistryError {
        match &self.unusable {
            Some(problem) => RegistryError::Credentials(problem.clone()),
            None => RegistryError::Unauthorized,
        }
    }

    /// The body of an answer.
    pub(crate) async fn body(
        &mut self,
        response: Response,
        what: &'static str,
        limit: usize,
    ) -> Result<Vec<u8>, RegistryError> {
        let read = read_body(response, what, limit, Some(&mut self.budget)).await;
        read.map_err(|error| self.failed(error))
    }

    fn scoped(&self, scheme: Scheme) -> Scheme {
        match scheme {
            Scheme::Bearer(challenge, registry) => {
                let scope = challenge.scope.or_else(|| Some(format!("repository:{}:pull", path(self.image))));
                Scheme::Bearer(BearerChallenge { scope, ..challenge }, registry)
            }
            scheme => scheme,
        }
    }

    /// Reads the credentials again, once, and forgets what they brought. Whether there are others now.
    async fn renew(&mut self) -> bool {
        if self.renewed {
            return false;
        }
        self.renewed = true;
        self.shared.tokens.lock().forget(self.image.registry());
        self.shared.credentials.reload().await;
        let (credential, unusable) = looked_up(self.shared, self.image).await;
        let is_new = credential != self.credential;
        (self.credential, self.unusable) = (credential, unusable);
        is_new
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
            (Some(Scheme::Bearer(challenge, registry)), credential) => {
                let key = TokenKey {
                    registry: self.image.registry().to_owned(),
                    challenge: challenge.clone(),
                    credential: credential.clone(),
                };
                let known = self.shared.tokens.lock().get(&key, Instant::now());
                if let Some(token) = known {
                    return Ok(Shown { header: bearer_header(&token), cached: true });
                }
                Ok(fresh(bearer_header(&self.fetch_token(key, *registry).await?)))
            }
        }
    }

    async fn fetch_token(&self, key: TokenKey, registry: AddressClass) -> Result<Secret, NoToken> {
        let mut realm = self.realm(&key.challenge.realm).map_err(NoToken::Failed)?;
        let BearerChallenge { service, scope, .. } = &key.challenge;
        let mut pairs: Vec<(&str, &str)> = Vec::new();
        pairs.extend(service.as_deref().map(|service| ("service", service)));
        pairs.extend(scope.as_deref().map(|scope| ("scope", scope)));

        let asked_at = Instant::now();
        let sent = if let Some(Credential::Identity { token }) = &key.credential {
            pairs.extend([
                ("grant_type", "refresh_token"),
                ("client_id", CLIENT_ID),
                ("refresh_token", token.expose()),
            ]);
            // A form is written as a query is.
            let mut form = realm.clone();
            form.query_pairs_mut().clear().extend_pairs(pairs);
            self.http.post_form(realm, form.query().unwrap_or_default(), registry).await
        } else {
            realm.query_pairs_mut().extend_pairs(pairs);
            let authorization = match &key.credential {
                Some(Credential::Basic { user, password }) => basic_header(user, password),
                _ => None,
            };
            self.http.send(&Method::GET, &realm, "*/*", authorization.as_ref(), Some(registry)).await
        };
        let response = sent.map_err(|error| NoToken::Failed(self.failed(error)))?;
        match response.status() {
            StatusCode::OK => {}
            // OAuth 2 says 400 of a token that is no longer good.
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::BAD_REQUEST => {
                return Err(NoToken::Refused);
            }
            status => return Err(NoToken::Failed(unexpected(status, TOKEN))),
        }
        let body = read_body(response, TOKEN, MAX_TOKEN_BODY, None).await;
        let body = body.map_err(|error| NoToken::Failed(self.failed(error)))?;
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

    async fn request(
        &self,
        method: &Method,
        url: &Url,
        accept: &'static str,
        authorization: Option<&HeaderValue>,
    ) -> Result<Response, RegistryError> {
        let sent = self.http.send(method, url, accept, authorization, None).await;
        sent.map_err(|error| self.failed(error))
    }

    /// Says the cause in the log, and what it means.
    fn failed(&self, error: HttpError) -> RegistryError {
        let (error, cause) = match error {
            HttpError::Registry(error) => return error,
            HttpError::Url(refused) => (refused.meaning(), refused.to_string()),
            HttpError::Reqwest(error) => meaning(error),
        };
        let (registry, repository) = (self.image.registry(), self.image.repository());
        tracing::warn!(registry, repository, cause, "a registry was not reached");
        error
    }
}

/// What to show for the image, or why nothing can be shown.
async fn looked_up(shared: &Shared, image: &Image) -> (Option<Credential>, Option<String>) {
    match shared.credentials.lookup(image).await {
        Ok(credential) => (credential, None),
        Err(problem) => (None, Some(problem)),
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

//! The authenticated requests of one lookup.
//!
//! Credentials for a registry are shown with the first request, like docker does: `/v2/` is asked
//! once for the challenge, which is remembered. A registry without a challenge gets the user and
//! password all the same: some are open, and answer 404 for private images. Without credentials the
//! first request is anonymous, and its refusal has the challenge. A refusal makes us read the
//! credentials again, once per lookup: they may have been rotated.

use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderName, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use porch_fn_image::Image;
use reqwest::{Request, Response, Url};
use tokio::time::Instant;

use crate::RegistryError;
use crate::auth::{BearerChallenge, Challenge, TOKEN, challenge, parse_token};
use crate::credentials::CredentialFile;
use crate::docker_config::{Credential, path_of};
use crate::secret::{Secret, basic_header, bearer_header};
use crate::transport::{Http, Transport, read_body, same_origin};

/// Names us to token servers.
const CLIENT_ID: &str = "porch-fn";
const MAX_TOKEN_BYTES: usize = 64 << 10;
/// The first, one with what was asked for, one with a new token or challenge, one with new
/// credentials.
const MAX_ATTEMPTS: usize = 4;
/// Registries with a known challenge.
const MAX_CHALLENGES: u64 = 256;
/// 50 images with a scope each, and room: a token may have some KiB.
const MAX_TOKENS: u64 = 1024;

/// How registries are reached, and what they want to see. All lookups share it.
#[derive(Debug)]
pub(crate) struct Access {
    transport: Transport,
    credentials: CredentialFile,
    /// By registry.
    challenges: Cache<String, Challenge>,
    /// With the end of their use.
    tokens: Cache<TokenKey, (Secret, Instant)>,
}

/// What a token is for, and whose it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct TokenKey {
    repository: String,
    challenge: BearerChallenge,
    credential: Option<Credential>,
}

/// One lookup at the registry of one image.
pub(crate) struct Session<'a> {
    access: &'a Access,
    image: &'a Image,
    http: Http,
    /// The image's repository: `…/v2/NAME/`.
    base: Url,
    /// What to show, or why the file with it cannot be used.
    credential: Result<Option<Credential>, String>,
    credentials_reloaded: bool,
}

// === impl Access ===

impl Access {
    pub(crate) fn new(transport: Transport, credentials: CredentialFile) -> Self {
        let (challenges, tokens) =
            (Cache::builder().max_capacity(MAX_CHALLENGES), Cache::builder().max_capacity(MAX_TOKENS));
        Self {
            transport,
            credentials,
            challenges: challenges.eviction_policy(EvictionPolicy::lru()).build(),
            tokens: tokens.eviction_policy(EvictionPolicy::lru()).build(),
        }
    }
}

// === impl Session ===

impl<'a> Session<'a> {
    pub(crate) async fn new(access: &'a Access, image: &'a Image) -> Result<Self, RegistryError> {
        let host = match image.registry() {
            "docker.io" => "registry-1.docker.io",
            other => other,
        };
        let http = access.transport.http().await?;
        let scheme = if http.insecure.holds(image.registry()) { "http" } else { "https" };
        let base = Url::parse(&format!("{scheme}://{host}/v2/{}/", path_of(image)));
        Ok(Self {
            access,
            image,
            http,
            base: base.map_err(|_| RegistryError::malformed("name", "it makes no URL"))?,
            credential: access.credentials.lookup(image).await,
            credentials_reloaded: false,
        })
    }

    /// A URL below the image's repository. `path` is of checked parts.
    pub(crate) fn url(&self, path: &str) -> Result<Url, RegistryError> {
        // Alone `sha256:…` would be read as a scheme; none of our paths begins so.
        self.base.join(path).map_err(|_| RegistryError::malformed("name", "it makes no URL"))
    }

    /// Sends, and sends again with what the registry wants to see. The response is 200.
    pub(crate) async fn send(
        &mut self,
        method: &Method,
        url: &Url,
        accept: &'static str,
        what: &'static str,
    ) -> Result<Response, RegistryError> {
        let mut challenge = self.access.challenges.get(self.image.registry());
        if challenge.is_none() && !matches!(self.credential, Ok(None)) {
            challenge = Some(self.ask_for_challenge().await?);
        }
        for _ in 0..MAX_ATTEMPTS {
            let (mut wanted, mut is_cached) = (None, false);
            match self.authorization(challenge.as_ref()).await {
                Ok((header, cached)) => {
                    let response = self.http.send(get(method, url, accept, header), None).await?;
                    let is_refusal =
                        matches!(response.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
                    // The registry's storage elsewhere does not know our credentials.
                    if !is_refusal || !same_origin(response.url(), &self.base) {
                        return self.check(response, challenge.as_ref(), what);
                    }
                    (wanted, is_cached) = (self.challenge_of(&response), cached);
                }
                // The token server refuses our credentials.
                Err(RegistryError::Unauthorized) => {}
                Err(error) => {
                    // The registry may have another token server now.
                    self.access.challenges.invalidate(self.image.registry());
                    return Err(error);
                }
            }
            if let Some(new) = wanted.filter(|wanted| Some(wanted) != challenge.as_ref()) {
                self.remember(&new);
                challenge = Some(new);
            } else if self.credentials_reloaded || !(self.reload_credentials().await || is_cached) {
                break;
            } else if let Some(Challenge::Bearer(challenge)) = &challenge {
                self.access.tokens.invalidate(&self.token_key(challenge));
            }
        }
        Err(self.refused())
    }

    /// Asks the registry's `/v2/` for its challenge.
    async fn ask_for_challenge(&self) -> Result<Challenge, RegistryError> {
        let response = self.http.send(get(&Method::GET, &self.url("/v2/")?, "*/*", None), None).await?;
        let challenge = self.challenge_of(&response).filter(|_| same_origin(response.url(), &self.base));
        let challenge = challenge.unwrap_or(Challenge::Open);
        self.remember(&challenge);
        Ok(challenge)
    }

    fn remember(&self, challenge: &Challenge) {
        self.access.challenges.insert(self.image.registry().to_owned(), challenge.clone());
    }

    fn challenge_of(&self, response: &Response) -> Option<Challenge> {
        challenge(texts(response.headers(), &WWW_AUTHENTICATE), self.http.class_of(response))
    }

    fn refused(&self) -> RegistryError {
        match &self.credential {
            Err(problem) => RegistryError::Credentials(problem.clone()),
            Ok(_) => RegistryError::Unauthorized,
        }
    }

    fn check(
        &self,
        response: Response,
        challenge: Option<&Challenge>,
        what: &'static str,
    ) -> Result<Response, RegistryError> {
        match response.status() {
            StatusCode::OK => Ok(response),
            // The image may be there for the credentials that we cannot read.
            StatusCode::NOT_FOUND if self.credential.is_err() && challenge == Some(&Challenge::Basic) => {
                Err(self.refused())
            }
            StatusCode::NOT_FOUND => Err(RegistryError::NotFound),
            status => Err(unexpected(status, what)),
        }
    }

    /// Reads the credentials again, once per lookup. Returns whether they have changed.
    async fn reload_credentials(&mut self) -> bool {
        self.credentials_reloaded = true;
        self.access.credentials.reload().await;
        let credential = self.access.credentials.lookup(self.image).await;
        credential != std::mem::replace(&mut self.credential, credential.clone())
    }

    fn credential(&self) -> Option<&Credential> {
        self.credential.as_ref().ok()?.as_ref()
    }

    /// What to show, and whether it is a token of an earlier request, which the registry may have
    /// revoked.
    async fn authorization(
        &self,
        challenge: Option<&Challenge>,
    ) -> Result<(Option<HeaderValue>, bool), RegistryError> {
        let header = match (challenge, self.credential()) {
            (Some(_), Some(Credential::Bearer { token })) => bearer_header(token),
            (Some(Challenge::Bearer(challenge)), _) => {
                let key = self.token_key(challenge);
                if let Some((token, until)) = self.access.tokens.get(&key)
                    && Instant::now() < until
                {
                    return Ok((bearer_header(&token), true));
                }
                bearer_header(&self.fetch_token(key).await?)
            }
            (Some(Challenge::Open | Challenge::Basic), Some(Credential::Basic { user, password })) => {
                basic_header(user, password)
            }
            _ => None,
        };
        Ok((header, false))
    }

    fn token_key(&self, challenge: &BearerChallenge) -> TokenKey {
        TokenKey {
            repository: self.image.repository().to_owned(),
            challenge: challenge.clone(),
            credential: self.credential().cloned(),
        }
    }

    /// # Errors
    /// [`RegistryError::Unauthorized`] if the token server refuses the credentials.
    async fn fetch_token(&self, key: TokenKey) -> Result<Secret, RegistryError> {
        let mut realm = self.realm(&key.challenge.realm)?;
        let scope = format!("repository:{}:pull", path_of(self.image));
        let service = key.challenge.service.as_deref().map(|service| ("service", service));
        let mut pairs: Vec<(&str, &str)> = service.into_iter().chain([("scope", &*scope)]).collect();
        let request = if let Some(Credential::Identity { token }) = &key.credential {
            pairs.extend([
                ("grant_type", "refresh_token"),
                ("client_id", CLIENT_ID),
                ("refresh_token", token.expose()),
            ]);
            // A form is written like a query.
            let mut form = realm.clone();
            form.query_pairs_mut().clear().extend_pairs(pairs);
            let mut request = Request::new(Method::POST, realm);
            let form_type = HeaderValue::from_static("application/x-www-form-urlencoded");
            request.headers_mut().insert(CONTENT_TYPE, form_type);
            *request.body_mut() = Some(form.query().unwrap_or_default().to_owned().into());
            request
        } else {
            realm.query_pairs_mut().extend_pairs(pairs);
            let authorization = match &key.credential {
                Some(Credential::Basic { user, password }) => basic_header(user, password),
                _ => None,
            };
            get(&Method::GET, &realm, "*/*", authorization)
        };
        let asked_at = Instant::now();
        let response = self.http.send(request, Some(key.challenge.registry)).await?;
        match response.status() {
            StatusCode::OK => {}
            // OAuth 2 answers 400 to a token that is no longer good.
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::BAD_REQUEST => {
                return Err(RegistryError::Unauthorized);
            }
            status => return Err(unexpected(status, TOKEN)),
        }
        let token = parse_token(&read_body(response, TOKEN, MAX_TOKEN_BYTES).await?)?;
        self.access.tokens.insert(key, (token.secret.clone(), asked_at + token.usable_for));
        Ok(token.secret)
    }

    /// Where tokens come from: never a place that credentials reach unencrypted, unless the user
    /// allows it.
    fn realm(&self, realm: &str) -> Result<Url, RegistryError> {
        let malformed = |reason: &str| RegistryError::malformed(TOKEN, reason);
        let url = Url::parse(realm).map_err(|_| malformed("the realm is not a URL"))?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(malformed("the realm names a user"));
        }
        let insecure = &self.http.insecure;
        match url.scheme() {
            "https" => Ok(url),
            "http" if insecure.holds(self.image.registry()) || insecure.holds_url(&url) => Ok(url),
            _ => Err(malformed(
                "its realm is not HTTPS, and credentials would be readable on their way; name the registry or the \
                 realm's host in --insecure-registries if that is meant",
            )),
        }
    }
}

/// A request without a body.
fn get(method: &Method, url: &Url, accept: &'static str, authorization: Option<HeaderValue>) -> Request {
    let mut request = Request::new(method.clone(), url.clone());
    request.headers_mut().insert(ACCEPT, HeaderValue::from_static(accept));
    if let Some(authorization) = authorization {
        request.headers_mut().insert(AUTHORIZATION, authorization);
    }
    request
}

fn unexpected(status: StatusCode, what: &'static str) -> RegistryError {
    if status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error() {
        RegistryError::Busy { status: status.as_u16() }
    } else {
        RegistryError::malformed(what, format!("it came with status {}", status.as_u16()))
    }
}

/// The values of a header that are text.
pub(crate) fn texts<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    headers.get_all(name).iter().filter_map(|value| value.to_str().ok())
}

//! The authenticated requests of one lookup.
//!
//! Like docker, the client sends credentials with the first request: it asks `/v2/` once for the
//! challenge and caches it. A registry without a challenge gets the user and password too, because
//! some open registries answer anonymous requests for private images with 404. Without credentials
//! the first request is anonymous, and the refusal contains the challenge. After each refusal the
//! client reads the credentials again, because they may have been rotated.

use std::net::IpAddr;

use http::header::{ACCEPT, CONTENT_TYPE, HeaderName, RANGE, WWW_AUTHENTICATE};
use http::{HeaderMap, Method, StatusCode};
use porch_fn_image::Image;
use reqwest::{RequestBuilder, Response, Url};

use super::Client;
use crate::RegistryError;
use crate::auth::{BearerChallenge, Challenge, TOKEN, challenge, parse_token};
use crate::docker_config::{Credential, DOCKER_HUB, path_of};
use crate::transport::{Http, read_body};

/// The `client_id` that is sent to token servers.
const CLIENT_ID: &str = "porch-fn";
const MAX_TOKEN_BYTES: usize = 64 << 10;
/// Maximum number of attempts at one request: the first attempt, an attempt that answers the
/// challenge, one for a new challenge, and one with new credentials.
const MAX_ATTEMPTS: usize = 4;

/// A request for a document or a blob of the image's repository.
#[derive(Clone, Copy)]
pub(super) struct Query<'a> {
    pub(super) method: &'a Method,
    /// Relative to the image's repository. The caller has checked its parts.
    pub(super) path: &'a str,
    pub(super) accept: &'static str,
    /// What is requested, for errors.
    pub(super) what: &'static str,
    /// The first byte to send. The registry may ignore this and send everything.
    pub(super) from: u64,
}

/// One lookup at the registry of one image.
pub(super) struct Session<'a> {
    pub(super) client: &'a Client,
    pub(super) image: Image,
    http: Http,
    /// The image's repository: `…/v2/NAME/`.
    base: Url,
    /// The credential to send, or why the credentials file cannot be used.
    credential: Result<Option<Credential>, String>,
    /// The registry's last challenge, also by another session.
    challenge: Option<Challenge>,
    /// The token for the image's repository, until the registry refuses it. Tokens are not kept for
    /// later lookups: most are for one repository and expire before the next lookup.
    token: Option<String>,
}

// === impl Session ===

impl<'a> Session<'a> {
    pub(super) async fn new(client: &'a Client, image: &Image) -> Result<Self, RegistryError> {
        let http = client.options.roots.value_or_reload(|http| http.has_ca).await;
        let base = Url::parse(&format!("http://{}/v2/{}/", image.registry(), path_of(image)));
        let mut base = base.map_err(|_| RegistryError::malformed("name", "it is not valid in a URL"))?;
        // Neither setter fails: http and https are both special schemes, and the host is a
        // constant.
        if !http.is_insecure(&base) {
            let _ = base.set_scheme("https");
        }
        if image.registry() == DOCKER_HUB {
            let _ = base.set_host(Some("registry-1.docker.io"));
        }
        let credential = client.options.credentials.lookup(image).await;
        let challenge = client.challenges.get(image.registry());
        Ok(Self { client, image: image.clone(), http, base, credential, challenge, token: None })
    }

    /// Sends a request, and repeats it with the credentials that the registry demands. Returns a
    /// response with status 200, or 206 if `from` is not 0.
    ///
    /// A registry at a private address may speak plain HTTP, as with Porch. This takes effect only
    /// if it does not speak TLS, and if there are no credentials for it.
    pub(super) async fn send(&mut self, query: Query<'_>) -> Result<Response, RegistryError> {
        match self.send_by_scheme(query).await {
            Err(RegistryError::PlainHttp) if self.may_be_plain() => {
                let _ = self.base.set_scheme("http");
                self.send_by_scheme(query).await
            }
            answer => answer,
        }
    }

    fn may_be_plain(&self) -> bool {
        let is_private = self.base.host_str().is_some_and(is_private);
        self.base.scheme() == "https" && is_private && matches!(self.credential, Ok(None))
    }

    async fn send_by_scheme(&mut self, query: Query<'_>) -> Result<Response, RegistryError> {
        let url = self.url(query.path)?;
        if self.challenge.is_none() && !matches!(self.credential, Ok(None)) {
            let response =
                self.http.send(self.http.any.request(Method::GET, self.url("/v2/")?), None).await?;
            let is_own = response.url().origin() == self.base.origin();
            let challenge = self.challenge_of(&response).filter(|_| is_own);
            self.remember(challenge.unwrap_or(Challenge::Open));
        }
        for _ in 0..MAX_ATTEMPTS {
            let mut request =
                self.http.any.request(query.method.clone(), url.clone()).header(ACCEPT, query.accept);
            if query.from > 0 {
                request = request.header(RANGE, format!("bytes={}-", query.from));
            }
            let mut has_news = false;
            match self.authorize(request).await {
                Ok(request) => {
                    let response = self.http.send(request, None).await?;
                    let is_refusal =
                        matches!(response.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
                    // A refusal after a redirect comes from another server, which does not know the
                    // credentials.
                    if !is_refusal || response.url().origin() != self.base.origin() {
                        return self.check(response, query);
                    }
                    if let Some(wanted) = self.challenge_of(&response)
                        && Some(&wanted) != self.challenge.as_ref()
                    {
                        has_news = true;
                        self.remember(wanted);
                    }
                }
                // The token server refuses our credentials.
                Err(RegistryError::Unauthorized) => {}
                Err(error) => {
                    // The registry may have another token server now.
                    self.client.challenges.invalidate(self.image.registry());
                    return Err(error);
                }
            }
            self.token = None;
            if !self.reload_credentials().await && !has_news {
                break;
            }
        }
        Err(self.refused())
    }

    pub(super) fn url(&self, path: &str) -> Result<Url, RegistryError> {
        // `join` would parse a leading `sha256:` as a scheme, but no caller passes such a path.
        self.base.join(path).map_err(|_| RegistryError::malformed("name", "it is not valid in a URL"))
    }

    fn remember(&mut self, challenge: Challenge) {
        self.client.challenges.insert(self.image.registry().to_owned(), challenge.clone());
        self.challenge = Some(challenge);
    }

    fn challenge_of(&self, response: &Response) -> Option<Challenge> {
        let is_plain = self.base.scheme() == "http";
        challenge(texts(response.headers(), &WWW_AUTHENTICATE), self.http.class_of(response), is_plain)
    }

    fn refused(&self) -> RegistryError {
        match &self.credential {
            Err(problem) => RegistryError::Credentials(problem.clone()),
            Ok(credential) => self.client.options.credentials.refused(&self.image, credential.as_ref()),
        }
    }

    fn check(&self, response: Response, query: Query<'_>) -> Result<Response, RegistryError> {
        match response.status() {
            StatusCode::OK => Ok(response),
            StatusCode::PARTIAL_CONTENT if query.from > 0 => Ok(response),
            // The image may be visible only with the credentials that cannot be read.
            StatusCode::NOT_FOUND if self.credential.is_err() && self.challenge == Some(Challenge::Basic) => {
                Err(self.refused())
            }
            StatusCode::NOT_FOUND => Err(RegistryError::NotFound),
            status => Err(unexpected(status, query.what)),
        }
    }

    /// Reads the credentials again. Returns whether they have changed.
    async fn reload_credentials(&mut self) -> bool {
        let credential = self.client.options.credentials.reload(&self.image).await;
        credential != std::mem::replace(&mut self.credential, credential.clone())
    }

    /// Adds the credentials that the registry demands to the request.
    async fn authorize(&mut self, request: RequestBuilder) -> Result<RequestBuilder, RegistryError> {
        Ok(match &self.challenge {
            Some(Challenge::Bearer(challenge)) => {
                if self.token.is_none() {
                    self.token = Some(self.fetch_token(challenge).await?);
                }
                request.bearer_auth(self.token.as_deref().unwrap_or_default())
            }
            Some(_) => self.with_password(request),
            None => request,
        })
    }

    /// Adds the user and password, if there are any.
    fn with_password(&self, request: RequestBuilder) -> RequestBuilder {
        match &self.credential {
            Ok(Some(Credential::Basic { user, password })) => request.basic_auth(user, Some(password)),
            _ => request,
        }
    }

    /// # Errors
    /// [`RegistryError::Unauthorized`] if the token server refuses the credentials.
    async fn fetch_token(&self, challenge: &BearerChallenge) -> Result<String, RegistryError> {
        let mut realm = self.realm(challenge)?;
        let scope = format!("repository:{}:pull", path_of(&self.image));
        let service = challenge.service.as_deref().map(|service| ("service", service));
        let mut pairs: Vec<(&str, &str)> = service.into_iter().chain([("scope", &*scope)]).collect();
        let request = if let Ok(Some(Credential::Identity { token })) = &self.credential {
            pairs.extend([
                ("grant_type", "refresh_token"),
                ("client_id", CLIENT_ID),
                ("refresh_token", token.as_str()),
            ]);
            // A form is encoded like a URL query.
            let mut form = realm.clone();
            form.query_pairs_mut().clear().extend_pairs(pairs);
            let request = self.http.any.request(Method::POST, realm);
            let request = request.header(CONTENT_TYPE, "application/x-www-form-urlencoded");
            request.body(form.query().unwrap_or_default().to_owned())
        } else {
            realm.query_pairs_mut().extend_pairs(pairs);
            let request = self.http.any.request(Method::GET, realm);
            self.with_password(request)
        };
        let response = self.http.send(request, Some(challenge.registry)).await?;
        match response.status() {
            StatusCode::OK => {}
            // OAuth 2 servers answer 400 to an expired refresh token.
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::BAD_REQUEST => {
                return Err(RegistryError::Unauthorized);
            }
            status => return Err(unexpected(status, TOKEN)),
        }
        parse_token(&read_body(response, TOKEN, MAX_TOKEN_BYTES).await?)
    }

    /// Checks the URL of the token server. Credentials are sent there. So the URL must be HTTPS,
    /// unless the user allows plain HTTP. Without credentials, a private registry may do so.
    fn realm(&self, challenge: &BearerChallenge) -> Result<Url, RegistryError> {
        let malformed = |reason: &str| RegistryError::malformed(TOKEN, reason);
        let may_be_plain = self.base.scheme() == "http" || challenge.is_plain && self.may_be_plain();
        let url = Url::parse(&challenge.realm).map_err(|_| malformed("the realm is not a URL"))?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(malformed("the realm contains a user name"));
        }
        match url.scheme() {
            "https" => Ok(url),
            "http" if may_be_plain || self.http.is_insecure(&url) => Ok(url),
            _ => Err(malformed(
                "its realm is not HTTPS, so credentials would be sent unencrypted; to allow that, name the registry \
                 or the realm's host in --insecure-registries",
            )),
        }
    }
}

/// Hosts that go-containerregistry, which Porch uses, asks by plain HTTP too.
fn is_private(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match host.parse() {
        Ok(IpAddr::V4(address)) => address.is_loopback() || address.is_private(),
        Ok(IpAddr::V6(address)) => address.is_loopback(),
        Err(_) => host == "localhost" || matches!(host.rsplit_once('.'), Some((_, "local" | "localhost"))),
    }
}

fn unexpected(status: StatusCode, what: &'static str) -> RegistryError {
    if status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error() {
        RegistryError::Busy(status.as_u16())
    } else {
        RegistryError::malformed(what, format!("the response has status {}", status.as_u16()))
    }
}

/// The values of a header that are valid text.
pub(super) fn texts<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    headers.get_all(name).iter().filter_map(|value| value.to_str().ok())
}

#[cfg(test)]
mod tests {
    use super::is_private;

    #[test]
    fn only_private_hosts_may_speak_plain_http() {
        for host in ["10.0.0.1", "172.16.0.1", "192.168.1.1", "127.0.0.1", "[::1]", "localhost", "r.local"] {
            assert!(is_private(host), "{host}");
        }
        for host in ["172.32.0.1", "8.8.8.8", "[2001:db8::1]", "ghcr.io", "local", "localhost.example.com"] {
            assert!(!is_private(host), "{host}");
        }
    }
}

//! HTTP requests. [`AddressClass`] limits the addresses that redirects and token realms may lead
//! to.
//!
//! The resolver checks addresses, so that a name cannot resolve to one address for the check and to
//! another for the connection. Each class of registry has its own client, because clients reuse
//! connections: a connection for a registry in the cluster must not serve another registry. reqwest
//! follows redirects with the same client, so this module follows them instead.
//!
//! A proxy resolves names itself. So for a URL that goes through a proxy, this module checks only
//! the URL's text. The proxy may be at any address.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, LOCATION, RETRY_AFTER};
use http::{Method, Uri};
use http_body_util::{BodyExt as _, Collected, Limited};
use hyper_util::client::proxy::matcher::Matcher;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::Policy;
use reqwest::{Body, Client, Request, RequestBuilder, Response, Url};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use tokio::net::lookup_host;
use tokio::time::sleep;

use crate::RegistryError;
use crate::address_class::AddressClass;
use crate::failure::{InternalAddress, chain, log, why};
use crate::verifier::tls;

const USER_AGENT: &str = concat!("porch-fn-runner/", env!("CARGO_PKG_VERSION"));
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
const MAX_REDIRECTS: usize = 5;
/// Pauses before a request is repeated, unless the registry names another, and the longest pause.
const REPEATS: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(1)];
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// The HTTP clients for one set of root certificates. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Http {
    /// Connects to any address, and through the proxies of the environment. Makes all requests.
    pub(crate) any: Client,
    /// One client per [`AddressClass`] of a registry. It uses no proxies. It connects only to
    /// addresses to which a registry of this class may send the runner.
    guarded: Arc<[Client]>,
    /// The proxies that `any` uses.
    proxies: Arc<Matcher>,
    /// The registries that speak plain HTTP: each `host`, for all of its ports, or `host:port`.
    insecure: Arc<[String]>,
    /// Whether the user's CA file has been read, or none is configured.
    pub(crate) has_ca: bool,
}

/// Resolves names like the system, but returns only addresses to which a registry of this class may
/// send the runner.
#[derive(Debug)]
struct GuardedResolver(AddressClass);

// === impl Http ===

impl Http {
    /// Creates clients that trust `roots`. These include `given`, the certificates of the user's
    /// CA file.
    pub(crate) fn new(
        roots: RootCertStore,
        given: Vec<CertificateDer<'static>>,
        insecure: &[String],
        has_ca: bool,
    ) -> Result<Self, String> {
        let tls = tls(roots, given).map_err(|error| error.to_string())?;
        let builder = || {
            Client::builder()
                .tls_backend_preconfigured(tls.clone())
                .redirect(Policy::none())
                .connect_timeout(CONNECT_WITHIN)
                .user_agent(USER_AGENT)
        };
        let guarded = |class| builder().no_proxy().dns_resolver(GuardedResolver(class)).build();
        let guarded = AddressClass::ALL.into_iter().map(guarded).collect::<Result<_, _>>();
        Ok(Self {
            any: builder().build().map_err(|error| chain(&error))?,
            guarded: guarded.map_err(|error| chain(&error))?,
            proxies: Arc::new(Matcher::from_system()),
            insecure: insecure.iter().map(|registry| registry.to_ascii_lowercase()).collect(),
            has_ca,
        })
    }

    /// Whether plain HTTP is allowed for this URL.
    pub(crate) fn is_insecure(&self, url: &Url) -> bool {
        let host = url.host_str().unwrap_or_default();
        let with_port = format!("{host}:{}", url.port_or_known_default().unwrap_or_default());
        self.insecure.iter().any(|registry| *registry == host || *registry == with_port)
    }

    /// Sends a request and follows redirects. Drops `Authorization` when the origin changes. Does
    /// not redirect a POST, because its form contains a refresh token.
    ///
    /// `led_by` is the class of the server that named this URL. `None`: the URL is the registry's
    /// own, and any address is allowed.
    pub(crate) async fn send(
        &self,
        request: RequestBuilder,
        mut led_by: Option<AddressClass>,
    ) -> Result<Response, RegistryError> {
        let mut request = request.build().map_err(why)?;
        for _ in 0..=MAX_REDIRECTS {
            let client = self.client(request.url(), led_by)?;
            let response = execute(client, &request).await?;
            let next = redirect_target(&response).filter(|_| request.method() != Method::POST);
            let Some(next) = next else { return Ok(response) };
            if request.url().scheme() == "https" && next.scheme() == "http" && !self.is_insecure(&next) {
                return Err(log("a redirect from HTTPS to plain HTTP", RegistryError::Unreachable));
            }
            // A redirect by a public server limits the next requests to public addresses. A
            // redirect by another server sets `led_by` only if it was `None`.
            let sender = self.class_of(&response);
            led_by = Some(led_by.filter(|_| sender != AddressClass::Public).unwrap_or(sender));
            if next.origin() != request.url().origin() {
                request.headers_mut().remove(AUTHORIZATION);
            }
            *request.url_mut() = next;
        }
        Err(log(format!("more than {MAX_REDIRECTS} redirects"), RegistryError::Unreachable))
    }

    /// The address class of the server that sent a response. If the request used a proxy, only the
    /// URL's host decides.
    pub(crate) fn class_of(&self, response: &Response) -> AddressClass {
        let url = response.url();
        match (AddressClass::of_host(url.host_str().unwrap_or_default()), response.remote_addr()) {
            (AddressClass::Public, Some(address)) if !self.is_proxied(url) => {
                AddressClass::of_address(address.ip())
            }
            (by_name, _) => by_name,
        }
    }

    fn client(&self, url: &Url, led_by: Option<AddressClass>) -> Result<&Client, RegistryError> {
        let Some(registry) = led_by else { return Ok(&self.any) };
        // If the URL contains an address instead of a name, reqwest does not ask the resolver. So
        // check the address here.
        let host = url.host_str().unwrap_or_default();
        if !registry.leads_to(AddressClass::of_host(host)) {
            return Err(log(InternalAddress(host.to_owned()), RegistryError::InternalAddress));
        }
        Ok(if self.is_proxied(url) { &self.any } else { &self.guarded[registry as usize] })
    }

    fn is_proxied(&self, url: &Url) -> bool {
        url.as_str().parse::<Uri>().is_ok_and(|uri| self.proxies.intercept(&uri).is_some())
    }
}

// === impl GuardedResolver ===

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let registry = self.0;
        Box::pin(async move {
            let mut found: Vec<_> = lookup_host((name.as_str(), 0)).await?.collect();
            found.retain(|address| registry.leads_to(AddressClass::of_address(address.ip())));
            if found.is_empty() {
                return Err(InternalAddress(name.as_str().to_owned()).into());
            }
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

/// Sends a request, and repeats it after a fault that may pass soon.
async fn execute(client: &Client, request: &Request) -> Result<Response, RegistryError> {
    let mut pauses = REPEATS.into_iter();
    loop {
        // Only a streamed body, which no request here has, has no copy.
        let request = request.try_clone().ok_or(RegistryError::Unreachable)?;
        let sent = client.execute(request).await;
        let pause = pauses.next().and_then(|pause| pause_before_repeat(&sent, pause));
        let Some(pause) = pause else { return sent.map_err(why) };
        tracing::debug!(?pause, "a request is repeated");
        sleep(pause).await;
    }
}

/// The pause before a request is repeated: `pause`, or what the registry asks for. `None` if the
/// fault may not pass soon.
fn pause_before_repeat(sent: &reqwest::Result<Response>, pause: Duration) -> Option<Duration> {
    match sent {
        Ok(response) if matches!(response.status().as_u16(), 429 | 500 | 502 | 503 | 504) => {
            let asked = response.headers().get(RETRY_AFTER);
            let asked = asked.and_then(|value| value.to_str().ok()?.parse().ok());
            Some(asked.map_or(pause, Duration::from_secs)).filter(|pause| *pause <= MAX_PAUSE)
        }
        // The registry probably closed a reused connection before it answered.
        Err(error) if error.is_request() && !error.is_connect() && !error.is_timeout() => {
            Some(Duration::ZERO)
        }
        _ => None,
    }
}

fn redirect_target(response: &Response) -> Option<Url> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    let mut url = response.url().join(response.headers().get(LOCATION)?.to_str().ok()?).ok()?;
    // User and password in the target URL must not be sent. The setters fail only for a URL without
    // a host.
    let _ = url.set_username("").and_then(|()| url.set_password(None));
    Some(url)
}

/// Reads a body of at most `limit` bytes. If the body is longer, drops the response, which cancels
/// the transfer.
pub(crate) async fn read_body(
    response: Response,
    what: &'static str,
    limit: usize,
) -> Result<Bytes, RegistryError> {
    let body = Limited::new(Body::from(response), limit).collect().await;
    body.map(Collected::to_bytes).map_err(|error| match error.downcast() {
        Ok(error) => why(*error),
        Err(_) => RegistryError::too_large(what, limit, "bytes"),
    })
}

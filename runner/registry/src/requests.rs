//! Requests, and where they may lead: see [`AddressClass`].
//!
//! The resolver checks addresses, so that a name cannot have one address for the check and another one
//! for the connection. Connections are kept per client, so there is a client per class of registry: a
//! connection made for a registry in the cluster serves no registry elsewhere. This is why reqwest, which
//! has one client for all redirects, follows none.
//!
//! A proxy resolves names itself. A URL that goes through a proxy is checked by its text alone, and the
//! proxy may be at any address.

#[cfg(test)]
mod tests;

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, LOCATION};
use http::{HeaderValue, Method, StatusCode, Uri};
use hyper_util::client::proxy::matcher::Matcher;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::Policy;
use reqwest::{Client, Response, Url};
use rustls::ClientConfig;
use tokio::net::lookup_host;

use crate::RegistryError;
use crate::address_class::AddressClass;
use crate::session::same_origin;
use crate::transport::{HttpError, Insecure, was_closed};

const CONNECT_WITHIN: Duration = Duration::from_secs(5);
const MAX_REDIRECTS: usize = 5;

/// Clients of one set of roots. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Http {
    /// To any address, and through the proxies of the environment.
    any: Client,
    /// Without proxies, to addresses that a registry of the class leads to. By [`AddressClass`].
    guarded: [Client; 4],
    /// The same that `any` has.
    proxies: Arc<Matcher>,
    insecure: Insecure,
}

/// Why a URL is not requested.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RefusedUrl {
    #[error("more than {MAX_REDIRECTS} redirects")]
    TooMany,
    #[error("a redirect from HTTPS to plain HTTP")]
    Downgrade,
    #[error(
        "it leads to {0}, a loopback, link-local or cluster address, and is at no address of that kind itself"
    )]
    Internal(String),
}

/// Resolves as the system does, to the addresses that a registry of this class may lead to.
#[derive(Debug)]
struct Resolver(AddressClass);

// === impl RefusedUrl ===

impl RefusedUrl {
    pub(crate) fn meaning(&self) -> RegistryError {
        match self {
            Self::Internal(_) => RegistryError::InternalAddress,
            Self::TooMany | Self::Downgrade => RegistryError::Unreachable,
        }
    }
}

// === impl Http ===

impl Http {
    pub(crate) fn new(
        tls: &ClientConfig,
        user_agent: &str,
        insecure: Insecure,
    ) -> Result<Self, Box<dyn Error>> {
        let builder = || {
            Client::builder()
                .tls_backend_preconfigured(tls.clone())
                .redirect(Policy::none())
                .connect_timeout(CONNECT_WITHIN)
                .user_agent(user_agent)
        };
        let [public, loopback, link_local, cluster] =
            AddressClass::ALL.map(|class| builder().no_proxy().dns_resolver(Resolver(class)).build());
        Ok(Self {
            any: builder().build()?,
            guarded: [public?, loopback?, link_local?, cluster?],
            proxies: Arc::new(Matcher::from_system()),
            insecure,
        })
    }

    /// Sends, and follows redirects, without `authorization` once the origin changes.
    ///
    /// `registry` is the class of the registry that named this URL. Without it the URL is the
    /// registry's own, and may be anywhere.
    pub(crate) async fn send(
        &self,
        method: &Method,
        url: &Url,
        accept: &'static str,
        mut authorization: Option<&HeaderValue>,
        mut registry: Option<AddressClass>,
    ) -> Result<Response, HttpError> {
        let mut url = url.clone();
        for _ in 0..=MAX_REDIRECTS {
            let client = self.client(&url, registry)?;
            let send = || {
                let request = client.request(method.clone(), url.clone()).header(ACCEPT, accept);
                match authorization {
                    Some(authorization) => request.header(AUTHORIZATION, authorization.clone()),
                    None => request,
                }
                .send()
            };
            let sent = match send().await {
                // A kept connection.
                Err(error) if was_closed(&error) => send().await,
                sent => sent,
            };
            let response = sent.map_err(HttpError::Reqwest)?;
            let Some(next) = target(&response) else { return Ok(response) };
            if url.scheme() == "https" && next.scheme() == "http" && !self.insecure.holds_url(&next) {
                return Err(HttpError::Url(RefusedUrl::Downgrade));
            }
            // Whoever redirects decides where to, so the way leads on from there.
            let sender = self.class_of(&response);
            registry = Some(registry.filter(|_| sender != AddressClass::Public).unwrap_or(sender));
            authorization = authorization.filter(|_| same_origin(&next, &url));
            url = next;
        }
        Err(HttpError::Url(RefusedUrl::TooMany))
    }

    /// Follows no redirect: it would take the refresh token in the form along.
    pub(crate) async fn post_form(
        &self,
        url: Url,
        form: &str,
        registry: AddressClass,
    ) -> Result<Response, HttpError> {
        let request = self.client(&url, Some(registry))?.post(url);
        let request = request.header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(form.to_owned());
        request.send().await.map_err(HttpError::Reqwest)
    }

    /// Where the sender of a response is. Behind a proxy only its host's text tells.
    pub(crate) fn class_of(&self, response: &Response) -> AddressClass {
        let url = response.url();
        match (AddressClass::of_host(url.host_str().unwrap_or_default()), response.remote_addr()) {
            (AddressClass::Public, Some(address)) if !self.is_proxied(url) => {
                AddressClass::of_address(address.ip())
            }
            (by_name, _) => by_name,
        }
    }

    fn client(&self, url: &Url, registry: Option<AddressClass>) -> Result<&Client, HttpError> {
        let Some(registry) = registry else { return Ok(&self.any) };
        // A URL with an address instead of a name does not reach the resolver.
        let host = url.host_str().unwrap_or_default();
        if !registry.leads_to(AddressClass::of_host(host)) {
            return Err(HttpError::Url(RefusedUrl::Internal(host.to_owned())));
        }
        Ok(if self.is_proxied(url) { &self.any } else { &self.guarded[registry as usize] })
    }

    fn is_proxied(&self, url: &Url) -> bool {
        url.as_str().parse::<Uri>().is_ok_and(|uri| self.proxies.intercept(&uri).is_some())
    }
}

// === impl Resolver ===

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let registry = self.0;
        Box::pin(async move {
            let mut found: Vec<_> = lookup_host((name.as_str(), 0)).await?.collect();
            found.retain(|address| registry.leads_to(AddressClass::of_address(address.ip())));
            if found.is_empty() {
                return Err(RefusedUrl::Internal(name.as_str().to_owned()).into());
            }
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

/// Where a redirect leads.
fn target(response: &Response) -> Option<Url> {
    use StatusCode as S;
    let redirects =
        [S::MOVED_PERMANENTLY, S::FOUND, S::SEE_OTHER, S::TEMPORARY_REDIRECT, S::PERMANENT_REDIRECT];
    if !redirects.contains(&response.status()) {
        return None;
    }
    let mut url = response.url().join(response.headers().get(LOCATION)?.to_str().ok()?).ok()?;
    // reqwest would send the user of the URL beside ours. Only a URL without a host cannot have one.
    let _ = url.set_username("").and_then(|()| url.set_password(None));
    Some(url)
}

//! Parses pages of tag lists and the links between them. No I/O.

#[cfg(test)]
mod tests;

use reqwest::Url;
use serde::Deserialize;

use crate::RegistryError;

pub(crate) const MAX_PAGES: usize = 100;
pub(crate) const MAX_TAGS: usize = 100_000;

pub(crate) const TAG_LIST: &str = "tag list";

/// One page. Some tags may not be valid.
#[derive(Deserialize)]
pub(crate) struct Page {
    /// Null if the repository has no tags.
    pub(crate) tags: Option<Vec<String>>,
}

/// Returns the page after `url`, from the `Link` headers of its response.
pub(crate) fn next_page<'a>(
    url: &Url,
    links: impl IntoIterator<Item = &'a str>,
) -> Result<Option<Url>, RegistryError> {
    let malformed = |reason: &str| RegistryError::malformed(TAG_LIST, reason);
    let Some(target) = links.into_iter().find_map(next_link) else { return Ok(None) };
    let next = url.join(target).map_err(|_| malformed("the link to its next page is not a URL"))?;
    if next.origin() != url.origin() || !next.username().is_empty() || next.password().is_some() {
        return Err(malformed("the link to its next page leads to another host"));
    }
    Ok(Some(next))
}

/// The target of `<…>; rel="next"` among the links of one header.
fn next_link(header: &str) -> Option<&str> {
    header.split('<').skip(1).find_map(|link| {
        let (target, parameters) = link.split_once('>')?;
        let parameters = parameters.to_ascii_lowercase().replace(['"', ' '], "");
        parameters.split([';', ',']).any(|parameter| parameter == "rel=next").then_some(target)
    })
}

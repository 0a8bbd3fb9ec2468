//! Lists of tags, page by page. Pure.

#[cfg(test)]
mod tests;

use std::collections::HashSet;

use reqwest::Url;
use serde::Deserialize;

use crate::RegistryError;
use crate::manifest::{json, malformed};
use crate::session::same_origin;

const MAX_PAGES: usize = 100;
const MAX_TAGS: usize = 100_000;
/// What a tag may have, by the specification.
const MAX_TAG_LEN: usize = 128;

pub(crate) const TAG_LIST: &str = "tag list";

/// The pages that came so far.
#[derive(Debug)]
pub(crate) struct Tags {
    found: Vec<String>,
    seen: HashSet<String>,
    /// The next one, if there is one.
    pub(crate) next: Option<Url>,
}

#[derive(Deserialize)]
struct Page {
    /// Of a repository without tags it is null.
    tags: Option<Vec<String>>,
}

impl Tags {
    pub(crate) fn new(first: Url) -> Self {
        Self { found: Vec::new(), seen: HashSet::new(), next: Some(first) }
    }

    /// Takes the page of `url`, and the `Link` headers that came with it.
    pub(crate) fn add<'a>(
        &mut self,
        url: &Url,
        body: &[u8],
        links: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), RegistryError> {
        let page: Page = json(body, TAG_LIST)?;
        let tags = page.tags.unwrap_or_default();
        if self.found.len() + tags.len() > MAX_TAGS {
            return Err(malformed(
                TAG_LIST,
                &format!("it has more than {MAX_TAGS} tags, which are not read"),
            ));
        }
        self.found.extend(tags.into_iter().filter(|tag| is_tag(tag)));
        self.seen.insert(url.as_str().to_owned());
        self.next = None;
        let Some(target) = links.into_iter().find_map(next_link) else { return Ok(()) };
        let next =
            url.join(target).map_err(|_| malformed(TAG_LIST, "the link to its next page is not a URL"))?;
        if !same_origin(&next, url) || !next.username().is_empty() || next.password().is_some() {
            return Err(malformed(TAG_LIST, "its next page is said to be at another place"));
        }
        if self.seen.contains(next.as_str()) {
            return Err(malformed(TAG_LIST, "its pages go round in a circle"));
        }
        if self.seen.len() >= MAX_PAGES {
            return Err(malformed(
                TAG_LIST,
                &format!("it has more than {MAX_PAGES} pages, which are not read"),
            ));
        }
        self.next = Some(next);
        Ok(())
    }

    /// What they take in memory, about.
    pub(crate) fn bytes(&self) -> usize {
        self.found.iter().map(|tag| size_of::<String>() + tag.len()).sum()
    }

    pub(crate) fn finish(self) -> Vec<String> {
        self.found
    }
}

/// Whatever is none cannot be asked for either.
fn is_tag(tag: &str) -> bool {
    tag.len() <= MAX_TAG_LEN
        && tag.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && tag.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'))
}

/// The target of `<…>; rel="next"` among the links of one header.
fn next_link(header: &str) -> Option<&str> {
    let mut rest = header;
    loop {
        let (target, behind) = rest[rest.find('<')? + 1..].split_once('>')?;
        let end = behind.find(",<").or_else(|| behind.find(", <")).unwrap_or(behind.len());
        let is_next = behind[..end].split(';').any(|parameter| {
            parameter.trim().trim_end_matches(',').split_once('=').is_some_and(|(name, value)| {
                name.trim().eq_ignore_ascii_case("rel")
                    && value.trim().trim_matches('"').split_ascii_whitespace().any(|rel| rel == "next")
            })
        });
        if is_next {
            return Some(target);
        }
        rest = &behind[end..];
    }
}

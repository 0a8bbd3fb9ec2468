//! Which images may run: `--allowed-images`.
//!
//! Router and runner must refuse the same calls, with the same error. They check a call before a
//! runner looks up a tag or starts a pod. Therefore both use this module, and its result depends
//! only on the call and the flags.

use crate::glob::glob_matches;
use crate::reference::{looks_like_host, repository, split, split_registry, with_prefix};
use crate::{Constraint, Image, MAX_REFERENCE_LEN, parse_version};

/// Largest number of patterns in a list.
const MAX_PATTERNS: usize = 1000;

/// Why a list of patterns is not valid. The messages are for the user who set the flag.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PatternError(String);

/// Why a call's image may not run. The same call and patterns always give the same message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotAllowed(String);

/// The images that may run: all images, or those that match one of a list of patterns.
///
/// A pattern is written and made canonical like an [`Image`], and matches part by part:
///
/// * `*` matches any text without a `/`, `**` any text;
/// * a name without `/` gets the default prefix, as in a reference, unless it begins with `**`;
/// * the first part is the registry if it looks like one or is `*`; else the registry is Docker
///   Hub. A first part with a `*` and other text must look like a registry, without `**`;
/// * a pattern without a tag, or with `:*`, matches all tags and digests;
/// * a pattern with a tag and no digest matches images without a digest, because a digest overrides
///   the tag.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowedImages {
    /// Empty: all images.
    patterns: Vec<Pattern>,
    default_prefix: String,
}

/// Each part is a glob.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pattern {
    /// In canonical form.
    repository: String,
    /// `None`: any tag, or none.
    tag: Option<String>,
    digest: Option<String>,
}

// === impl AllowedImages ===

impl AllowedImages {
    /// Parses patterns; an empty list allows every image.
    ///
    /// # Errors
    /// A [`PatternError`] for a pattern that is malformed or unclear, or for too many patterns.
    pub fn parse<P: AsRef<str>>(patterns: &[P], default_prefix: &str) -> Result<Self, PatternError> {
        if patterns.len() > MAX_PATTERNS {
            let count = patterns.len();
            return Err(PatternError(format!("{count} patterns are too many: there may be {MAX_PATTERNS}")));
        }
        let patterns = patterns.iter().map(|pattern| Pattern::parse(pattern.as_ref().trim(), default_prefix));
        Ok(Self { patterns: patterns.collect::<Result<_, _>>()?, default_prefix: default_prefix.to_owned() })
    }

    /// Whether `image` may run.
    pub fn allows(&self, image: &Image) -> bool {
        let parts = split(image.as_str());
        self.patterns.is_empty() || self.patterns.iter().any(|pattern| pattern.matches(parts))
    }

    /// Whether a call for `image` with this text in its `tag` field may run. A version in that
    /// field is a literal tag, as in the [shard key](crate::shard_key). For a constraint, every tag
    /// must be allowed. Other texts are ignored. If `image` has a digest, every text is ignored.
    ///
    /// # Errors
    /// A [`NotAllowed`], whose message is for the caller.
    pub fn check(&self, image: &str, tag_field: &str) -> Result<(), NotAllowed> {
        if self.patterns.is_empty() {
            return Ok(());
        }
        let no_image = |error| {
            let flag = "the function runner's --allowed-images";
            NotAllowed(format!("not allowed: {flag} accepts only valid image references: {error}"))
        };
        let mut image = Image::parse(image, &self.default_prefix).map_err(no_image)?;
        if !tag_field.is_empty() && image.digest().is_none() {
            if parse_version(tag_field).is_some() {
                image = image.with_tag(tag_field).map_err(no_image)?;
            } else if Constraint::parse(tag_field).is_some() {
                let repository = image.repository();
                if self.patterns.iter().any(|pattern| pattern.matches((repository, None, None))) {
                    return Ok(());
                }
                return Err(NotAllowed(format!(
                    "image {repository:?} is not allowed with the constraint {tag_field:?}, which may select any tag: no \
                     pattern of the function runner's --allowed-images allows every tag of this image; name an allowed tag"
                )));
            }
        }
        if self.allows(&image) {
            return Ok(());
        }
        Err(NotAllowed(format!(
            "image {image:?} is not allowed: no pattern of the function runner's --allowed-images matches it"
        )))
    }
}

// === impl Pattern ===

impl Pattern {
    fn parse(pattern: &str, default_prefix: &str) -> Result<Self, PatternError> {
        if pattern.is_empty() {
            return Err(PatternError("an empty pattern: leave the flag out to allow every image".to_owned()));
        }
        if pattern.len() > MAX_REFERENCE_LEN {
            let problem = format!("is too long: it may have {MAX_REFERENCE_LEN}");
            return Err(PatternError(format!("a pattern of {} bytes {problem}", pattern.len())));
        }
        let (name, tag, digest) = split(pattern);
        let prefix = if name.starts_with("**") { "" } else { default_prefix };
        // A `*` may match a digit. So a pattern is valid if it is a valid reference with a digit in
        // place of each `*`.
        let without_digest = pattern.split('@').next().unwrap_or_default();
        let in_digest = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || ":+._-*".contains(c);
        if Image::parse(&without_digest.replace('*', "1"), prefix).is_err()
            || digest.is_some_and(|digest| digest.is_empty() || !digest.chars().all(in_digest))
        {
            return Err(PatternError(format!(
                "{pattern:?} is not a pattern for images: write [registry/]name[:tag][@digest], with * for any text \
                 without a / and ** for any text"
            )));
        }
        // If such a pattern matched registries, anybody could set up a registry with a matching name.
        if let Some((first, _)) = name.split_once('/').filter(|(first, _)| is_unclear(first)) {
            return Err(PatternError(format!(
                "{pattern:?} is ambiguous, because {first:?} may be a registry or a name on Docker Hub: for Docker Hub, write \
                 docker.io/ before it; for a registry, include a . or a : in it, and use no **"
            )));
        }
        let repository = if name.starts_with("**") {
            name.to_owned()
        } else {
            let name = with_prefix(name, default_prefix);
            let (registry, path) = split_registry(&name, |first| looks_like_host(first) || first == "*");
            repository(registry, path)
        };
        Ok(Self {
            repository,
            tag: tag.filter(|tag| tag.contains(|c| c != '*')).map(str::to_owned),
            digest: digest.map(str::to_owned),
        })
    }

    /// Without a tag and a digest: whether all images of the repository match.
    fn matches(&self, (repository, tag, digest): (&str, Option<&str>, Option<&str>)) -> bool {
        let part = |glob: &Option<String>, text: Option<&str>| {
            glob.as_ref().is_none_or(|glob| text.is_some_and(|text| glob_matches(glob, text)))
        };
        glob_matches(&self.repository, repository)
            && (self.tag.is_none() || self.digest.is_some() || digest.is_none())
            && part(&self.tag, tag)
            && part(&self.digest, digest)
    }
}

/// Whether the part before the first slash may match registries that the user did not mean.
fn is_unclear(first: &str) -> bool {
    let is_any = first.bytes().all(|byte| byte == b'*');
    // A `**` may continue after the host: `**.example.com` would match `x.org/a.example.com`.
    first.contains('*') && !is_any && (!looks_like_host(first) || first.contains("**"))
}

//! Which images may run: `--allowed-images`.
//!
//! Router and runner have to say the same of a call, in the same words, before anything is looked up or started for
//! it. So the patterns are read here, and the answer is made of what the call itself says.

#[cfg(test)]
mod tests;

use crate::reference::{DOCKER_HUB, looks_like_host};
use crate::{Constraint, Image, MAX_REFERENCE_LEN, ReferenceError, parse_version};

/// Most patterns in a list.
const MAX_PATTERNS: usize = 1000;

/// A list of patterns that cannot be used. The texts are for whoever set the flag.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are the parts that the message names")]
pub enum PatternError {
    /// Nothing between two commas, or nothing at all: it may be a template's hole.
    #[error("an empty pattern: leave the flag out to allow every image")]
    Empty,
    /// Longer than any reference.
    #[error("a pattern of {length} bytes is too long: it may have {MAX_REFERENCE_LEN}")]
    TooLong { length: usize },
    /// More than are looked at for each call.
    #[error("{count} patterns are too many: there may be {MAX_PATTERNS}")]
    TooMany { count: usize },
    /// No image could ever fit it.
    #[error(
        "{pattern:?} is no pattern of images: write [registry/]name[:tag][@digest], with * for any text without a / \
         and ** for any text"
    )]
    Malformed { pattern: String },
    /// Read as a registry it would allow anybody's, where names on Docker Hub may be meant.
    #[error(
        "{pattern:?} leaves open whether {first:?} is a registry: put docker.io/ before it for names on Docker Hub; a \
         registry with a * in it needs a . or a :, and no **"
    )]
    Unclear { pattern: String, first: String },
}

/// Why a call's image may not run. The texts are the same for the same call and the same patterns.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are the parts that the message names")]
pub enum NotAllowed {
    /// No pattern fits.
    #[error("image {image:?} is not allowed: no pattern of the function runner's --allowed-images fits it")]
    Image { image: Image },
    /// A constraint may stand for any tag, and not every tag is allowed.
    #[error(
        "image {repository:?} is not allowed by the constraint {constraint:?}, which may stand for any tag: no \
         pattern of the function runner's --allowed-images allows every tag of it; name a tag that is allowed"
    )]
    Constraint { repository: String, constraint: String },
    /// What is no image fits no pattern.
    #[error("not allowed: the function runner's --allowed-images takes image references alone, and {0}")]
    NoImage(#[from] ReferenceError),
}

/// The images that may run: all of them, or those that one of a list of patterns fits.
///
/// A pattern is written and made canonical as an [`Image`] is, and fits part by part:
///
/// * `*` is any text without a `/`, `**` any text;
/// * a name without `/` is below the default prefix, as in a reference; one that begins with `**` stands for itself;
/// * the first part is the registry if it looks like one or is `*`, else it is Docker Hub's; one with a `*` beside
///   other text has to look like one, and holds no `**`;
/// * a pattern without a tag, or with `:*`, is for all tags and digests;
/// * one with a tag and without a digest is for images without a digest, since a digest runs whatever the tag says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowedImages {
    /// Empty: all.
    patterns: Vec<Pattern>,
    default_prefix: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Pattern {
    /// Canonical, like what it is matched with.
    repository: Glob,
    /// `None`: any, or none.
    tag: Option<Glob>,
    digest: Option<Glob>,
}

/// A text with `*` and `**` in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Glob {
    /// Before the first wildcard: all of it, if there is none.
    prefix: String,
    /// From the first wildcard to the last.
    middle: Vec<Token>,
    /// Of the texts between these wildcards.
    pairs: Pairs,
    /// Behind the last wildcard.
    suffix: String,
}

/// Which pairs of neighbouring bytes occur in a text: a text without one of a pattern's pairs does not fit
/// it. Each pair is one of 256 bits, some of which several pairs share.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Pairs([u64; 4]);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    Byte(u8),
    /// `*`
    Part,
    /// `**`
    Any,
}

// === impl AllowedImages ===

impl AllowedImages {
    /// Reads patterns; none allow every image.
    ///
    /// # Errors
    /// A [`PatternError`] for one that cannot fit any image.
    pub fn parse<P: AsRef<str>>(patterns: &[P], default_prefix: &str) -> Result<Self, PatternError> {
        if patterns.len() > MAX_PATTERNS {
            return Err(PatternError::TooMany { count: patterns.len() });
        }
        let patterns = patterns.iter().map(|pattern| Pattern::parse(pattern.as_ref().trim(), default_prefix));
        Ok(Self { patterns: patterns.collect::<Result<_, _>>()?, default_prefix: default_prefix.to_owned() })
    }

    /// Whether `image` may run.
    pub fn allows(&self, image: &Image) -> bool {
        let pairs = Pairs::of(image.repository());
        self.patterns.is_empty() || self.patterns.iter().any(|pattern| pattern.fits(image, &pairs))
    }

    /// Whether a call may run that asks for `image`, with this text in its `tag` field. The field counts as elsewhere: a
    /// version is a literal tag, a constraint may stand for any tag, other texts do not count, and none does beside a
    /// digest.
    ///
    /// # Errors
    /// A [`NotAllowed`], whose text is for the caller.
    pub fn check(&self, image: &str, tag_field: &str) -> Result<(), NotAllowed> {
        if self.patterns.is_empty() {
            return Ok(());
        }
        let mut image = Image::parse(image, &self.default_prefix)?;
        if !tag_field.is_empty() && image.digest().is_none() {
            if parse_version(tag_field).is_some() {
                image = image.with_tag(tag_field)?;
            } else if Constraint::parse(tag_field).is_ok() {
                let repository = image.repository();
                let pairs = Pairs::of(repository);
                let fits = |pattern: &Pattern| pattern.fits_every_tag_of(repository, &pairs);
                return if self.patterns.iter().any(fits) {
                    Ok(())
                } else {
                    let (repository, constraint) = (repository.to_owned(), tag_field.to_owned());
                    Err(NotAllowed::Constraint { repository, constraint })
                };
            }
        }
        if self.allows(&image) { Ok(()) } else { Err(NotAllowed::Image { image }) }
    }
}

// === impl Pattern ===

impl Pattern {
    fn parse(pattern: &str, default_prefix: &str) -> Result<Self, PatternError> {
        if pattern.is_empty() {
            return Err(PatternError::Empty);
        }
        if pattern.len() > MAX_REFERENCE_LEN {
            return Err(PatternError::TooLong { length: pattern.len() });
        }
        let malformed = || PatternError::Malformed { pattern: pattern.to_owned() };
        let (rest, digest) = match pattern.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest)),
            None => (pattern, None),
        };
        // As in a reference: a colon before the last slash belongs to a port.
        let (name, tag) = match rest.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
            _ => (rest, None),
        };
        // A digit may stand wherever a `*` may: what is no reference with it is none with any other text.
        let prefix = if name.starts_with("**") { "" } else { default_prefix };
        if Image::parse(&rest.replace('*', "1"), prefix).is_err() {
            return Err(malformed());
        }
        if let Some((first, _)) = name.split_once('/').filter(|(first, _)| is_unclear(first)) {
            return Err(PatternError::Unclear { pattern: pattern.to_owned(), first: first.to_owned() });
        }
        let in_digest = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || ":+._-*".contains(c);
        if digest.is_some_and(|digest| digest.is_empty() || !digest.chars().all(in_digest)) {
            return Err(malformed());
        }
        Ok(Self {
            repository: Glob::new(&canonical(name, default_prefix)),
            tag: tag.map(Glob::new).filter(|tag| !tag.is_anything()),
            digest: digest.map(Glob::new),
        })
    }

    /// `pairs` are those of the image's repository.
    fn fits(&self, image: &Image, pairs: &Pairs) -> bool {
        let fits = |glob: &Option<Glob>, text: Option<&str>| {
            glob.as_ref().is_none_or(|glob| text.is_some_and(|text| glob.fits(text, &Pairs::of(text))))
        };
        self.repository.fits(image.repository(), pairs)
            && (self.tag.is_none() || self.digest.is_some() || image.digest().is_none())
            && fits(&self.tag, image.tag())
            && fits(&self.digest, image.digest())
    }

    fn fits_every_tag_of(&self, repository: &str, pairs: &Pairs) -> bool {
        self.tag.is_none() && self.digest.is_none() && self.repository.fits(repository, pairs)
    }
}

/// Whether the part before the first slash may fit registries that it was not meant for.
fn is_unclear(first: &str) -> bool {
    let is_any = first.bytes().all(|byte| byte == b'*');
    // A `**` goes on behind the host: `**.example.com` would fit `x.org/a.example.com`.
    first.contains('*') && !is_any && (!looks_like_host(first) || first.contains("**"))
}

/// The repository of a pattern, with what a reference may leave out.
fn canonical(name: &str, default_prefix: &str) -> String {
    if name.starts_with("**") {
        return name.to_owned();
    }
    let prefix = default_prefix.trim_end_matches('/');
    let prefixed = match (name.contains('/'), prefix) {
        (true, _) | (_, "") => name.to_owned(),
        (false, prefix) => format!("{prefix}/{name}"),
    };
    let (registry, path) = match prefixed.split_once('/') {
        Some((first, path)) if looks_like_host(first) || first == "*" => (first.to_ascii_lowercase(), path),
        _ => (DOCKER_HUB.to_owned(), &*prefixed),
    };
    let registry = if registry == "index.docker.io" { DOCKER_HUB } else { &registry };
    // Only a single name is one of the library's.
    let library = registry == DOCKER_HUB && !path.contains('/') && !path.contains("**");
    format!("{registry}/{}{path}", if library { "library/" } else { "" })
}

// === impl Glob ===

impl Glob {
    fn new(text: &str) -> Self {
        let Some(first) = text.find('*') else {
            return Self { prefix: text.to_owned(), ..Self::default() };
        };
        let (_, suffix) = text.rsplit_once('*').unwrap_or_default();
        let mut middle: Vec<Token> = Vec::new();
        let wild = &text[first..text.len() - suffix.len()];
        let pairs = wild.split('*').map(Pairs::of).fold(Pairs::default(), Pairs::and);
        for byte in wild.bytes() {
            match (byte, middle.last_mut()) {
                (b'*', Some(last @ (Token::Part | Token::Any))) => *last = Token::Any,
                (b'*', _) => middle.push(Token::Part),
                _ => middle.push(Token::Byte(byte)),
            }
        }
        Self { prefix: text[..first].to_owned(), middle, pairs, suffix: suffix.to_owned() }
    }

    fn is_anything(&self) -> bool {
        self.prefix.is_empty()
            && self.suffix.is_empty()
            && matches!(self.middle[..], [Token::Part | Token::Any])
    }

    /// Nearly all patterns are decided by what stands before and behind their wildcards, and by the
    /// text's `pairs`.
    fn fits(&self, text: &str, pairs: &Pairs) -> bool {
        if !self.pairs.are_in(pairs) {
            return false;
        }
        let Some(rest) = text.strip_prefix(&*self.prefix).and_then(|rest| rest.strip_suffix(&*self.suffix))
        else {
            return false;
        };
        match self.middle[..] {
            [] => rest.is_empty(),
            [Token::Any] => true,
            [Token::Part] => !rest.contains('/'),
            _ => self.middle_fits(rest),
        }
    }

    /// Follows all ways to match at once, so that its time is at most the product of the lengths.
    fn middle_fits(&self, text: &str) -> bool {
        let tokens = &self.middle;
        // `ways[i]`: the text so far fits the first `i` tokens.
        let mut ways = vec![false; tokens.len() + 1];
        ways[0] = true;
        self.skip_empty(&mut ways);
        for byte in text.bytes() {
            let mut left = false;
            for i in (0..ways.len()).rev() {
                let stays = tokens.get(i).is_some_and(|token| match token {
                    Token::Byte(_) => false,
                    Token::Part => byte != b'/',
                    Token::Any => true,
                });
                let advances = i > 0 && ways[i - 1] && tokens[i - 1] == Token::Byte(byte);
                ways[i] = ways[i] && stays || advances;
                left |= ways[i];
            }
            if !left {
                return false;
            }
            self.skip_empty(&mut ways);
        }
        ways[tokens.len()]
    }

    /// A wildcard may stand for nothing.
    fn skip_empty(&self, ways: &mut [bool]) {
        for (i, token) in self.middle.iter().enumerate() {
            ways[i + 1] |= ways[i] && !matches!(token, Token::Byte(_));
        }
    }
}

// === impl Pairs ===

impl Pairs {
    fn of(text: &str) -> Self {
        let mut pairs = Self::default();
        for pair in text.as_bytes().windows(2) {
            let bit = pair[0].wrapping_mul(37) ^ pair[1];
            pairs.0[usize::from(bit / 64)] |= 1 << (bit % 64);
        }
        pairs
    }

    fn and(self, other: Self) -> Self {
        Self(std::array::from_fn(|at| self.0[at] | other.0[at]))
    }

    fn are_in(&self, other: &Self) -> bool {
        let missing = |at: usize| self.0[at] & !other.0[at];
        missing(0) | missing(1) | missing(2) | missing(3) == 0
    }
}

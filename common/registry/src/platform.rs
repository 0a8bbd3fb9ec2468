//! Platforms, `os/architecture[/variant]`, compared like in containerd. No I/O.

use std::fmt;

use serde::Deserialize;

/// Longest quote of an invalid text in an error, in characters.
const MAX_QUOTED: usize = 100;

/// The platform of function pods or of an image, in Go's names.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Deserialize)]
#[serde(from = "WirePlatform")]
pub struct Platform {
    os: String,
    architecture: String,
    /// Empty if the architecture has no variants, and for the first variant of amd64 and arm64.
    variant: String,
}

/// A platform in an index, and in an image configuration.
#[derive(Default, Deserialize)]
#[serde(default)]
struct WirePlatform {
    os: String,
    architecture: String,
    variant: Option<String>,
}

impl Platform {
    /// Reads `os/architecture[/variant]`.
    ///
    /// # Errors
    /// A text that names `--platform`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let is_word = |part: &&str| {
            (1..=32).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        };
        let parts: Vec<&str> = text.split('/').collect();
        match parts[..] {
            [os, architecture, ref rest @ ..] if rest.len() < 2 && parts.iter().all(is_word) => {
                Ok(Self::new(os, architecture, &rest.concat()))
            }
            _ => Err(format!(
                "--platform {:?} is not a platform: write os/architecture[/variant] with Go's names, such as \
                 linux/amd64 or linux/arm/v7",
                text.chars().take(MAX_QUOTED).collect::<String>()
            )),
        }
    }

    /// Normalizes the spelling: `x86_64` becomes `amd64`, `arm64/v8` becomes `arm64`, and `arm`
    /// becomes `arm/v7`.
    pub fn new(os: &str, architecture: &str, variant: &str) -> Self {
        let lower = str::to_ascii_lowercase;
        let (architecture, variant) = (lower(architecture), lower(variant));
        let variant = match variant.as_str() {
            "5" | "6" | "7" | "8" => format!("v{variant}"),
            _ => variant,
        };
        let (architecture, variant) = match (architecture.as_str(), variant.as_str()) {
            ("x86_64" | "x86-64" | "amd64", "v1") => ("amd64", ""),
            ("x86_64" | "x86-64", variant) => ("amd64", variant),
            ("aarch64" | "arm64", "v8") => ("arm64", ""),
            ("aarch64", variant) => ("arm64", variant),
            ("armhf", _) | ("arm", "") => ("arm", "v7"),
            ("armel", _) => ("arm", "v6"),
            ("i386" | "i486" | "i586" | "i686" | "386", _) => ("386", ""),
            as_it_is => as_it_is,
        };
        Self { os: lower(os), architecture: architecture.to_owned(), variant: variant.to_owned() }
    }

    /// The platforms whose images run on this one, best first: itself, lower variants, and the
    /// 32-bit platforms of the same processors.
    pub(crate) fn compatible(&self) -> Vec<Self> {
        let of = |architecture: &str, variant: &str| Self {
            os: self.os.clone(),
            architecture: architecture.to_owned(),
            variant: variant.to_owned(),
        };
        let number = self.variant.strip_prefix('v').and_then(|digits| digits.parse::<u8>().ok());
        let mut all = vec![self.clone()];
        let arm_below = |highest: u8| (5..=highest).rev().map(|number| of("arm", &format!("v{number}")));
        match self.architecture.as_str() {
            "amd64" => {
                all.extend((2..number.unwrap_or(1).min(9)).rev().map(|n| of("amd64", &format!("v{n}"))));
                all.extend([of("amd64", ""), of("386", "")]);
            }
            "arm64" => {
                all.push(of("arm64", ""));
                all.extend(arm_below(8));
            }
            "arm" => all.extend(arm_below(number.unwrap_or(7).min(9).saturating_sub(1))),
            _ => {}
        }
        all
    }
}

impl From<WirePlatform> for Platform {
    fn from(wire: WirePlatform) -> Self {
        Self::new(&wire.os, &wire.architecture, &wire.variant.unwrap_or_default())
    }
}

impl Default for Platform {
    /// Linux, on the architecture that this program was built for.
    fn default() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86" => "386",
            "powerpc64" if cfg!(target_endian = "little") => "ppc64le",
            other => other,
        };
        Self::new("linux", architecture, "")
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        if self.variant.is_empty() { Ok(()) } else { write!(f, "/{}", self.variant) }
    }
}

//! Platforms, `os/architecture[/variant]`, as containerd compares them. Pure.

use std::fmt;
use std::str::FromStr;

/// What function pods run on, in Go's names.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Platform {
    os: String,
    architecture: String,
    /// Empty where the architecture has no variants, and for the first of those of amd64 and arm64.
    variant: String,
}

/// Why a text is no platform.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "--platform {0:?} is none: write os/architecture[/variant] in Go's names, as linux/amd64 or linux/arm/v7"
)]
pub struct PlatformError(String);

impl Platform {
    /// Reads `os/architecture[/variant]`.
    ///
    /// # Errors
    /// A [`PlatformError`] that names `--platform`.
    pub fn parse(text: &str) -> Result<Self, PlatformError> {
        let is_word = |part: &&str| {
            (1..=32).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        };
        let parts: Vec<&str> = text.split('/').collect();
        if !parts.iter().all(is_word) {
            return Err(PlatformError(text.chars().take(100).collect()));
        }
        match parts[..] {
            [os, architecture] => Ok(Self::new(os, architecture, "")),
            [os, architecture, variant] => Ok(Self::new(os, architecture, variant)),
            _ => Err(PlatformError(text.chars().take(100).collect())),
        }
    }

    /// One spelling of each: `x86_64` is `amd64`, `arm64/v8` is `arm64`, `arm` is `arm/v7`.
    pub(crate) fn new(os: &str, architecture: &str, variant: &str) -> Self {
        let lower = str::to_ascii_lowercase;
        let (architecture, variant) = match (lower(architecture).as_str(), lower(variant).as_str()) {
            ("x86_64" | "x86-64" | "amd64", "" | "v1") => ("amd64".to_owned(), String::new()),
            ("x86_64" | "x86-64", variant) => ("amd64".to_owned(), variant.to_owned()),
            ("aarch64" | "arm64", "" | "8" | "v8") => ("arm64".to_owned(), String::new()),
            ("aarch64", variant) => ("arm64".to_owned(), variant.to_owned()),
            ("armhf", _) | ("arm", "" | "7") => ("arm".to_owned(), "v7".to_owned()),
            ("armel", _) | ("arm", "6") => ("arm".to_owned(), "v6".to_owned()),
            ("arm", "5") => ("arm".to_owned(), "v5".to_owned()),
            ("arm", "8") => ("arm".to_owned(), "v8".to_owned()),
            ("i386" | "i486" | "i586" | "i686" | "386", _) => ("386".to_owned(), String::new()),
            (architecture, variant) => (architecture.to_owned(), variant.to_owned()),
        };
        Self { os: lower(os), architecture, variant }
    }

    /// What runs here, the best first: itself, lower variants, and the 32 bits of the same processors.
    pub(crate) fn runs(&self) -> Vec<Self> {
        let of = |architecture: &str, variant: &str| Self {
            os: self.os.clone(),
            architecture: architecture.to_owned(),
            variant: variant.to_owned(),
        };
        let number = self.variant.strip_prefix('v').and_then(|digits| digits.parse::<u8>().ok());
        let mut runs = vec![self.clone()];
        let arm_below = |highest: u8| (5..=highest).rev().map(|number| of("arm", &format!("v{number}")));
        match self.architecture.as_str() {
            "amd64" => {
                runs.extend((2..number.unwrap_or(1).min(9)).rev().map(|n| of("amd64", &format!("v{n}"))));
                runs.extend([of("amd64", ""), of("386", "")]);
            }
            "arm64" => {
                runs.push(of("arm64", ""));
                runs.extend(arm_below(8));
            }
            "arm" => runs.extend(arm_below(number.unwrap_or(7).min(9).saturating_sub(1))),
            _ => {}
        }
        runs
    }
}

impl Default for Platform {
    /// Linux, with the processor that this was built for.
    fn default() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86" => "386",
            "powerpc64" if cfg!(target_endian = "little") => "ppc64le",
            other => other,
        };
        Self::new("linux", architecture, "")
    }
}

impl FromStr for Platform {
    type Err = PlatformError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        if self.variant.is_empty() { Ok(()) } else { write!(f, "/{}", self.variant) }
    }
}

//! A value and its source.

use std::fmt;
use std::time::Duration;

/// A value in effect, and its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting<T> {
    /// The value.
    pub value: T,
    /// Where the value is set.
    pub source: Source,
}

/// The place where a value is set. `Display` is for people. The kinds are in ascending order: a
/// later kind wins over an earlier one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The built-in default of a value without a flag.
    BuiltIn,
    /// The schema of FunctionConfigs in the cluster.
    Schema,
    /// The built-in default, because the cluster's schema does not say what tags mean.
    NoSchema,
    /// The default of the flag with this name, without dashes.
    Default(&'static str),
    /// The flag with this name, which the user set.
    Flag(&'static str),
    /// The entry of `--config` for this function.
    ExecConfig(String),
    /// The entry of `--pod-cache-config` with this name as written.
    CacheConfig(String),
    /// The FunctionConfig object with this name.
    FunctionConfig(String),
}

/// Settings of an image's pods, from one source. `None`: a lower source decides.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// How long an unused pod stays.
    pub ttl: Option<Duration>,
    /// Maximum number of pods.
    pub max_pods: Option<u32>,
    /// Number of pods that stay beyond their time to live. 0 overrides lower sources, too.
    pub min_pods: Option<u32>,
    /// Load of the least loaded pod at which one more pod is started.
    pub waitlist: Option<u32>,
}

// === impl Setting ===

impl<T> Setting<T> {
    /// This value, from this source.
    pub fn new(value: T, source: Source) -> Self {
        Self { value, source }
    }
}

// === impl Source ===

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuiltIn => f.write_str("default"),
            Self::Schema => f.write_str("schema of the cluster's FunctionConfigs"),
            Self::NoSchema => f.write_str(
                "default, because the schema of the cluster's FunctionConfigs does not describe the meaning of tags; see --functionconfig-tags",
            ),
            Self::Default(flag) => write!(f, "default of --{flag}"),
            Self::Flag(flag) => write!(f, "--{flag}"),
            Self::ExecConfig(function) => write!(f, "--config, function {function}"),
            Self::CacheConfig(entry) => write!(f, "--pod-cache-config, entry {entry}"),
            Self::FunctionConfig(name) => write!(f, "FunctionConfig {name}"),
        }
    }
}

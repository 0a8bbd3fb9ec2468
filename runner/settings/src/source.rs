//! A value, and where it comes from.

use std::fmt;
use std::time::Duration;

/// A value that holds, and why it does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting<T> {
    /// What holds.
    pub value: T,
    /// Where it is written.
    pub source: Source,
}

/// Where a value is written. `Display` is for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Nowhere, and there is no flag for it.
    BuiltIn,
    /// The default of the flag with this name, without dashes.
    Default(&'static str),
    /// The flag with this name, which the user set.
    Flag(&'static str),
    /// `--config`.
    ExecConfig {
        /// The function there.
        function: String,
    },
    /// `--pod-cache-config`.
    CacheConfig {
        /// The entry's name as written.
        entry: String,
    },
    /// The schema of FunctionConfigs in the cluster.
    Schema,
    /// The built-in default, since that schema cannot be read or does not say.
    NoSchema,
    /// An object in the cluster.
    FunctionConfig {
        /// Its name.
        name: String,
    },
}

/// What one source says of an image's pods. `None`: nothing, so that a source below it counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits {
    /// How long an unused pod stays.
    pub ttl: Option<Duration>,
    /// Most pods.
    pub max_pods: Option<u32>,
    /// Pods that are kept whatever the time to live says. 0 is said too: none, whatever a source below says.
    pub min_pods: Option<u32>,
    /// Load of the least loaded pod from which on one more pod is started.
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

impl Source {
    /// A greater rank wins.
    pub(crate) fn rank(&self) -> u8 {
        match self {
            Self::BuiltIn | Self::Schema | Self::NoSchema => 0,
            Self::Default(_) => 1,
            Self::Flag(_) => 2,
            Self::ExecConfig { .. } | Self::CacheConfig { .. } => 3,
            Self::FunctionConfig { .. } => 4,
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuiltIn => f.write_str("default"),
            Self::Schema => f.write_str("schema of the cluster's FunctionConfigs"),
            Self::NoSchema => f.write_str(
                "default, since the schema of the cluster's FunctionConfigs does not say; see --functionconfig-tags",
            ),
            Self::Default(flag) => write!(f, "default of --{flag}"),
            Self::Flag(flag) => write!(f, "--{flag}"),
            Self::ExecConfig { function } => write!(f, "--config, function {function}"),
            Self::CacheConfig { entry } => write!(f, "--pod-cache-config, entry {entry}"),
            Self::FunctionConfig { name } => write!(f, "FunctionConfig {name}"),
        }
    }
}

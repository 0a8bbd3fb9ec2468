//! The nouns of the pool. Each is a newtype, so that an image cannot be passed where a uid belongs.

use std::fmt;
use std::ops::{Add, Sub};
use std::sync::Arc;
use std::time::Duration;

/// A moment on this runner's wall clock, in milliseconds since the Unix epoch.
///
/// Wall clock and not a monotonic one, because moments are compared with those that other runners wrote into pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

// === impl Time ===

impl Time {
    /// A moment from milliseconds since the Unix epoch.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the Unix epoch.
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// How long `self` is after `earlier`; zero when it is not.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(span.as_millis()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Time {
    type Output = Self;

    fn sub(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(span.as_millis()).unwrap_or(u64::MAX)))
    }
}

macro_rules! text {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Wraps a text.
            pub fn new(text: impl Into<Arc<str>>) -> Self {
                Self(text.into())
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.into())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text.into())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }
    };
}

text! {
    /// The canonical image reference. All pods of one image are interchangeable.
    ImageKey
}
text! {
    /// What the ring hashes to find the owner: the image reference, or the repository alone under a tag constraint.
    ShardKey
}
text! {
    /// The identity of one pod object, unique for ever; a name is not.
    Uid
}
text! {
    /// The state of a pod object that a judgement was based on. Opaque: only equality means something.
    ResourceVersion
}
text! {
    /// A configuration, condensed by the backend; the image's content is not in it. Only equality means something.
    Version
}
text! {
    /// The content that an image's tag stands for. Only equality means something.
    Digest
}

impl From<&ImageKey> for ShardKey {
    fn from(image: &ImageKey) -> Self {
        Self(Arc::clone(&image.0))
    }
}

/// One waiting or running call. The driver numbers them and never uses a number twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// A pod's name, before the backend turns it into a string. Equal values must give equal strings on every runner:
/// that collision is what arbitrates between runners.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodName {
    /// The image that the pod serves.
    pub image: ImageKey,
    /// `0..max_pods`; the slot `max_pods` is the surge slot, used only to replace a pod.
    pub slot: u32,
    /// The pod stuck in termination whose name in this slot is passed by.
    pub past: Option<Uid>,
}

/// How far a pod has come, as its object says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Not running yet. The reason, such as "unschedulable", is said if the pod is not ready in time.
    Pending(Option<Reason>),
    /// Its containers run. Whether it serves is for the probe to say.
    Running,
    /// It cannot start, or it died. It never recovers.
    Failed(Reason),
}

/// Why a pod could not be created or cannot serve: a text from a fixed table, free of names, addresses and times,
/// since it reaches Porch and may be committed to git.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The pod's name is held by a pod that is not ours.
    #[error(
        "a pod that this runner does not manage holds the name of the function's pod: remove it from the function namespace"
    )]
    NameTaken,
    /// The pods there are were never listed, so none can be made.
    #[error(
        "the runner could not list the pods of the function namespace: check that it reaches the API server and that its Role \
         has the verbs list and watch on pods"
    )]
    NotListed,
    /// What the backend found, with what to do about it.
    #[error("{text}")]
    Found {
        /// Its name in metrics, from a fixed set.
        kind: &'static str,
        /// What is said.
        text: Arc<str>,
    },
    /// The same of what needs no name of its own.
    #[error("{0}")]
    Other(Arc<str>),
}

/// What a pod was made from, or is to be made from: a configuration and an image's content, each with how new it is.
///
/// Runners write different times beside one and the same part, such as their own start or when they first asked a
/// registry. So a time counts only where its part differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The configuration (`fn.kpt.dev/template-version`).
    pub version: Version,
    /// When it was written (`fn.kpt.dev/config-time`). `None` is the oldest.
    pub config_time: Option<Time>,
    /// `None`: not known, or for the node to find out.
    pub content: Option<Content>,
}

/// The content of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// Which one (`fn.kpt.dev/image-digest`).
    pub digest: Digest,
    /// Since when the tag stands for it, as far as known (`fn.kpt.dev/resolved-at`). `None` is the oldest.
    pub resolved: Option<Time>,
}

// === impl Reason ===

impl Reason {
    /// Its name in metrics, from a fixed set.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::NameTaken => "name_taken",
            Self::NotListed => "not_listed",
            Self::Found { kind, .. } => kind,
            Self::Other(_) => "other",
        }
    }
}

// === impl Origin ===

impl Origin {
    /// A configuration alone.
    pub fn of(version: impl Into<Version>, config_time: Option<Time>) -> Self {
        Self { version: version.into(), config_time, content: None }
    }

    /// Whether a pod made from `new` would be another one. Content that `new` does not know is no difference.
    pub fn differs_from(&self, new: &Self) -> bool {
        self.version != new.version || self.content_differs_from(new)
    }

    /// Whether a pod made from this is outdated where `new` holds: it differs, and in no part that differs is it the newer
    /// one.
    pub fn yields_to(&self, new: &Self) -> bool {
        let resolved = |origin: &Self| origin.content.as_ref().and_then(|content| content.resolved);
        let newer_version = self.version != new.version && self.config_time > new.config_time;
        let newer_content = self.content_differs_from(new) && resolved(self) > resolved(new);
        self.differs_from(new) && !newer_version && !newer_content
    }

    fn content_differs_from(&self, new: &Self) -> bool {
        new.content
            .as_ref()
            .is_some_and(|new| self.content.as_ref().is_none_or(|own| own.digest != new.digest))
    }
}

/// A pod as observed. Pods that are not ours are never reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Image and slot.
    pub name: PodName,
    /// The object's identity.
    pub uid: Uid,
    /// The object's state, for optimistic concurrency.
    pub resource_version: ResourceVersion,
    /// The key that decides its owner (`fn.kpt.dev/shard-key`).
    pub shard_key: ShardKey,
    /// The deletion timestamp: the moment by which it should be gone. `None` while it lives.
    pub terminating_since: Option<Time>,
    /// How far it has come.
    pub phase: Phase,
    /// What it was made from.
    pub origin: Origin,
    /// It may be collected past this moment (`fn.kpt.dev/reclaim-after`).
    pub reclaim_after: Option<Time>,
    /// When another runner last asked its owner to evict it (`fn.kpt.dev/place-wanted`).
    pub place_wanted: Option<Time>,
}

//! The values that events and actions carry. Each is a newtype, so that an image cannot be passed
//! where a uid belongs.

use std::fmt;
use std::ops::{Add, Sub};
use std::sync::Arc;
use std::time::Duration;

/// A moment on this runner's wall clock, in milliseconds since the Unix epoch.
///
/// It is the wall clock because the pool compares it with times that other runners wrote into pods.
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

    /// The time from `earlier` to `self`; zero if `self` is not later.
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
        #[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl<T: Into<Arc<str>>> From<T> for $name {
            fn from(text: T) -> Self {
                Self(text.into())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

text! {
    /// The canonical image reference. All pods of one image are interchangeable.
    ImageKey
}
text! {
    /// The key that the hash ring maps to the owner: the image reference, or only the repository if
    /// the request has a tag constraint.
    ShardKey
}
text! {
    /// The identity of one pod object. Unlike a name, it is never reused.
    Uid
}
text! {
    /// The version of a pod object that a decision was based on. Opaque: compare for equality only.
    ResourceVersion
}
text! {
    /// A hash of the pod template and settings, without the image's content. Compare for equality
    /// only.
    Version
}
text! {
    /// The digest that an image's tag resolves to. Compare for equality only.
    Digest
}

/// A function that the driver passes to the pool. The pool calls it to look up a value.
#[derive(Clone)]
pub struct Lookup<K, V>(Arc<dyn Fn(&K) -> V + Send + Sync>);

// === impl Lookup ===

impl<K, V> Lookup<K, V> {
    /// Looks up values with `find`.
    pub fn by(find: impl Fn(&K) -> V + Send + Sync + 'static) -> Self {
        Self(Arc::new(find))
    }

    /// The value for `key`.
    pub fn find(&self, key: &K) -> V {
        (self.0)(key)
    }
}

impl<K, V> fmt::Debug for Lookup<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lookup(..)")
    }
}

/// One waiting or running call. The driver numbers calls and never uses a number twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// A pod's name, before the backend turns it into a string. Equal values must give equal strings on
/// every runner: the API server then lets only one of several creates succeed.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodName {
    /// The image that the pod serves.
    pub image: ImageKey,
    /// `0..max_pods`. Slot `max_pods` is the surge slot, an extra slot: a replacement may start
    /// there before its predecessor ends.
    pub slot: u32,
    /// The uid of a pod that is stuck in termination and still holds a name of this slot. With this
    /// uid, the new pod of the slot has another name.
    pub past: Option<Uid>,
}

/// The phase of a pod, according to its object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Not running yet. If the pod is not ready in time, the error for callers includes the reason,
    /// such as "unschedulable".
    Pending(Option<Reason>),
    /// Its containers run. The probe finds out whether it serves.
    Running,
    /// The pod cannot start, or it died. It never recovers.
    Failed(Reason),
}

/// Why a pod could not be created or cannot serve.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Reason {
    /// The reason's name in metrics, from a fixed set.
    pub kind: &'static str,
    /// What happened and what to do about it. It comes from a fixed table, without names, addresses
    /// and times: it reaches Porch and may be committed to git.
    pub text: Arc<str>,
}

/// The source of a pod: a configuration and the image's content, each with its time.
///
/// Runners write different times for the same part, such as their own start or their first request
/// to a registry. Times are therefore compared only if the parts differ. If both parts shared one
/// time, a runner that started late with an old digest would replace pods of a newer digest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodRecipe {
    /// The configuration (`fn.kpt.dev/template-version`).
    pub version: Version,
    /// When the configuration was written (`fn.kpt.dev/config-time`). `None` counts as the oldest.
    pub config_time: Option<Time>,
    /// The image's content. `None` if it is unknown, or if the node resolves the tag.
    pub content: Option<ImageContent>,
}

/// The content of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageContent {
    /// The digest (`fn.kpt.dev/image-digest`).
    pub digest: Digest,
    /// When a runner first saw the tag resolve to it (`fn.kpt.dev/resolved-at`). `None` counts as
    /// the oldest.
    pub resolved: Option<Time>,
}

// === impl Reason ===

impl Reason {
    /// Creates a reason with this text. `kind` is its name in metrics.
    pub fn new(kind: &'static str, text: impl Into<Arc<str>>) -> Self {
        Self { kind, text: text.into() }
    }
}

// === impl PodRecipe ===

impl PodRecipe {
    /// A recipe with a configuration, but without content.
    pub fn of(version: impl Into<Version>, config_time: Option<Time>) -> Self {
        Self { version: version.into(), config_time, content: None }
    }

    /// Whether a pod created from `new` would be different. If `new` has no content, the contents
    /// are not compared.
    pub fn differs_from(&self, new: &Self) -> bool {
        self.version != new.version || self.content_differs_from(new)
    }

    /// Whether a pod of this recipe is outdated by `new`: the recipes differ, and no differing part
    /// is newer in `self`.
    pub fn is_outdated_by(&self, new: &Self) -> bool {
        let resolved = |recipe: &Self| recipe.content.as_ref().and_then(|content| content.resolved);
        let newer_version = self.version != new.version && self.config_time > new.config_time;
        let newer_content = self.content_differs_from(new) && resolved(self) > resolved(new);
        self.differs_from(new) && !newer_version && !newer_content
    }

    fn content_differs_from(&self, new: &Self) -> bool {
        let digest = |recipe: &Self| recipe.content.as_ref().map(|content| content.digest.clone());
        new.content.is_some() && digest(self) != digest(new)
    }
}

/// A pod as observed. The driver reports only pods that the runners manage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// Image and slot.
    pub name: PodName,
    /// The object's identity.
    pub uid: Uid,
    /// The object's version, for optimistic concurrency.
    pub resource_version: ResourceVersion,
    /// The key that decides its owner (`fn.kpt.dev/shard-key`).
    pub shard_key: ShardKey,
    /// The deletion timestamp: the time when the pod should be gone. `None` if it is not
    /// terminating.
    pub terminating_since: Option<Time>,
    /// The phase of the pod.
    pub phase: Phase,
    /// What the pod was created from.
    pub recipe: PodRecipe,
    /// The owner may delete the pod after this moment (`fn.kpt.dev/reclaim-after`).
    pub reclaim_after: Option<Time>,
    /// When a runner that does not own the pod last asked the owner to evict the pod
    /// (`fn.kpt.dev/place-wanted`).
    pub place_wanted: Option<Time>,
}

impl Default for Phase {
    fn default() -> Self {
        Self::Pending(None)
    }
}

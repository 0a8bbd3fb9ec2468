//! Images of functions: what they are called, and what is derived from that.
//!
//! Router and runners must read a reference alike, or one function gets two shards and two pools. So the
//! reading is here, once, with everything that hangs on it: the shard key on the ring, the constraint that
//! picks a tag, the name of a pod, the list of images that may run. The crate is pure: no I/O, no clock, no logging.

mod allowed;
mod constraint;
mod pod_name;
mod reference;
mod shard_key;

pub use allowed::{AllowedImages, NotAllowed, PatternError};
pub use constraint::{Constraint, ConstraintError, parse_version};
pub use pod_name::{pod_name, pod_name_past};
pub use reference::{Image, MAX_REFERENCE_LEN, ReferenceError};
pub use semver::Version;
pub use shard_key::shard_key;

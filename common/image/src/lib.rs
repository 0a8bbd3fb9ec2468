//! References of function images.
//!
//! If router and runner parsed a reference differently, two runners could start pods for one
//! function. Therefore both programs use this crate. It contains the reference, the shard key on
//! the ring, the constraint that chooses a tag, the name of a pod, and the list of images that may
//! run. The crate is pure: no I/O, no clock, no logging.

mod allowed;
mod constraint;
mod glob;
mod pod_name;
mod reference;
mod shard_key;

pub use allowed::{AllowedImages, NotAllowed, PatternError};
pub use constraint::{Constraint, parse_version, sorted_versions};
pub use glob::glob_matches;
pub use pod_name::pod_name;
pub use reference::{Image, MAX_REFERENCE_LEN, ReferenceError, is_digest, is_tag};
pub use semver::Version;
pub use shard_key::shard_key;

//! The owner of the files of all images.

use rustix::fs::{Gid, Uid};
use serde::{Deserialize, Serialize};

/// A user and a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The user's number.
    pub uid: u32,
    /// The group's number.
    pub gid: u32,
}

impl Owner {
    pub(crate) fn uid(self) -> Uid {
        Uid::from_raw(self.uid)
    }

    pub(crate) fn gid(self) -> Gid {
        Gid::from_raw(self.gid)
    }
}

//! Function images on a machine's disk, without a container engine.
//!
//! [`Store`] pulls images from registries, imports archives, and unpacks each layer once on top of its
//! parents. [`Stored`] is an image that is ready to start: its configuration, and a lease on its
//! trees.
//!
//! ```text
//! --image-dir
//! ├── lock              shared: for the moments of a change; exclusive: removal
//! ├── images/KEY.json   one file per reference; its modification time is when it was last used
//! ├── blobs/DIGEST      manifests, configurations and compressed layers, as in the registry
//! ├── layers/KEY/       a layer on top of its parents: fs/ for overlayfs, and tree.json
//! └── tmp/              folders of running processes; one without a lock is removed
//! ```
//!
//! What has a final name is complete: content is written below `tmp/`, and renamed at the end. So a
//! process may be killed at any time, and several processes may use one folder. Nothing is trusted
//! for its name: documents are hashed each time that they are read, layers when they are unpacked or
//! exported. What is damaged counts as absent, and the next pull or import replaces it.

mod archive;
mod child;
mod content;
mod error;
mod manage;
mod pull;
mod run_folder;
mod store;
mod trees;
pub mod unpack;

pub use child::unpack_child;
pub use error::StoreError;
pub use manage::Pruned;
pub use pull::{Progress, Watch};
pub use run_folder::RunFolder;
pub use store::{ImageInfo, Record, Store, Stored};

//! Function images on a machine's disk, without a container engine.
//!
//! [`Store`] pulls images from registries, imports archives, and unpacks each layer once into a
//! folder of its own. [`Stored`] is an image that is ready to start: its configuration, and a lease
//! on its layers.
//!
//! ```text
//! --image-dir
//! ├── lock              shared: a pull or a start; exclusive: removal
//! ├── images/KEY.json   one file per reference; its modification time is when it was last used
//! ├── blobs/DIGEST      manifests, configurations and compressed layers, as in the registry
//! ├── layers/DIGEST/    a layer by the digest of its tar stream: fs/ and contents.json
//! ├── merged/KEY/       the layers of an image in one folder, where the kernel cannot stack them
//! ├── run/              sockets of running processes
//! └── tmp/              unfinished: whatever is here without a running pull is removed
//! ```
//!
//! What has a final name is complete: content is written below `tmp/`, and renamed at the end. So a
//! process may be killed at any time, and several processes may use one folder.

mod archive;
mod config;
mod content;
mod error;
mod export;
mod manage;
mod merge;
mod owner;
mod prune;
mod pull;
mod record;
mod store;
mod stored;
pub mod unpack;

pub use archive::Archive;
pub use config::RunConfig;
pub use error::StoreError;
pub use manage::Details;
pub use owner::Owner;
pub use prune::Pruned;
pub use pull::Progress;
pub use record::ImageInfo;
pub use store::{Options, RunFolder, Store};
pub use stored::Stored;

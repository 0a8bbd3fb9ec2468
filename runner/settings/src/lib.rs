//! Computes the values in effect for one function from flags, files and FunctionConfig objects,
//! without I/O.
//!
//! Porch's users configure the function runner in four places: flags, `--config` (executables),
//! `--pod-cache-config` (limits of images) and FunctionConfig objects. This crate reads each of
//! them into its own type, and [`Settings`] combines them: [`Settings::of`] returns the values for
//! an image, each with its source. For each field, the order is: FunctionConfig,
//! `--pod-cache-config`, a flag that the user set, the flag's default. The first source with a
//! value wins. For executables, a FunctionConfig with an executable that exists wins over
//! `--config`.

mod cache_config;
mod exec_config;
mod field;
mod function_config;
mod function_configs;
mod overrides;
mod page;
mod quantity;
mod settings;
mod source;
mod tags;
pub mod yaml;

pub use cache_config::{CacheConfig, Entry};
pub use exec_config::ExecConfig;
pub use function_config::{
    BinaryExecutor, FunctionConfig, MAX_REPLICAS, MIN_REPLICAS, NO_EXECUTABLE, PodExecutor,
};
pub use function_configs::FunctionConfigs;
pub use overrides::{ContainerOverrides, PodOverrides};
pub use page::{Page, Row, page};
pub use quantity::quantity;
pub use settings::{Effective, Flags, Range, Resolved, Settings};
pub use source::{Limits, Setting, Source};
pub use tags::{TagSemantics, Tags};

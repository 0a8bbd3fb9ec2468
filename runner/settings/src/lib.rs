//! What holds for one function, out of flags, files and FunctionConfig objects. Pure.
//!
//! Porch's users configure the function runner in four places: flags, `--config` (executables),
//! `--pod-cache-config` (limits of images) and FunctionConfig objects. Each is read here into a type of its own, and
//! [`Settings`] lays them over each other: [`Settings::of`] is the one answer to what holds for an image, and says of
//! each value where it comes from. Field by field, a FunctionConfig wins over `--pod-cache-config`, that over a flag
//! that the user set, and that over the flag's default; for executables, a FunctionConfig whose executable exists wins
//! over `--config`.

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
pub use exec_config::{Duplicate, ExecConfig, Executable};
pub use function_config::{
    BinaryExecutor, FunctionConfig, FunctionConfigError, MAX_REPLICAS, MIN_REPLICAS, NO_EXECUTABLE,
    PodExecutor, Spec,
};
pub use function_configs::{FunctionConfigs, MAX_FUNCTION_CONFIGS};
pub use overrides::{ContainerOverrides, PodOverrides};
pub use page::{Page, Row, page};
pub use settings::{Effective, Flag, Flags, OverridesFrom, Range, Resolved, Settings};
pub use source::{Limits, Setting, Source};
pub use tags::{TagSemantics, Tags};

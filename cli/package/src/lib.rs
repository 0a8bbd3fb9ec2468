//! kpt packages as functions see them: a directory of YAML in, a ResourceList out, and back.
//!
//! kpt does this with kyaml's `LocalPackageReadWriter`; `porch-fn eval` has to send a function the same items
//! with the same annotations, or its answer would differ from what Porch renders. Unlike kyaml, nothing here
//! is re-formatted: items travel as the text that the user wrote, and of an item that comes back only the
//! values that changed are edited in that text. A function that changes nothing leaves every file untouched,
//! byte for byte.
//!
//! ```text
//! read(dir) ──▶ Package ──to_resource_list──▶ function ──▶ split ──▶ Output ──write(dir)──▶ Changes
//! ```
//!
//! An item is written anew, without its comments, only where no text edit can carry the annotations: metadata
//! that is an alias, a `%TAG` directive, or a function that answers in JSON. Values are never changed.

mod annotations;
mod cut;
mod file;
mod function_config;
mod output;
mod read;
mod resource_list;
mod results;
mod write;
mod yaml;

#[cfg(test)]
mod tests;

pub use file::{DocumentError, Package};
pub use function_config::{FunctionConfig, FunctionConfigError};
pub use output::{Item, Output, SplitError, split};
pub use read::{ReadError, read};
pub use resource_list::{ResourceListError, set_function_config};
pub use results::{FieldRef, FileRef, ResourceRef, ResultItem, Severity};
pub use write::{Changes, WriteError, write};

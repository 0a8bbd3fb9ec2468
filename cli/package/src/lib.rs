//! Converts a kpt package (a directory of YAML) to a ResourceList for a function, and back.
//!
//! kpt does this with kyaml's `LocalPackageReadWriter`. `porch-fn eval` must send a function the
//! same items with the same annotations, or the result would differ from what Porch renders. Unlike
//! kyaml, this crate does not re-format files: it sends items as the text that the user wrote. In a
//! returned item, it edits only the values that the function changed. If a function changes
//! nothing, every file stays the same, byte for byte.
//!
//! ```text
//! read(dir) ──▶ Package ──to_resource_list──▶ function ──▶ split ──▶ Output ──write(dir)──▶ files
//! ```
//!
//! An error is a text that names the fault and its fix. It needs no type, because no caller
//! distinguishes errors.
//!
//! # Libraries
//!
//! granit-parser reads the YAML: it gives the bytes of each node and the comments. serde-saphyr
//! writes strings and resolves numbers. No library edits new values into an existing text well
//! enough. These were tried in November 2026 on the 165 documents of tests/packages, and on 3 with
//! flow style, aliases and Windows lines:
//!
//! - yamlpatch 1.25 (later versions need Rust 1.97) cannot replace a list (84 of 84), loses the
//!   other fields of a flow mapping, writes the string "1" as a number in flow style, and leaves
//!   `metadata:` null after its last field was removed (22 documents).
//! - noyalib 0.0.58 fails to replace a block list, or writes a wrong value (82 of 84). It cannot
//!   add to flow style and empty mappings.
//! - rust-yaml 1.1 changes every document; 26 lose comments.
//! - yaml-edit 0.3.6 makes one change wrongly: if it changes an anchored value, the value's aliases
//!   change too. It makes all other changes correctly. It could replace only the code of
//!   `yaml/patch.rs`, and would add a second parser with its own tree. It does not compare values
//!   in different spellings. It does not copy new lines with their comments from the function's
//!   text.
//! - yaml-rust2, saphyr and serde-saphyr serialize the whole document again, without comments. They
//!   were not tried.

mod annotations;
mod documents;
mod file;
mod function_config;
mod list_items;
mod output;
mod read;
mod select;
mod write;
mod yaml;

#[cfg(test)]
mod tests;

pub use file::Package;
pub use function_config::FunctionConfig;
pub use output::{Output, Unselected, is_resource_list, results_yaml, split, split_with};
pub use read::{documents, read};
pub use select::Selector;
pub use write::{require_new, write, write_new};

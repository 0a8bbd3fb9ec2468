//! Reads what the function gets: a package directory, or standard input.

use std::fmt::Display;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use porch_fn_package::{FunctionConfig, Package, Selector, Unselected};

use super::{Destination, EvalArgs};
use crate::failure::Failure;

/// The directory that means standard input.
const STDIN: &str = "-";

/// The function's input, and the package that it belongs to.
pub(super) struct Input {
    /// The ResourceList for the function.
    pub(super) list: Bytes,
    /// The resources that the function does not get.
    pub(super) unselected: Unselected,
    /// The directory and its package. `None`: standard input is a ResourceList. YAML documents of
    /// standard input have the directory `-`.
    pub(super) package: Option<(PathBuf, Package)>,
    /// Number of resources that `--match-...` selected. `None`: the function gets all resources.
    pub(super) selected: Option<usize>,
}

// === impl Input ===

impl Input {
    pub(super) fn read(args: &EvalArgs, config: Option<&FunctionConfig>) -> Result<Self, Failure> {
        let limit = args.max_request_body_size;
        let directory = args.directory.as_ref().or(args.package.as_ref());
        let directory = directory.map_or(Path::new("."), PathBuf::as_path);
        let selector = args.matching.selector();
        if directory != Path::new(STDIN) {
            let package = porch_fn_package::read(directory, limit as u64).map_err(Failure::usage)?;
            return Ok(Self::of(directory, package, &selector, config));
        }
        if args.write {
            return Err(Failure::usage("--write needs a package directory, not standard input; see -o"));
        }
        let failed = |error: &dyn Display| Failure::usage(format!("standard input: {error}"));
        let text = String::from_utf8(read_stdin(limit)?);
        let text = text.map_err(|_| failed(&"it is not UTF-8; convert it"))?;
        if !porch_fn_package::is_resource_list(&text) {
            let package = porch_fn_package::documents(text).map_err(|error| failed(&error))?;
            return Ok(Self::of(directory, package, &selector, config));
        }
        if selector != Selector::default() {
            return Err(Failure::usage(
                "--match-... needs a package directory or YAML documents, not a ResourceList",
            ));
        }
        let list = match config {
            Some(config) => config.set_in(text.as_bytes()).map_err(|error| failed(&error))?,
            None => text,
        };
        Ok(Self { list: list.into(), unselected: Unselected::default(), package: None, selected: None })
    }

    fn of(directory: &Path, package: Package, selector: &Selector, config: Option<&FunctionConfig>) -> Self {
        let (selected, unselected) = package.select(selector);
        let list = selected.to_resource_list(config).into();
        let selected = (*selector != Selector::default()).then(|| selected.item_count());
        Self { list, unselected, package: Some((directory.to_owned(), package)), selected }
    }

    /// Where the result goes by default: it has the form of the input.
    pub(super) fn destination(&self) -> Destination {
        let is_documents = self.package.as_ref().is_some_and(|(directory, _)| directory == Path::new(STDIN));
        if is_documents { Destination::Unwrap } else { Destination::Stdout }
    }

    /// Returns whether the function gets all resources, so that its output has all resources.
    pub(super) fn is_whole(&self) -> bool {
        self.selected.is_none()
    }
}

fn read_stdin(limit: usize) -> Result<Vec<u8>, Failure> {
    let mut list = Vec::new();
    let mut stdin = std::io::stdin().lock().take((limit as u64).saturating_add(1));
    let read = stdin.read_to_end(&mut list);
    read.map_err(|error| Failure::usage(format!("standard input: {error}")))?;
    if list.len() > limit {
        let text = format!("standard input is larger than {limit} bytes; see --max-request-body-size");
        return Err(Failure::usage(text));
    }
    Ok(list)
}

//! `porch-fn exec-config`: prints the runners' `--config` for a folder of executables of the
//! catalog, such as `/home/nonroot/functions` of Porch's function runner.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use porch_fn_image::Image;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::output::{note, show, yaml};
use crate::porch_config::CATALOG;

/// Executables in the image of Porch's function runner, with their versions. Source:
/// func/Dockerfile of kptdev/porch at 610c4df7.
const KNOWN: [(&str, &str); 10] = [
    ("apply-setters", "v0.2.4"),
    ("ensure-name-substring", "v0.2.1"),
    ("search-replace", "v0.2.3"),
    ("set-annotations", "v0.1.7"),
    ("set-image", "v0.2.2"),
    ("set-labels", "v0.2.4"),
    ("set-namespace", "v0.4.5"),
    ("set-project-id", "v0.2.1"),
    ("starlark", "v0.5.5"),
    ("upsert-resource", "v0.2.3"),
];

#[derive(Debug, clap::Args)]
pub(crate) struct ExecConfigArgs {
    /// The folder with the executables; the runners' --functions
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Version of an executable, if it is not the version in Porch's image or porch-fn does not
    /// know the function; may be repeated
    #[arg(long = "tag", value_name = "NAME=TAG", value_parser = tagged)]
    tags: Vec<Tagged>,
}

/// The name and the version of an executable, as the user gives them.
type Tagged = (String, String);

/// Prints the `--config` for the executables in a folder.
pub(crate) fn run(args: &ExecConfigArgs) -> Result<ExitCode, Failure> {
    let folder = args.directory.display();
    let executables = executables(&args.directory)?;
    if let Some((missing, _)) = args.tags.iter().find(|(name, _)| !executables.contains(name)) {
        return Err(Failure::new(format!(
            "{folder} has no executable {missing}; correct --tag or remove it"
        )));
    }
    let (functions, unknown) = functions(&executables, &args.tags);
    for name in unknown {
        note(format_args!(
            "porch-fn exec-config: {name} is left out, since its version is unknown; add --tag {name}=TAG"
        ));
    }
    if functions.is_empty() {
        return Err(Failure::new(format!(
            "{folder} has no executable whose version is known; give versions with --tag NAME=TAG"
        )));
    }
    show(&yaml(&[json!({"functions": functions})])?);
    Ok(ExitCode::SUCCESS)
}

/// Returns the names of the executables in a folder, sorted.
fn executables(directory: &Path) -> Result<Vec<String>, Failure> {
    let folder = directory.display();
    let failed = |error| Failure::new(format!("{folder}: {error}"));
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        // `metadata` follows symbolic links. Skip a link without a target.
        let Ok(metadata) = fs::metadata(entry.path()) else { continue };
        if metadata.is_file() && metadata.permissions().mode() & 0o111 != 0 {
            names.extend(entry.file_name().into_string().ok());
        }
    }
    names.sort();
    Ok(names)
}

/// Returns the functions for the configuration, and the executables without a known version. Tags
/// from the user replace the known version.
fn functions<'a>(executables: &'a [String], tags: &[Tagged]) -> (Vec<Value>, Vec<&'a str>) {
    let (mut functions, mut unknown) = (Vec::new(), Vec::new());
    for name in executables {
        let of_name = |(of, _): &(&str, &str)| of == name;
        let given = tags.iter().map(|(name, tag)| (name.as_str(), tag.as_str())).filter(of_name);
        let mut tags: Vec<_> = given.collect();
        if tags.is_empty() {
            tags.extend(KNOWN.into_iter().filter(of_name));
        }
        // Porch uses both spellings of a version: with and without the leading `v`.
        let spellings = tags.iter().flat_map(|(_, tag)| std::iter::once(*tag).chain(tag.strip_prefix('v')));
        let images: Vec<_> = spellings.map(|tag| format!("{CATALOG}/{name}:{tag}")).collect();
        if images.is_empty() {
            unknown.push(name.as_str());
        } else {
            functions.push(json!({"function": name, "images": images}));
        }
    }
    (functions, unknown)
}

fn tagged(text: &str) -> Result<Tagged, String> {
    let (name, tag) = text.split_once('=').ok_or("write NAME=TAG, such as set-labels=v0.2.4")?;
    Image::parse(&format!("{CATALOG}/{name}:{tag}"), "").map_err(|error| error.to_string())?;
    Ok((name.to_owned(), tag.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_versions_replace_the_known_ones() {
        let names = ["mine", "set-labels", "set-namespace", "theirs"].map(str::to_owned);
        let tags = ["set-labels=v0.1.5", "set-labels=v0.1", "mine=latest"].map(|text| tagged(text).unwrap());
        let (found, unknown) = functions(&names, &tags);
        assert_eq!(unknown, ["theirs"]);
        for (found, (name, tags)) in found.iter().zip([
            ("mine", &["latest"][..]),
            ("set-labels", &["v0.1.5", "0.1.5", "v0.1", "0.1"]),
            ("set-namespace", &["v0.4.5", "0.4.5"]),
        ]) {
            let images: Vec<_> = tags.iter().map(|tag| format!("{CATALOG}/{name}:{tag}")).collect();
            assert_eq!(*found, json!({"function": name, "images": images}));
        }
        for wrong in ["set-labels", "a=b c", "=v1", "a="] {
            assert!(tagged(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_tag_without_executable_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("set-labels");
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        let tags = ["set-labels=v0.1", "set-lables=v0.1.5"].map(|text| tagged(text).unwrap()).to_vec();
        let error = run(&ExecConfigArgs { directory: folder.path().to_owned(), tags }).unwrap_err();
        let expected =
            format!("{} has no executable set-lables; correct --tag or remove it", folder.path().display());
        assert_eq!(error.to_string(), expected);
    }
}

//! The program to run. It is found on `PATH` once, so that a call needs no search.
//!
//! With an absolute path, the standard library uses `posix_spawn`. Unlike a fork, that does not
//! copy the page tables of a large parent.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::RunError;
use crate::go_text::{go_os_error, go_quote};

/// A program with its arguments and environment, ready to be started any number of times.
///
/// It runs in the working directory of this process.
#[derive(Debug, Clone)]
pub struct Program {
    name: OsString,
    /// The path, or the reason why there is none, in the words of Go's `os/exec`.
    executable: Result<PathBuf, String>,
    args: Vec<OsString>,
    environment: Environment,
    /// Additional variables for one call.
    pub(crate) variables: Vec<(OsString, OsString)>,
}

/// The environment variables that a program sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Environment {
    /// The variables of this process.
    Inherit,
    /// Only these names and values.
    Only(Vec<(OsString, OsString)>),
}

impl Program {
    /// Looks `name` up like Go's `exec.LookPath`. A name without a slash is looked up on the `PATH`
    /// of `environment`, or on this process's. Any other name is a path, which becomes absolute. A
    /// failure is stored, and each call returns it to its caller.
    pub fn new<A: Into<OsString>>(
        name: impl Into<OsString>,
        args: impl IntoIterator<Item = A>,
        environment: Environment,
    ) -> Self {
        let name = name.into();
        let given = match &environment {
            Environment::Inherit => None,
            Environment::Only(variables) => variables.iter().find(|(name, _)| name == "PATH"),
        };
        let path = given.map(|(_, path)| path.clone()).or_else(|| std::env::var_os("PATH"));
        let executable = look_up(&name, path.as_deref());
        let args = args.into_iter().map(Into::into).collect();
        Self { name, executable, args, environment, variables: Vec::new() }
    }

    /// The absolute path of the executable.
    ///
    /// # Errors
    /// [`RunError::Failed`] if there is none.
    pub fn executable(&self) -> Result<&Path, RunError> {
        self.executable.as_deref().map_err(|reason| RunError::Failed(reason.clone()))
    }

    /// A command that leads a process group of its own, with pipes for stdin, stdout and stderr.
    pub(super) fn command(&self) -> Result<Command, RunError> {
        let mut command = Command::new(self.executable()?);
        command.arg0(&self.name).args(&self.args).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Environment::Only(variables) = &self.environment {
            command.env_clear().envs(variables.iter().map(|(name, value)| (name, value)));
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        Ok(command)
    }
}

fn look_up(name: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, String> {
    let failed = |reason: String| Err(format!("exec: {}: {reason}", go_quote(&name.to_string_lossy())));
    if name.as_encoded_bytes().contains(&b'/') {
        return match check_executable(Path::new(name)).and_then(|()| std::path::absolute(name)) {
            Ok(executable) => Ok(executable),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                failed(format!("stat {}: {}", name.to_string_lossy(), go_os_error(&error)))
            }
            Err(error) => failed(go_os_error(&error)),
        };
    }
    if matches!(name.as_encoded_bytes(), b"" | b"." | b"..") {
        return failed("executable file not found in $PATH".to_owned());
    }
    // As in Go, an empty PATH lists nothing, while an empty entry means the working directory.
    for directory in path.filter(|path| !path.is_empty()).into_iter().flat_map(std::env::split_paths) {
        let executable = directory.join(name);
        if check_executable(&executable).is_err() {
            continue;
        }
        if executable.is_relative() {
            return failed("cannot run executable found relative to current directory".to_owned());
        }
        return Ok(executable);
    }
    failed("executable file not found in $PATH".to_owned())
}

fn check_executable(path: &Path) -> io::Result<()> {
    let metadata = std::fs::metadata(path)?;
    if metadata.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if !metadata.is_file() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(rustix::fs::access(path, rustix::fs::Access::EXEC_OK)?)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn programs_are_found_like_in_go() {
        let root = tempfile::tempdir().unwrap();
        let at = |relative: &str| root.path().join(relative).to_string_lossy().into_owned();
        fs::create_dir_all(at("directory/function")).unwrap();
        for (directory, mode) in [("plain", 0o644), ("executable", 0o755), ("later", 0o755)] {
            fs::create_dir(at(directory)).unwrap();
            let file = at(directory) + "/function";
            fs::write(&file, "").unwrap();
            fs::set_permissions(file, fs::Permissions::from_mode(mode)).unwrap();
        }
        let path = ["missing", "directory", "plain", "executable", "later"].map(at).join(":");
        let (function, plain, missing) = (at("executable/function"), at("plain/function"), at("missing"));
        // A relative path, up to the root and down again.
        let relative = format!("{}{}", "../".repeat(64), &at("executable")[1..]);
        let not_found = Err("executable file not found in $PATH".to_owned());
        for (name, path, expected) in [
            ("function", Some(&*path), Ok(&function)),
            ("function", Some(&*at("plain")), not_found.as_ref()),
            (&plain, None, Err(&"permission denied".to_owned())),
            (&at("plain"), None, Err(&"is a directory".to_owned())),
            (&missing, Some(&path), Err(&format!("stat {missing}: no such file or directory"))),
            ("sh", None, not_found.as_ref()),
            ("sh", Some(""), not_found.as_ref()),
            ("", Some("/"), not_found.as_ref()),
            (".", Some("/"), not_found.as_ref()),
            ("..", Some("/"), not_found.as_ref()),
            (
                "function",
                Some(&format!(":/missing:{relative}")),
                Err(&"cannot run executable found relative to current directory".to_owned()),
            ),
        ] {
            let found = look_up(name.as_ref(), path.map(AsRef::as_ref));
            let found = found.map(|path| path.to_string_lossy().into_owned());
            let expected = expected.cloned().map_err(|reason| format!("exec: \"{name}\": {reason}"));
            assert_eq!(found, expected);
        }
        let found = look_up(format!("{relative}/function").as_ref(), None).unwrap();
        assert!(found.is_absolute() && found.ends_with("executable/function"), "{found:?}");
    }
}

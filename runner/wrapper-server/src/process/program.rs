//! The program to run. It is found on `PATH` once, so that a call needs no search.
//!
//! With an absolute path, the standard library uses `posix_spawn`. That does not copy the page tables of a
//! large parent, as a fork does.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::go_text::{go_os_error, go_quote};

/// A program with its arguments and environment, ready to be started any number of times.
///
/// It runs in the working directory of this process.
#[derive(Debug, Clone)]
pub struct Program {
    name: OsString,
    executable: Result<PathBuf, LookupError>,
    args: Vec<OsString>,
    environment: Environment,
    /// More variables, for one call.
    variables: Vec<(OsString, OsString)>,
}

/// The environment variables that a program sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Environment {
    /// Those of this process.
    Inherit,
    /// Only these names and values.
    Only(Vec<(OsString, OsString)>),
}

/// Why no executable was found, in the words of Go's `os/exec`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("exec: {}: {reason}", go_quote(name))]
pub struct LookupError {
    name: String,
    reason: String,
}

impl Program {
    /// Looks `name` up like Go's `exec.LookPath`: a name without a slash on this process's `PATH`, any other as
    /// a path, which becomes absolute. A failure is kept, and each call returns it, so that callers see it.
    pub fn new<A: Into<OsString>>(
        name: impl Into<OsString>,
        args: impl IntoIterator<Item = A>,
        environment: Environment,
    ) -> Self {
        let name = name.into();
        let executable = look_up(&name, std::env::var_os("PATH").as_deref());
        let args = args.into_iter().map(Into::into).collect();
        Self { name, executable, args, environment, variables: Vec::new() }
    }

    /// The same program with more variables.
    #[must_use]
    pub fn with_variables(self, variables: Vec<(OsString, OsString)>) -> Self {
        Self { variables, ..self }
    }

    /// The absolute path of the executable.
    ///
    /// # Errors
    /// A [`LookupError`] if there is none.
    pub fn executable(&self) -> Result<&Path, LookupError> {
        self.executable.as_deref().map_err(Clone::clone)
    }

    /// A command that leads a process group of its own, with pipes for stdin, stdout and stderr.
    pub(super) fn command(&self) -> Result<Command, LookupError> {
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

fn look_up(name: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, LookupError> {
    let failed = |reason: String| Err(LookupError { name: name.to_string_lossy().into_owned(), reason });
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
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn looked_up(name: &str, path: Option<&str>) -> Result<String, String> {
        match look_up(name.as_ref(), path.map(AsRef::as_ref)) {
            Ok(executable) => Ok(executable.to_string_lossy().into_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn finds_the_first_executable_regular_file_on_path() {
        let root = tempfile::tempdir().unwrap();
        let at = |relative: &str| root.path().join(relative).to_string_lossy().into_owned();
        for directory in ["directory/function", "plain", "executable", "later"] {
            std::fs::create_dir_all(at(directory)).unwrap();
        }
        for (file, mode) in
            [("plain/function", 0o644), ("executable/function", 0o755), ("later/function", 0o755)]
        {
            std::fs::write(at(file), "").unwrap();
            std::fs::set_permissions(at(file), std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let path = ["missing", "directory", "plain", "executable", "later"].map(at).join(":");

        assert_eq!(looked_up("function", Some(&path)), Ok(at("executable/function")));
        assert_eq!(
            looked_up("function", Some(&at("plain"))),
            Err(r#"exec: "function": executable file not found in $PATH"#.to_owned())
        );
        let plain = at("plain/function");
        assert_eq!(looked_up(&plain, None), Err(format!("exec: \"{plain}\": permission denied")));
        assert_eq!(looked_up(&at("plain"), None), Err(format!("exec: \"{}\": is a directory", at("plain"))));
        let missing = at("missing");
        assert_eq!(
            looked_up(&missing, Some(&path)),
            Err(format!("exec: \"{missing}\": stat {missing}: no such file or directory"))
        );
    }

    #[test]
    fn finds_nothing_without_a_path_or_a_name() {
        for (name, path) in
            [("sh", None), ("sh", Some("")), ("", Some("/")), (".", Some("/")), ("..", Some("/"))]
        {
            assert_eq!(
                looked_up(name, path),
                Err(format!("exec: \"{name}\": executable file not found in $PATH"))
            );
        }
    }

    #[test]
    fn refuses_what_a_relative_entry_of_path_finds() {
        let directory = tempfile::tempdir().unwrap();
        let function = directory.path().join("function");
        std::fs::write(&function, "").unwrap();
        std::fs::set_permissions(&function, std::fs::Permissions::from_mode(0o755)).unwrap();
        // To the root and down again.
        let relative = format!("{}{}", "../".repeat(64), &directory.path().to_str().unwrap()[1..]);
        assert_eq!(
            looked_up("function", Some(&format!(":/missing:{relative}"))),
            Err("exec: \"function\": cannot run executable found relative to current directory".to_owned())
        );
        let found = looked_up(&format!("{relative}/function"), None).unwrap();
        assert!(found.starts_with('/') && found.ends_with("/function"), "{found}");
    }
}

//! The program under the name of a container engine: `docker`, `podman` or `nerdctl`. It answers
//! what kpt and kustomize ask of an engine, and nothing else. So they run functions without one.

mod answer;
mod command;

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use self::answer::answer;
use crate::failure::Failure;
use crate::images::flags::user_folder;
use crate::one_shot::engine::{DOCKER, ENGINES, FAILED, NERDCTL};
use crate::output::{note, show};

/// The variables by which kpt chooses its container engine. Older versions read the second.
const KPT_RUNTIME: [&str; 2] = ["KRM_FN_RUNTIME", "KPT_FN_RUNTIME"];

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Action {
    /// Link this program under an engine's name, and print how kpt and kustomize find it
    Install {
        /// The engine's name. kustomize knows only docker
        #[arg(long = "as", value_name = "ENGINE", value_parser = ENGINES, default_value = NERDCTL)]
        engine: String,
        /// Folder of the link. Default: porch-fn/bin in the user's folder for data, ~/.local/share
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct KptArgs {
    /// Arguments for kpt
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

/// Answers as an engine, if the program was started under the name of one.
pub(crate) fn run_as_engine(args: &[OsString]) -> Option<ExitCode> {
    let name = Path::new(args.first()?).file_name()?;
    let engine = ENGINES.into_iter().find(|engine| name == *engine)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let answered = runtime.map_err(Failure::from);
    let answered = answered.and_then(|runtime| runtime.block_on(answer(engine, &args[1..])));
    Some(answered.unwrap_or_else(|failure| {
        note(format_args!("{engine}: {failure}"));
        ExitCode::from(FAILED)
    }))
}

pub(crate) fn install(action: Action) -> Result<ExitCode, Failure> {
    let Action::Install { engine, dir } = action;
    let dir = match dir {
        Some(dir) => std::path::absolute(dir)?,
        None => default_folder()?,
    };
    let linked = link(&engine, &dir)?;
    let callers = if engine == DOCKER { "kpt and kustomize" } else { "kpt" };
    let [newer, older] = KPT_RUNTIME;
    show(&format!(
        "Linked {}. Set these for {callers}:\n\n\
         export PATH={}:\"$PATH\"\nexport {newer}={engine} {older}={engine}\n",
        linked.display(),
        dir.display(),
    ));
    Ok(ExitCode::SUCCESS)
}

/// Runs kpt, which then uses this program as its engine. Returns only if kpt cannot be run.
pub(crate) fn kpt(args: KptArgs) -> Result<ExitCode, Failure> {
    let dir = default_folder()?;
    link(NERDCTL, &dir)?;
    let path = env::var_os("PATH").unwrap_or_default();
    let paths = [dir].into_iter().chain(env::split_paths(&path));
    let runtime = KPT_RUNTIME.map(|name| (name, NERDCTL));
    let mut kpt = Command::new("kpt");
    let error = kpt.args(args.args).env("PATH", env::join_paths(paths)?).envs(runtime).exec();
    let advice = "install it, or add its folder to PATH: https://kpt.dev/installation";
    Err(Failure::new(format!("cannot run kpt: {error}; {advice}")))
}

/// Creates or replaces the link, and returns its path.
fn link(engine: &str, dir: &Path) -> Result<PathBuf, Failure> {
    let at = dir.join(engine);
    let of = |error: io::Error| Failure::new(format!("{}: {error}; see --dir", at.display()));
    let own = env::current_exe()?;
    fs::create_dir_all(dir).map_err(of)?;
    if fs::symlink_metadata(&at).is_ok_and(|found| !found.is_symlink()) {
        let at = at.display();
        return Err(Failure::usage(format!("{at} is a program of its own: name another folder with --dir")));
    }
    if fs::read_link(&at).ok().as_ref() != Some(&own) {
        // Renamed, so that a process that starts now finds the old or the new link.
        let new = dir.join(format!(".{engine}.{}", std::process::id()));
        symlink(own, &new).and_then(|()| fs::rename(&new, &at)).map_err(of)?;
    }
    Ok(at)
}

fn default_folder() -> Result<PathBuf, Failure> {
    Ok(user_folder("XDG_DATA_HOME", ".local/share", "--dir")?.join("porch-fn/bin"))
}

//! Kills and reaps the processes that a finished call left behind outside of its process group.
//!
//! A signal to a process group does not reach a process that has left it with `setsid`: Python's
//! `start_new_session`, Node's `detached`, the daemons of git and gpg. Such a process would stay in
//! a warm pod for as long as the pod lives, and could read the memory of later calls. Therefore
//! this process adopts its descendants when they become orphans, as PID 1 or as a child subreaper.
//! After each call it kills and reaps the orphans that belong to no call in flight.
//!
//! The call of an orphan is found in two ways:
//!
//! - Its environment names the call ([`CALL_VARIABLE`]). This is exact: a long call does not
//!   protect orphans of short ones.
//! - A process can change its environment. If the environment names no call, the age of the process
//!   decides. No process is older than the call that started it. So the call of an orphan has ended
//!   if the orphan is older than every call in flight. A long call in flight may delay that.
//!
//! A sweep never reaps a call's own first process, because it lists only the children of the main
//! thread. The kernel gives orphans to that thread (`find_new_reaper` in Linux's kernel/exit.c),
//! and calls are started by the runtime's threads, which are others.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::FileExt as _;
use std::process::Command;
use std::sync::{LazyLock, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, waitpid};
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Handle;
use tokio::time::sleep;

/// Names the call in the environment of its processes.
const CALL_VARIABLE: &str = "PORCH_FN_CALL";

/// The first and the longest pause between two sweeps. Pauses double, because sweeps may continue
/// until a long call ends, if only the age of a process decides (see above).
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// Largest number of passes over the children in one sweep.
const MAX_PASSES: usize = 100;

/// The children belong to the whole process, so it has one reaper.
static REAPER: LazyLock<Reaper> = LazyLock::new(Reaper::default);

/// Makes this process adopt orphans among its descendants, and kill the orphans of each call when
/// the call ends.
///
/// Call it at the start of the process, from the main thread. The main thread must not start other
/// processes, because they would be taken for orphans. This needs `/proc` and a kernel that lists
/// the children of a process (Linux 4.2 or newer, built with `CONFIG_PROC_CHILDREN`). If either is
/// missing, a warning is logged, and a process that leaves its group outlives its call.
pub fn adopt_orphans() {
    let adopt = || -> io::Result<()> {
        // The thread number of the main thread equals the process number.
        let children = File::open(format!("/proc/self/task/{}/children", getpid()))?;
        REAPER.calls.lock().inherited = numbers_in(&children)?.into_iter().collect();
        set_child_subreaper(Some(getpid()))?;
        REAPER.children.get_or_init(|| children);
        Ok(())
    };
    if let Err(error) = adopt() {
        tracing::warn!(%error, "a process that leaves its call's process group will outlive the call");
    }
}

/// Kills and reaps the processes that a local pod left behind. A local pod is a child process that
/// runs calls itself. Call this when a local pod has ended.
///
/// # Panics
/// If called outside a Tokio runtime.
pub fn collect_orphans() {
    REAPER.collect(&Handle::current());
}

#[derive(Debug, Default)]
struct Reaper {
    /// The list of the main thread's children, once orphans are adopted. The file stays open
    /// because each call reads it, and opening it takes ten times as long as reading it.
    children: OnceLock<File>,
    calls: Mutex<Calls>,
}

#[derive(Debug, Default)]
struct Calls {
    /// The number of the last call that began.
    last: u64,
    /// The calls in flight by number, so the oldest call comes first. The value is a time before
    /// the start of the call's first process, in clock ticks since the system's start.
    in_flight: BTreeMap<u64, u64>,
    /// Children that existed at startup: a pod's template may start a process before the wrapper.
    inherited: HashSet<Pid>,
    /// Whether a task sweeps until no orphan is left.
    is_sweeping: bool,
}

/// The result of a pass for one child.
#[derive(PartialEq, Eq)]
enum Orphan {
    Reaped,
    /// Killed but not reaped yet, or it is not known yet whether its call is over.
    Left,
    Spared,
}

/// A call in flight. Until it is dropped, its processes are spared.
#[derive(Debug)]
pub(super) struct InFlight {
    number: u64,
}

// === impl InFlight ===

impl InFlight {
    /// Begins the call whose first process `command` will start, and names the call in the
    /// environment of its processes. A function may run wrappers of its own, so the name contains
    /// the number of this process too.
    pub(super) fn begin(command: &mut Command) -> Self {
        let mut calls = REAPER.calls.lock();
        calls.last += 1;
        let number = calls.last;
        calls.in_flight.insert(number, ticks_now());
        // Without the reaper, nothing reads the variable. Adding it would make the standard library
        // copy all others.
        if REAPER.children.get().is_some() {
            command.env(CALL_VARIABLE, format!("{}.{number}", getpid()));
        }
        Self { number }
    }

    /// Kills the orphans of the call, after its first process was reaped. A task on `runtime` reaps
    /// them.
    pub(super) fn end(self, runtime: &Handle) {
        drop(self);
        REAPER.collect(runtime);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        REAPER.calls.lock().in_flight.remove(&self.number);
    }
}

// === impl Reaper ===

impl Reaper {
    /// Sweeps, and spawns a task that sweeps until nothing is left. A killed process takes a moment
    /// to die, and then its own children become ours.
    ///
    /// SIGCHLD would report every death. But Tokio never removes a signal handler, so the handler
    /// would slow down each later call.
    fn collect(&'static self, runtime: &Handle) {
        if !self.sweep() || std::mem::replace(&mut self.calls.lock().is_sweeping, true) {
            return;
        }
        runtime.spawn(async move {
            let mut pause = SHORTEST_PAUSE;
            while self.sweep() {
                sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            self.calls.lock().is_sweeping = false;
            // A call that ended after the last sweep but before the line above started no task, so
            // sweep once more.
            self.collect(&Handle::current());
        });
    }

    /// Reaps the orphans that have ended, and kills those of finished calls. Returns whether any
    /// process may be left.
    fn sweep(&self) -> bool {
        let Some(children) = self.children.get() else { return false };
        let mut calls = self.calls.lock();
        // The children of a reaped orphan become ours. The limit stops the loop if a function keeps
        // creating processes.
        for _ in 0..MAX_PASSES {
            let pids = numbers_in(children).unwrap_or_default();
            let orphans: Vec<_> = pids.into_iter().map(|pid| calls.reap_or_kill(pid)).collect();
            if !orphans.contains(&Orphan::Reaped) {
                return orphans.contains(&Orphan::Left);
            }
        }
        true
    }
}

// === impl Calls ===

impl Calls {
    fn reap_or_kill(&mut self, pid: Pid) -> Orphan {
        match waitpid(Some(pid), WaitOptions::NOHANG) {
            // The child has not ended. No other process gets its number until it is reaped, so the
            // kill below cannot hit another process.
            Ok(None) => {}
            Ok(Some(_)) => {
                self.inherited.remove(&pid);
                return Orphan::Reaped;
            }
            Err(_not_ours) => return Orphan::Spared,
        }
        if self.inherited.contains(&pid) {
            return Orphan::Spared;
        }
        match self.is_left_over(pid) {
            Some(false) => return Orphan::Spared,
            None => return Orphan::Left,
            Some(true) => {}
        }
        if let Err(error) = kill_process(pid, Signal::KILL) {
            // The process has changed its user, so this process may not kill it.
            tracing::debug!(%pid, %error, "could not kill a process that a call left behind");
            return Orphan::Spared;
        }
        Orphan::Left
    }

    /// Whether the call of the process is over; `None` if that is not known yet.
    fn is_left_over(&self, pid: Pid) -> Option<bool> {
        let environment = environment_of(pid).unwrap_or_default();
        if let Some(call) = call_in(&environment) {
            return Some(!self.in_flight.contains_key(&call));
        }
        let Some((_, oldest)) = self.in_flight.first_key_value() else { return Some(true) };
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok();
        if stat.as_deref().and_then(start_in).is_some_and(|start| start < *oldest) {
            return Some(true);
        }
        // A process that becomes another program, or ends, has no environment for a moment. So an
        // empty environment does not tell yet whether the call is over.
        (!environment.is_empty()).then_some(false)
    }
}

/// The environment of a process. Empty if the process ends or becomes another program meanwhile.
///
/// The open file does not keep the process's memory alive between two reads. If the process becomes
/// another program meanwhile, the second read returns end of file. So the first read has room for
/// most environments. An environment whose last variable is incomplete is ignored.
fn environment_of(pid: Pid) -> io::Result<Vec<u8>> {
    let mut file = File::open(format!("/proc/{pid}/environ"))?;
    let mut environment = vec![0; 16 * 1024];
    let read = file.read(&mut environment)?;
    if read < environment.len() {
        environment.truncate(read);
    } else {
        file.read_to_end(&mut environment)?;
    }
    if environment.last() != Some(&0) {
        environment.clear();
    }
    Ok(environment)
}

/// The number of the call that an environment names, if it is a call of this process.
fn call_in(environment: &[u8]) -> Option<u64> {
    let name = environment
        .split(|&byte| byte == 0)
        .find_map(|variable| variable.strip_prefix(CALL_VARIABLE.as_bytes())?.strip_prefix(b"="))?;
    let (process, number) = str::from_utf8(name).ok()?.split_once('.')?;
    (process.parse() == Ok(getpid().as_raw_nonzero().get())).then(|| number.parse().ok())?
}

/// The start time of a process from its `/proc/PID/stat`: the 22nd field, in clock ticks since the
/// system's start.
fn start_in(stat: &str) -> Option<u64> {
    // The second field is the name in brackets, which may contain anything. So the third field
    // follows the last closing bracket of the line.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(22 - 3)?.parse().ok()
}

/// The clock ticks since the system's start, rounded down like in the kernel.
fn ticks_now() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let ticks = rustix::param::clock_ticks_per_second();
    let (seconds, nanos) = (now.tv_sec.cast_unsigned(), now.tv_nsec.cast_unsigned());
    seconds * ticks + nanos * ticks / 1_000_000_000
}

/// Reads the process numbers in a file of `/proc`, from its beginning.
fn numbers_in(list: &File) -> io::Result<Vec<Pid>> {
    let (mut text, mut buffer) = (Vec::new(), [0; 512]);
    // Mostly, the list is empty, and one system call tells that.
    loop {
        match list.read_at(&mut buffer, text.len() as u64)? {
            0 => break,
            read => text.extend_from_slice(&buffer[..read]),
        }
    }
    let text = String::from_utf8_lossy(&text);
    Ok(text.split_ascii_whitespace().filter_map(|number| Pid::from_raw(number.parse().ok()?)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_names_calls_of_this_process_only() {
        let own = getpid();
        for (environment, call) in [
            (format!("A=b\0PORCH_FN_CALL={own}.7\0C=d\0"), Some(7)),
            (format!("PORCH_FN_CALL={own}.7"), Some(7)),
            ("PORCH_FN_CALL=1000000000.7\0".to_owned(), None),
            (format!("XPORCH_FN_CALL={own}.7\0PORCH_FN_CALLS={own}.7\0"), None),
            (format!("PORCH_FN_CALL={own}.\0"), None),
            ("PORCH_FN_CALL=7\0".to_owned(), None),
        ] {
            assert_eq!(call_in(environment.as_bytes()), call, "{environment:?}");
        }
    }

    /// The child becomes another program again and again while the test reads its environment.
    #[test]
    fn an_environment_is_read_whole_or_not_at_all() {
        let script = r#"[ "$1" = 0 ] || exec "$0" -c "$2" "$0" $(($1 - 1)) "$2""#;
        let mut child = Command::new("/bin/sh")
            .args(["-c", script, "/bin/sh", "500", script])
            .env(CALL_VARIABLE, format!("{}.7", getpid()))
            .spawn()
            .unwrap();
        let pid = Pid::from_child(&child);
        let (mut reads, mut truncated) = (0, 0);
        while child.try_wait().unwrap().is_none() {
            let environment = environment_of(pid).unwrap_or_default();
            reads += 1;
            truncated += usize::from(!environment.is_empty() && call_in(&environment) != Some(7));
        }
        assert!(reads > 100, "{reads}");
        assert_eq!(truncated, 0, "of {reads}");
    }

    #[test]
    fn the_start_of_a_process_is_on_the_clock_of_calls() {
        let before = ticks_now();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let start = start_in(&stat).unwrap();
        assert!((before..=ticks_now()).contains(&start), "{before} {start}");
        assert_eq!(start_in("1 (a) b) S 2"), None);
    }
}

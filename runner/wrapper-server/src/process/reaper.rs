//! Descendants of calls that are over, beyond the call's process group.
//!
//! To kill a process group misses a process that has left it with `setsid`: Python's
//! `start_new_session`, Node's `detached`, the daemons of git and gpg. Such a process would stay in
//! a warm pod for as long as the pod lives, and could read the memory of later calls. Therefore
//! this process adopts its descendants when they become orphans, as PID 1 or as a child subreaper.
//! After each call it kills and reaps the orphans that belong to no call in flight.
//!
//! Two things tell which call an orphan belongs to:
//!
//! - Its environment names the call ([`CALL_VARIABLE`]). This is exact: a long call does not
//!   protect what short ones leave behind.
//! - A process can change its environment, so without the name its age decides. No process is older
//!   than the call that started it. An orphan that is older than every call in flight is left over.
//!   Such an orphan outlives its call at most by the calls that ran beside it.
//!
//! Orphans are told from a call's own process by the thread that they are children of: the kernel
//! gives orphans to the main thread (`find_new_reaper` in Linux's kernel/exit.c), and calls are
//! started by the runtime's worker threads.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::future::pending;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, waitpid};
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::pidfd;

/// Names the call in the environment of its processes.
pub const CALL_VARIABLE: &str = "PORCH_FN_CALL";

/// How long after a look that was not clear the next one is.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// How often the children are looked at in one go.
const MAX_PASSES: usize = 100;

/// One per process, as its children are.
static REAPER: LazyLock<Reaper> = LazyLock::new(Reaper::default);

/// Makes this process the parent of its descendants' orphans, and each end of a call the end of
/// what it leaves behind.
///
/// For the start of a process whose main thread starts no processes: they would be taken for
/// orphans. Where the kernel cannot name the children of a process (Linux before 4.2, or built
/// without `CONFIG_PROC_CHILDREN`), or `/proc` is not mounted, the log says so, and a process that
/// leaves its group outlives its call.
pub fn adopt_orphans() {
    let adopt = || -> io::Result<()> {
        // The main thread's number is that of the process.
        let children = File::open(format!("/proc/self/task/{}/children", getpid()))?;
        *REAPER.inherited.lock() = numbers_in(&children)?.into_iter().collect();
        set_child_subreaper(Some(getpid()))?;
        REAPER.children.get_or_init(|| children);
        Ok(())
    };
    if let Err(error) = adopt() {
        tracing::warn!(%error, "a process that leaves its call's process group will outlive the call");
    }
}

/// Kills and reaps what processes left behind that ran calls of their own and have ended, such as
/// local pods.
///
/// # Panics
/// Outside a Tokio runtime.
pub fn collect_orphans() {
    REAPER.collect(&Handle::current());
}

#[derive(Debug, Default)]
struct Reaper {
    /// The main thread's children, once orphans are adopted. It stays open because it is read after
    /// every call, and opening it takes ten times as long as reading it.
    children: OnceLock<File>,
    /// Children that were there before the first call: a pod's template may start something before the wrapper.
    inherited: Mutex<HashSet<Pid>>,
    calls: Mutex<Calls>,
    /// A task waits for the deaths of what was killed.
    awaits_deaths: AtomicBool,
}

#[derive(Debug, Default)]
struct Calls {
    last: u64,
    /// By number, and so in the order of their begin.
    in_flight: BTreeMap<u64, Begun>,
}

#[derive(Debug)]
struct Begun {
    /// Before the first of its processes was started, in clock ticks since the system's start.
    at: u64,
    leader: Option<Pid>,
}

/// What became of an orphan.
#[derive(Debug, PartialEq, Eq)]
enum Orphan {
    Reaped,
    /// Killed, and not reaped yet.
    Dying,
    /// To be looked at again.
    Unclear,
    Spared,
}

/// Whether the call of an orphan is over.
enum Claim {
    /// It may be in flight.
    InFlight,
    Over,
    /// The process has no environment, now or for good.
    Unclear,
}

/// A call in flight. Until it is dropped, its processes are left alone.
#[derive(Debug)]
pub(super) struct InFlight {
    number: u64,
}

// === impl InFlight ===

impl InFlight {
    /// Comes before the start of the call's first process.
    pub(super) fn begin() -> Self {
        let mut calls = REAPER.calls.lock();
        calls.last += 1;
        let number = calls.last;
        calls.in_flight.insert(number, Begun { at: ticks_now(), leader: None });
        Self { number }
    }

    /// Names the call in the environment of its processes. A function may run wrappers of its own, so
    /// the name contains the number of this process too.
    pub(super) fn mark(&self, command: &mut Command) {
        // Only where it is read: to add a variable, the standard library copies all the others.
        if REAPER.children.get().is_some() {
            command.env(CALL_VARIABLE, format!("{}.{}", getpid(), self.number));
        }
    }

    /// The call's first process, which the call itself reaps.
    pub(super) fn started(&self, leader: Pid) {
        if let Some(begun) = REAPER.calls.lock().in_flight.get_mut(&self.number) {
            begun.leader = Some(leader);
        }
    }

    /// The call is over and its first process is reaped: kills what it left behind. A task on `runtime` reaps that.
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
    /// Sweeps now, and later what takes a moment to die.
    fn collect(&'static self, runtime: &Handle) {
        if self.sweep().is_some() {
            self.await_deaths(runtime);
        }
    }

    /// Reaps the orphans that have ended, and kills those whose call is over. Returns a process to
    /// wait for if there may be anything left: the youngest that is dying, if one is.
    fn sweep(&self) -> Option<Pid> {
        let children = self.children.get()?;
        // This also keeps a second reader away from the file: it would move the first one's position.
        let calls = self.calls.lock();
        let mut left = None;
        // The children of one that was reaped are ours since. A function that goes on making more has no end.
        for _ in 0..MAX_PASSES {
            left = None;
            let mut reaped = None;
            for pid in numbers_in(children).ok()? {
                match self.look_at(pid, &calls) {
                    Orphan::Reaped => reaped = Some(pid),
                    Orphan::Dying => left = Some(pid),
                    Orphan::Unclear => left = left.or(Some(pid)),
                    Orphan::Spared => {}
                }
            }
            if reaped.is_none() {
                break;
            }
            left = left.or(reaped);
        }
        left
    }

    fn look_at(&self, pid: Pid, calls: &Calls) -> Orphan {
        if calls.in_flight.values().any(|begun| begun.leader == Some(pid)) {
            return Orphan::Spared;
        }
        match waitpid(Some(pid), WaitOptions::NOHANG) {
            // Unreaped, its number is nobody else's.
            Ok(None) => {}
            Ok(Some(_)) => {
                self.inherited.lock().remove(&pid);
                return Orphan::Reaped;
            }
            Err(_not_ours) => return Orphan::Spared,
        }
        if self.inherited.lock().contains(&pid) {
            return Orphan::Spared;
        }
        match calls.claim(pid) {
            Claim::InFlight => return Orphan::Spared,
            Claim::Unclear => return Orphan::Unclear,
            Claim::Over => {}
        }
        match kill_process(pid, Signal::KILL) {
            Ok(()) => Orphan::Dying,
            Err(error) => {
                // It has changed its user: it is left.
                tracing::debug!(%pid, %error, "could not kill what a call left behind");
                Orphan::Spared
            }
        }
    }

    /// Sweeps until nothing is left: at each death that it waits for, and at least every
    /// [`LOOK_AGAIN`]. A killed process takes a moment to die, and its own children become ours then.
    ///
    /// SIGCHLD would report every death, but Tokio never removes a signal handler: each later call
    /// would pay for it.
    fn await_deaths(&'static self, runtime: &Handle) {
        if self.awaits_deaths.swap(true, Ordering::AcqRel) {
            return;
        }
        runtime.spawn(async move {
            while let Some(left) = self.sweep() {
                let death = async {
                    match pidfd::open(left) {
                        Ok(pidfd) => drop(pidfd.readable().await),
                        // The end of another call has reaped it, or there are no more file descriptors.
                        Err(_) => pending().await,
                    }
                };
                let _ = timeout(LOOK_AGAIN, death).await;
            }
            self.awaits_deaths.store(false, Ordering::Release);
            // A call that ended in between has started no task.
            self.collect(&Handle::current());
        });
    }
}

// === impl Calls ===

impl Calls {
    /// Which call the process belongs to, as far as can be told.
    fn claim(&self, pid: Pid) -> Claim {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        if let Some(call) = call_in(&environment) {
            return if self.in_flight.contains_key(&call) { Claim::InFlight } else { Claim::Over };
        }
        let Some((_, oldest)) = self.in_flight.first_key_value() else { return Claim::Over };
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok();
        if stat.as_deref().and_then(start_in).is_some_and(|start| start < oldest.at) {
            return Claim::Over;
        }
        // A process that becomes another program, or ends, has none for a moment.
        if environment.is_empty() { Claim::Unclear } else { Claim::InFlight }
    }
}

/// The call of this process that an environment names.
fn call_in(environment: &[u8]) -> Option<u64> {
    let name = environment
        .split(|&byte| byte == 0)
        .find_map(|variable| variable.strip_prefix(CALL_VARIABLE.as_bytes())?.strip_prefix(b"="))?;
    let (process, number) = str::from_utf8(name).ok()?.split_once('.')?;
    (process.parse() == Ok(getpid().as_raw_nonzero().get())).then(|| number.parse().ok())?
}

/// When the process of a `/proc/PID/stat` was started: its 22nd field, in clock ticks since the system's start.
fn start_in(stat: &str) -> Option<u64> {
    // The second field is the name, which may hold anything; the third follows its last bracket.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(22 - 3)?.parse().ok()
}

/// Rounded down, as the kernel does.
fn ticks_now() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let ticks = rustix::param::clock_ticks_per_second();
    let (seconds, nanos) = (now.tv_sec.cast_unsigned(), now.tv_nsec.cast_unsigned());
    seconds * ticks + nanos * ticks / 1_000_000_000
}

/// The processes that a file of `/proc` lists.
fn numbers_in(file: &File) -> io::Result<Vec<Pid>> {
    let (mut list, mut page) = (Vec::new(), [0; 4096]);
    loop {
        let read = file.read_at(&mut page, list.len() as u64)?;
        if read == 0 {
            break;
        }
        list.extend_from_slice(&page[..read]);
    }
    let numbers = str::from_utf8(&list).map_err(io::Error::other)?.split_ascii_whitespace();
    Ok(numbers.filter_map(|number| Pid::from_raw(number.parse().ok()?)).collect())
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
            (String::new(), None),
        ] {
            assert_eq!(call_in(environment.as_bytes()), call, "{environment:?}");
        }
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

    #[test]
    fn a_list_of_children_may_be_longer_than_a_page() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let numbers: Vec<_> = (1..=3000).map(|number| Pid::from_raw(number).unwrap()).collect();
        let list: Vec<_> = (1..=3000).map(|number| number.to_string()).collect();
        fs::write(file.path(), list.join(" ") + " ").unwrap();
        assert_eq!(numbers_in(file.as_file()).unwrap(), numbers);
    }
}

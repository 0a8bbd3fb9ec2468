//! CPU time and memory of processes on this machine.

use std::fs;
use std::time::Duration;

use crate::failure::Failure;

/// A process of `--pid`.
#[derive(Debug)]
pub(super) struct Process(u32);

// === impl Process ===

impl Process {
    /// # Errors
    /// When there is no such process, or no `/proc`.
    pub(super) fn find(pid: u32) -> Result<Self, Failure> {
        let process = Self(pid);
        let missing =
            || Failure::usage(format!("--pid {pid}: there is no /proc/{pid}/stat: check the number"));
        process.read("stat").ok_or_else(missing)?;
        Ok(process)
    }

    /// The name of its program.
    pub(super) fn name(&self) -> String {
        format!("{} ({})", self.read("comm").unwrap_or_default().trim(), self.0)
    }

    /// CPU time of its threads so far. Its children do not count.
    pub(super) fn cpu(&self) -> Duration {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.0)).into_iter().flatten().flatten();
        let nanos = |task: fs::DirEntry| {
            let stat = fs::read_to_string(task.path().join("schedstat")).ok()?;
            stat.split_whitespace().next()?.parse::<u64>().ok()
        };
        Duration::from_nanos(tasks.filter_map(nanos).sum())
    }

    /// Peak of its memory in bytes, since [`reset_peak`](Self::reset_peak) or since its start.
    pub(super) fn peak(&self) -> u64 {
        let status = self.read("status").unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kib.unwrap_or_default() * 1024
    }

    /// Sets the peak to the memory of now. Needs the rights of the process's user.
    pub(super) fn reset_peak(&mut self) {
        let _ = fs::write(format!("/proc/{}/clear_refs", self.0), "5");
    }

    fn read(&self, file: &str) -> Option<String> {
        fs::read_to_string(format!("/proc/{}/{file}", self.0)).ok()
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_cpu_time_and_memory() {
        let mut process = Process::find(std::process::id()).unwrap();
        let before = process.cpu();
        while process.cpu() == before {
            std::hint::spin_loop();
        }
        process.reset_peak();
        assert!(process.peak() > 1024 * 1024);
        assert!(Process::find(u32::MAX).is_err());
    }
}

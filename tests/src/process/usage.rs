//! What a process uses of the machine, read from /proc, so that tests can bound it and print
//! figures.

use std::fs;

use tokio::time::Instant;

/// Ticks in a second, by which the kernel counts a process's time.
const TICKS: f64 = 100.0;

/// What a process has used so far, as the kernel counts it.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    /// Seconds of one core.
    pub seconds: f64,
    /// KiB of memory now.
    pub resident: u64,
    /// KiB of memory at most.
    pub peak: u64,
    at: Instant,
}

impl Usage {
    pub(super) fn of(pid: i32) -> Self {
        let read = |file| fs::read_to_string(format!("/proc/{pid}/{file}")).expect("it runs");
        let (stat, status) = (read("stat"), read("status"));
        // After the name, which may contain anything: state is the third field, user time the 14th,
        // system time the 15th.
        let fields: Vec<&str> = stat.rsplit_once(") ").expect("a name").1.split(' ').collect();
        let ticks = |field: &str| field.parse::<f64>().expect("a number");
        let kib = |name| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("it has memory");
            line.trim().trim_end_matches(" kB").parse().expect("a number")
        };
        Self {
            seconds: (ticks(fields[11]) + ticks(fields[12])) / TICKS,
            resident: kib("VmRSS:"),
            peak: kib("VmHWM:"),
            at: Instant::now(),
        }
    }

    /// Cores in use between `earlier` and this.
    pub fn cores_since(&self, earlier: &Self) -> f64 {
        (self.seconds - earlier.seconds) / (self.at - earlier.at).as_secs_f64()
    }
}

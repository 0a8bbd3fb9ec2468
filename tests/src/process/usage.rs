//! The CPU time and memory of a process, read from /proc.

use std::fs;

use tokio::time::Instant;

/// The kernel counts a process's CPU time in ticks. This is their number per second.
const TICKS: f64 = 100.0;

#[derive(Debug, Clone, Copy)]
pub struct Usage {
    /// CPU time in seconds.
    pub seconds: f64,
    /// Resident memory in KiB.
    pub resident: u64,
    /// Largest resident memory so far, in KiB.
    pub peak: u64,
    at: Instant,
}

impl Usage {
    /// The usage of a running process.
    pub fn of(pid: i32) -> Self {
        let read = |file| fs::read_to_string(format!("/proc/{pid}/{file}")).expect("a running process");
        let (stat, status) = (read("stat"), read("status"));
        // The second field is the name, which may contain spaces. The fields after it start with
        // the state, which is field 3. User time is field 14, system time field 15.
        let fields: Vec<&str> = stat.rsplit_once(") ").expect("a name").1.split(' ').collect();
        let ticks = |field: &str| field.parse::<f64>().expect("a number");
        let kib = |name| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a line for memory");
            line.trim().trim_end_matches(" kB").parse().expect("a number")
        };
        Self {
            seconds: (ticks(fields[11]) + ticks(fields[12])) / TICKS,
            resident: kib("VmRSS:"),
            peak: kib("VmHWM:"),
            at: Instant::now(),
        }
    }

    /// Lets the peak begin again with the resident memory of now.
    pub fn reset_peak(pid: i32) {
        fs::write(format!("/proc/{pid}/clear_refs"), "5").expect("a running process");
    }

    /// The average number of cores in use since `earlier`.
    pub fn cores_since(&self, earlier: &Self) -> f64 {
        (self.seconds - earlier.seconds) / (self.at - earlier.at).as_secs_f64()
    }
}

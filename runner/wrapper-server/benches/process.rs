//! What a call pays for leaving nothing behind, beyond the death of its process group.
//!
//! `cargo bench -p wrapper-server --bench process` takes about a minute.
//!
//! A process cannot stop adopting orphans, so each way to run calls has a process of its own. They
//! run short blocks of calls in turn. The differences within a round count, since other load on the
//! machine affects neighbouring blocks alike. CPU time is that of the process that runs the calls,
//! without the functions. After each median its 95% confidence interval is in brackets.

use std::env;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use wrapper_server::process::{Environment, Limits, Program, adopt_orphans, run};

const LIMITS: Limits = Limits { stdout: 1024, stderr_head: 1024, stderr_tail: 1024, join_lines: false };

/// Calls in flight at the same time.
const AT_ONCE: [usize; 2] = [1, 8];
/// How often each process has a turn, in a benchmark and in a test.
const ROUNDS: usize = 201;
const TEST_ROUNDS: usize = 1;
/// Calls in a turn.
const BLOCK: usize = 40;
/// Environment variables beside PATH, about as many as in a pod. The call's name is one more, and
/// to add it the standard library copies all the others.
const VARIABLES: usize = 20;

/// The others are compared with the first.
const WAYS: [Way; 3] = [Way::GroupOnly, Way::Adopts, Way::HasReaped];

#[derive(Clone, Copy)]
enum Way {
    /// Only the call's process group is killed.
    GroupOnly,
    /// Orphans are adopted, and there are none.
    Adopts,
    /// The same, after the first call has left a process behind.
    HasReaped,
}

/// What a call took, in microseconds.
#[derive(Clone, Copy)]
struct Cost {
    wall: f64,
    cpu: f64,
}

/// A process that runs calls when asked to.
struct Caller {
    process: Child,
    requests: ChildStdin,
    replies: BufReader<ChildStdout>,
}

fn main() -> io::Result<()> {
    match env::args().nth(1).and_then(|argument| WAYS.into_iter().find(|way| way.name() == argument)) {
        Some(way) => answer(way),
        None => compare(),
    }
}

fn compare() -> io::Result<()> {
    // As given by `cargo bench`, and not by `cargo test`.
    let rounds = if env::args().any(|argument| argument == "--bench") { ROUNDS } else { TEST_ROUNDS };
    let mut callers = Vec::new();
    for way in WAYS {
        callers.push(Caller::start(way)?);
    }
    for at_once in AT_ONCE {
        let mut costs_by_round = Vec::new();
        for round in 0..rounds {
            let mut costs = [Cost { wall: 0.0, cpu: 0.0 }; WAYS.len()];
            // Each of them has each place in a round equally often.
            for turn in 0..WAYS.len() {
                let way = (round + turn) % WAYS.len();
                costs[way] = callers[way].run(at_once)?;
            }
            costs_by_round.push(costs);
        }
        println!("{at_once} at once, microseconds per call");
        for (number, way) in WAYS.into_iter().enumerate() {
            let [wall, cpu] = [|cost: Cost| cost.wall, |cost: Cost| cost.cpu].map(|part| {
                let own = costs_by_round.iter().map(|costs| part(costs[number]));
                if number == 0 {
                    return median(own.collect());
                }
                let base = costs_by_round.iter().map(|costs| part(costs[0]));
                format!("{} more", median(own.zip(base).map(|(own, base)| own - base).collect()))
            });
            println!("  {:<12} wall {wall:<32} cpu {cpu}", way.name());
        }
    }
    for mut caller in callers {
        drop(caller.requests);
        caller.process.wait()?;
    }
    Ok(())
}

/// The median and its confidence interval.
fn median(mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    // Its rank is distributed binomially: 1.96 standard deviations to each side.
    let margin = (0.98 * (values.len() as f64).sqrt()).ceil() as usize;
    let low = values[middle.saturating_sub(margin)];
    let high = values[(middle + margin).min(values.len() - 1)];
    format!("{:.1} [{low:.1} {high:.1}]", values[middle])
}

/// Runs a block of calls for each line on standard input.
fn answer(way: Way) -> io::Result<()> {
    let runtime = Runtime::new()?;
    if !matches!(way, Way::GroupOnly) {
        adopt_orphans();
    }
    if matches!(way, Way::HasReaped) {
        // Its output is closed, since a call lasts as long as anybody holds its standard output.
        let leaves_one = "setsid sleep 60 </dev/null >/dev/null 2>&1 &";
        block_on_worker(&runtime, BLOCK, &Program::new("sh", ["-c", leaves_one], Environment::Inherit));
        // Until they are dead and reaped.
        std::thread::sleep(Duration::from_millis(200));
    }
    let program = Program::new("true", [""; 0], Environment::Inherit);
    for line in io::stdin().lines() {
        let at_once = line?.parse().map_err(io::Error::other)?;
        let (wall, cpu) = (micros(ClockId::Monotonic), micros(ClockId::ProcessCPUTime));
        block_on_worker(&runtime, at_once, &program);
        let calls = BLOCK as f64;
        let wall = (micros(ClockId::Monotonic) - wall) / calls;
        let cpu = (micros(ClockId::ProcessCPUTime) - cpu) / calls;
        println!("{wall} {cpu}");
    }
    Ok(())
}

/// Workers run the calls, as in the wrapper: the main thread's children are taken for orphans.
fn block_on_worker(runtime: &Runtime, at_once: usize, program: &Program) {
    let mut tasks = JoinSet::new();
    for _ in 0..at_once {
        let program = program.clone();
        let calls = async move {
            for _ in 0..BLOCK / at_once {
                run(&program, Vec::new(), &LIMITS, None).await.expect("it runs");
            }
        };
        tasks.spawn_on(calls, runtime.handle());
    }
    runtime.block_on(tasks.join_all());
}

fn micros(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

// === impl Way ===

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::GroupOnly => "group-only",
            Self::Adopts => "adopts",
            Self::HasReaped => "has-reaped",
        }
    }
}

// === impl Caller ===

impl Caller {
    fn start(way: Way) -> io::Result<Self> {
        let variables =
            (0..VARIABLES).map(|number| (format!("VARIABLE_{number}"), "its value, of usual length"));
        let mut process = Command::new(env::current_exe()?)
            .arg(way.name())
            .env_clear()
            .envs(variables)
            .env("PATH", env::var_os("PATH").unwrap_or_default())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let requests = process.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let replies = BufReader::new(process.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?);
        Ok(Self { process, requests, replies })
    }

    fn run(&mut self, at_once: usize) -> io::Result<Cost> {
        writeln!(self.requests, "{at_once}")?;
        let mut reply = String::new();
        self.replies.read_line(&mut reply)?;
        let (wall, cpu) = reply.trim_end().split_once(' ').ok_or(io::ErrorKind::UnexpectedEof)?;
        let parse = |number: &str| number.parse().map_err(io::Error::other);
        Ok(Cost { wall: parse(wall)?, cpu: parse(cpu)? })
    }
}

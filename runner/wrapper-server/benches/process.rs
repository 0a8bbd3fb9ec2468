//! Measures how much longer a call takes if it also kills processes outside of its process group.
//!
//! `cargo bench -p wrapper-server --bench process` takes about a minute.
//!
//! A process cannot stop adopting orphans, so each way to run calls has its own process. The
//! processes run short blocks of calls in turn. The result is the difference between blocks of the
//! same round, because other load on the machine affects neighbouring blocks equally. CPU time does
//! not include the functions. The brackets after each median contain its 95% confidence interval.

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
/// Rounds of a benchmark, and of a test. In a round, each process runs one block of calls.
const ROUNDS: usize = 201;
const TEST_ROUNDS: usize = 1;
/// Calls in one block.
const BLOCK: usize = 40;
/// Environment variables in addition to PATH, about as many as in a pod. They cost time: for each
/// call the standard library copies all of them, to add a variable that names the call.
const VARIABLES: usize = 20;

/// The ways to run calls. The first one is the base of the comparison.
const WAYS: [Way; 3] = [Way::GroupOnly, Way::Adopts, Way::HasReaped];

#[derive(Clone, Copy)]
enum Way {
    /// Only the call's process group is killed.
    GroupOnly,
    /// Orphans are adopted, but no call leaves any.
    Adopts,
    /// Like `Adopts`, but the first calls, which are not measured, left processes behind.
    HasReaped,
}

/// The time of a call, in microseconds.
#[derive(Clone, Copy)]
struct Cost {
    wall: f64,
    cpu: f64,
}

/// A child process that runs a block of calls for each request.
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
    // `cargo bench` passes this argument, and `cargo test` does not.
    let rounds = if env::args().any(|argument| argument == "--bench") { ROUNDS } else { TEST_ROUNDS };
    let mut callers = Vec::new();
    for way in WAYS {
        callers.push(Caller::start(way)?);
    }
    for at_once in AT_ONCE {
        let mut costs_by_round = Vec::new();
        for round in 0..rounds {
            let mut costs = [Cost { wall: 0.0, cpu: 0.0 }; WAYS.len()];
            // Each way has each position in a round equally often.
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
    // The rank of the median has a binomial distribution with a standard deviation of sqrt(n) / 2.
    // The interval has 1.96 standard deviations on each side.
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
        // The output is closed, because a call ends only when nobody keeps its standard output
        // open.
        let leaves_one = "setsid sleep 60 </dev/null >/dev/null 2>&1 &";
        block_on_worker(&runtime, BLOCK, &Program::new("sh", ["-c", leaves_one], Environment::Inherit));
        // After this pause, the processes that were left behind are dead and reaped.
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

/// Runs calls on worker threads, because children of the main thread would be taken for orphans.
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

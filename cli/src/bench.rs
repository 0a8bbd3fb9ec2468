//! `porch-fn bench`: measures how many calls a router or runner serves, and how long they take.

mod load;
mod report;
mod schedule;
mod usage;

use std::net::ToSocketAddrs;
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use bytes::Bytes;
use porch_fn_flags::GoDuration;

use self::load::Load;
use self::report::Report;
use self::schedule::{Bound, order};
use self::usage::Process;
use crate::failure::{Exit, Failure};
use crate::output::{Output, show};

/// The start of each generated package.
const HEAD: &str = "apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems:\n";
/// Longest measurement of one round.
const MAX_DURATION: Duration = Duration::from_hours(1);

#[derive(Debug, clap::Args)]
pub(crate) struct BenchArgs {
    /// The function's image. With --cold, repeat the flag: each image is called once
    #[arg(short, long, value_name = "IMAGE", required = true)]
    image: Vec<String>,
    /// Address of a router or runner. With two addresses, the rounds take turns, and the report
    /// has the ratio of the second to the first
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9445")]
    address: Vec<String>,
    /// Directory of the kpt package to send
    #[arg(long, value_name = "DIR", conflicts_with = "size")]
    package: Option<PathBuf>,
    /// Size of the generated package to send, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 2048)]
    size: usize,
    /// Connections to each address; Porch has one
    #[arg(long, value_name = "COUNT", default_value = "1")]
    connections: NonZeroUsize,
    /// Calls at once
    #[arg(long, value_name = "COUNT", default_value = "1")]
    concurrency: NonZeroUsize,
    /// Calls per second. A call that must wait for --concurrency counts from its planned start.
    /// Default: each call starts when an earlier one ends
    #[arg(long, value_name = "COUNT")]
    rate: Option<NonZeroU32>,
    /// Calls of a round. Default: as many as end within --duration
    #[arg(long, value_name = "COUNT", conflicts_with = "duration")]
    requests: Option<NonZeroU64>,
    /// Duration of a round, at most 1h
    #[arg(long, value_name = "DURATION", default_value = "5s")]
    duration: GoDuration,
    /// Rounds for each address. Default: 1, or 5 with two addresses
    #[arg(long, value_name = "COUNT")]
    rounds: Option<NonZeroUsize>,
    /// Call each image once, one after the other, without a warm-up
    #[arg(long, conflicts_with_all = ["rate", "requests", "duration", "concurrency", "connections", "rounds"])]
    cold: bool,
    /// A process on this machine: the report has its CPU time per call and its peak memory
    #[arg(long, value_name = "PID")]
    pid: Vec<u32>,
    /// Send load to an address that is not a loopback address
    #[arg(long)]
    allow_remote: bool,
    /// Deadline of each call
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    timeout: GoDuration,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Output::Table)]
    output: Output,
}

pub(crate) async fn run(args: BenchArgs) -> Result<ExitCode, Failure> {
    if args.address.len() > 2 {
        return Err(Failure::usage("give --address once or twice"));
    }
    if !args.cold && args.image.len() > 1 {
        return Err(Failure::usage("give one --image, or --cold"));
    }
    if !args.allow_remote {
        args.address.iter().try_for_each(|address| refuse_remote(address))?;
    }
    let list = list(&args)?;
    let mut processes = args.pid.iter().map(|&pid| Process::find(pid)).collect::<Result<Vec<_>, _>>()?;
    let loads = args.address.iter().map(|address| Load::new(address, &args, list.clone()));
    let loads = loads.collect::<Result<Vec<_>, _>>()?;
    let mut report = Report::new(&args.address);
    if args.cold {
        for image in &args.image {
            for load in &loads {
                report.cold.push(load.call_once(image).await?);
            }
        }
    } else {
        let bound = Bound::new(args.requests, args.duration.into(), MAX_DURATION);
        let rounds = args.rounds.map_or(if loads.len() == 2 { 5 } else { 1 }, NonZeroUsize::get);
        for load in &loads {
            load.warm_up().await?;
        }
        processes.iter_mut().for_each(Process::reset_peak);
        for index in order(loads.len(), rounds) {
            let before: Vec<_> = processes.iter().map(Process::cpu).collect();
            let measured = loads[index].run(bound, args.rate).await?;
            let used =
                processes.iter().zip(before).map(|(process, before)| process.cpu().saturating_sub(before));
            report.add(index, &measured, used.collect());
        }
    }
    report.processes = processes.iter().map(|process| (process.name(), process.peak())).collect();
    match args.output {
        Output::Table => show(&report.to_text()),
        Output::Json => show(&format!("{}\n", report.to_json())),
    }
    Ok(if report.has_failures() { Exit::Failed.into() } else { ExitCode::SUCCESS })
}

fn refuse_remote(address: &str) -> Result<(), Failure> {
    let found = address.to_socket_addrs();
    let mut found = found.map_err(|error| Failure::usage(format!("--address {address}: {error}")))?;
    if found.all(|found| found.ip().to_canonical().is_loopback()) {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "{address} is not a loopback address; to send load to it all the same, add --allow-remote"
    )))
}

/// The package to send.
fn list(args: &BenchArgs) -> Result<Bytes, Failure> {
    match &args.package {
        Some(directory) => {
            let package = porch_fn_package::read(directory, u64::MAX).map_err(Failure::usage)?;
            let (all, _) = package.select(&porch_fn_package::Selector::default());
            Ok(all.to_resource_list(None).into())
        }
        None => Ok(generated(args.size).into()),
    }
}

/// A package of `ConfigMap`s with `size` bytes, or with one `ConfigMap` if that has more.
fn generated(size: usize) -> String {
    let mut list = HEAD.to_owned();
    for number in 0.. {
        let item = format!(
            "- apiVersion: v1\n  kind: ConfigMap\n  metadata:\n    name: bench-{number}\n  data:\n    key: value\n"
        );
        if number > 0 && list.len() + item.len() > size {
            break;
        }
        list.push_str(&item);
    }
    while list.len() < size {
        list.push('#');
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_packages_have_the_size() {
        for size in [300, 2048, 100_000] {
            assert_eq!(generated(size).len(), size);
        }
        assert!(generated(0).contains("bench-0") && generated(2048).contains("bench-9"));
    }

    #[test]
    fn only_loopback_addresses_get_load() {
        for address in ["127.0.0.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert!(refuse_remote(address).is_ok(), "{address}");
        }
        for address in ["10.0.0.1:1", "[2001:db8::1]:1", "127.0.0.1"] {
            assert!(refuse_remote(address).is_err(), "{address}");
        }
    }
}

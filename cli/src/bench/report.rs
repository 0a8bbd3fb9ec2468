//! The figures of a benchmark, as tables and as JSON. Pure.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use super::load::{FirstCall, Measured};
use crate::output::table;

/// The quantiles of the report.
const QUANTILES: [(&str, f64); 4] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)];

/// The rounds so far.
#[derive(Debug, Default)]
pub(super) struct Report<'a> {
    targets: Vec<Target<'a>>,
    pub(super) cold: Vec<FirstCall<'a>>,
    /// Name and peak memory in bytes of each process.
    pub(super) processes: Vec<(String, u64)>,
}

#[derive(Debug, Default)]
struct Target<'a> {
    address: &'a str,
    all: Measured,
    rounds: Vec<Round>,
    /// CPU time of each process in each round.
    used: Vec<Vec<Duration>>,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct Round {
    calls_per_second: f64,
    p50_ms: f64,
}

/// The second address's figure divided by the first's: the median of all rounds, and the range.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Ratio {
    median: f64,
    least: f64,
    most: f64,
}

// === impl Report ===

impl<'a> Report<'a> {
    pub(super) fn new(addresses: &'a [String]) -> Self {
        let target = |address: &'a String| Target { address, ..Target::default() };
        Self { targets: addresses.iter().map(target).collect(), ..Self::default() }
    }

    /// Adds a round, and the CPU time that each process used in it.
    pub(super) fn add(&mut self, index: usize, measured: &Measured, used: Vec<Duration>) {
        let address = &mut self.targets[index];
        address.all.merge(measured);
        address.all.took += measured.took;
        address.rounds.push(Round {
            calls_per_second: measured.durations.len() as f64 / measured.took.as_secs_f64(),
            p50_ms: millis(measured, 0.5),
        });
        address.used.push(used);
    }

    pub(super) fn has_failures(&self) -> bool {
        let codes = self.targets.iter().flat_map(|address| address.all.codes.keys().copied());
        codes.chain(self.cold.iter().map(|cold| cold.code)).any(|code| code != "OK")
    }

    /// The ratios of calls per second and of the median duration, round by round, if there are two
    /// addresses.
    fn ratios(&self) -> Option<(Ratio, Ratio)> {
        let [first, second] = &self.targets[..] else { return None };
        let ratio = |figure: fn(&Round) -> f64| {
            let rounds = first.rounds.iter().zip(&second.rounds);
            let mut ratios: Vec<_> = rounds.map(|(first, second)| figure(second) / figure(first)).collect();
            ratios.sort_by(f64::total_cmp);
            Some(Ratio { least: *ratios.first()?, most: *ratios.last()?, median: median(ratios)? })
        };
        Some((ratio(|round| round.calls_per_second)?, ratio(|round| round.p50_ms)?))
    }

    pub(super) fn to_text(&self) -> String {
        if !self.cold.is_empty() {
            let rows = self.cold.iter().map(|FirstCall { address, image, code, seconds, start }| {
                [*address, image, code, &format!("{seconds:.3} s"), start].map(str::to_owned).to_vec()
            });
            return table(&["ADDRESS", "IMAGE", "CODE", "FIRST CALL", "START OF THE POD"], rows.collect());
        }
        let mut columns = vec!["ADDRESS", "CALLS", "FAILED", "CALLS/S"];
        columns.extend(["P50 MS", "P90 MS", "P99 MS", "P99.9 MS", "MAX MS"]);
        let rows = self.targets.iter().map(|Target { address, all, rounds, .. }| {
            let rates = rounds.iter().map(|round| round.calls_per_second).collect();
            let (calls, good) = (all.durations.len(), all.codes.get("OK").copied().unwrap_or_default());
            let mut row = vec![(*address).to_owned(), calls.to_string(), (calls - good).to_string()];
            row.push(median(rates).map_or_else(String::new, |rate| format!("{rate:.0}")));
            row.extend(QUANTILES.map(|(_, quantile)| format!("{:.3}", millis(all, quantile))));
            row.push(format!("{:.3}", all.durations.max() as f64 / 1e6));
            row
        });
        let mut text = table(&columns, rows.collect());
        for Target { address, all, .. } in &self.targets {
            for (code, count) in all.codes.iter().filter(|(code, _)| **code != "OK") {
                let _ = writeln!(text, "{address}: {count} calls ended with {code}");
            }
        }
        if let Some((rate, p50)) = self.ratios() {
            let _ = writeln!(text, "\nSecond address / first, median of the rounds and range:");
            for (name, Ratio { median, least, most }) in [("calls/s", rate), ("p50", p50)] {
                let _ = writeln!(text, "  {name:<8} {median:.2}   ({least:.2} to {most:.2})");
            }
        }
        if !self.processes.is_empty() {
            let mut columns = vec!["PROCESS".to_owned(), "PEAK MIB".to_owned()];
            columns.extend(self.targets.iter().map(|one| format!("CPU MS/CALL, {}", one.address)));
            let rows = self.processes.iter().enumerate().map(|(index, (name, peak))| {
                let mut row = vec![name.clone(), format!("{:.1}", *peak as f64 / 1_048_576.0)];
                row.extend(self.targets.iter().map(|one| format!("{:.4}", one.cpu_ms(index))));
                row
            });
            let columns: Vec<_> = columns.iter().map(String::as_str).collect();
            text.push('\n');
            text.push_str(&table(&columns, rows.collect()));
        }
        text
    }

    pub(super) fn to_json(&self) -> Value {
        let addresses = self.targets.iter().filter(|one| !one.rounds.is_empty()).map(|one| {
            let quantiles = QUANTILES.map(|(name, quantile)| (name.to_owned(), json!(millis(&one.all, quantile))));
            json!({
                "address": one.address,
                "calls": one.all.durations.len(),
                "codes": one.all.codes,
                "calls_per_second": median(one.rounds.iter().map(|round| round.calls_per_second).collect()),
                "milliseconds": serde_json::Map::from_iter(quantiles),
                "rounds": one.rounds,
                "processes": (0..self.processes.len())
                    .map(|index| json!({"name": self.processes[index].0, "cpu_ms_per_call": one.cpu_ms(index)}))
                    .collect::<Vec<_>>(),
            })
        });
        let peaks = self.processes.iter().map(|(name, peak)| json!({"name": name, "peak_bytes": peak}));
        let ratios = self.ratios().map(|(rate, p50)| json!({"calls_per_second": rate, "p50": p50}));
        json!({
            "addresses": addresses.collect::<Vec<_>>(),
            "ratios": ratios,
            "processes": peaks.collect::<Vec<_>>(),
            "cold": self.cold,
        })
    }
}

// === impl Target ===

impl Target<'_> {
    fn cpu_ms(&self, process: usize) -> f64 {
        let used: Duration = self.used.iter().filter_map(|round| round.get(process)).sum();
        used.as_secs_f64() * 1000.0 / self.all.durations.len().max(1) as f64
    }
}

fn millis(measured: &Measured, quantile: f64) -> f64 {
    measured.durations.value_at_quantile(quantile) as f64 / 1e6
}

fn median(mut figures: Vec<f64>) -> Option<f64> {
    figures.sort_by(f64::total_cmp);
    let middle = figures.len() / 2;
    let upper = figures.get(middle).copied()?;
    Some(if figures.len() % 2 == 1 { upper } else { f64::midpoint(figures[middle - 1], upper) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(calls: u64, took_ms: u64) -> Measured {
        let mut measured = Measured::default();
        for call in 0..calls {
            measured.add(if call == 9 { "INTERNAL" } else { "OK" }, Duration::from_millis(took_ms));
        }
        measured.took = Duration::from_secs(1);
        measured
    }

    #[test]
    fn two_addresses_are_compared_round_by_round() {
        let addresses = ["a", "b"].map(str::to_owned);
        let mut report = Report::new(&addresses);
        for (index, calls, took) in [(0, 4, 8), (1, 8, 4), (0, 4, 4), (1, 4, 4), (0, 2, 8), (1, 9, 2)] {
            report.add(index, &round(calls, took), vec![Duration::from_millis(calls * 3)]);
        }
        report.processes = vec![("router (1)".to_owned(), 2 << 20)];
        assert!(!report.has_failures());
        let (rate, p50) = report.ratios().unwrap();
        assert_eq!(rate, Ratio { median: 2.0, least: 1.0, most: 4.5 });
        assert!((p50.median - 0.5).abs() < 0.01, "{p50:?}");
        let text = report.to_text();
        for part in [
            "a         10      0        4",
            "calls/s  2.00   (1.00 to 4.50)",
            "router (1)   2.0        3.0000",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(report.to_json()["addresses"][1]["calls"], 21);
    }

    #[test]
    fn failed_calls_are_reported() {
        let addresses = ["a".to_owned()];
        let mut report = Report::new(&addresses);
        report.add(0, &round(10, 1), Vec::new());
        assert!(report.has_failures() && report.ratios().is_none());
        assert!(report.to_text().contains("a: 1 calls ended with INTERNAL"), "{}", report.to_text());
        let mut report = Report::new(&addresses);
        report.cold.push(FirstCall {
            address: "a",
            image: "f:v1",
            code: "OK",
            seconds: 0.7,
            start: "create=0.010s, serve=0.600s".to_owned(),
        });
        let row = "a         f:v1    OK     0.700 s      create=0.010s, serve=0.600s";
        assert!(report.to_text().contains(row), "{}", report.to_text());
    }
}

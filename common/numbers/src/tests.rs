//! Properties of recording: bounds, sums, windows and merging.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// A call: its image, the time since the call before in milliseconds, its duration in microseconds,
/// and whether it failed.
type Call = (usize, u64, u64, bool);

fn calls(images: usize) -> impl Strategy<Value = Vec<Call>> {
    vec(
        (0..images, prop_oneof![0..10_u64, 0..20_000_u64, 0..700_000_u64], 0..10_000_000_u64, any::<bool>()),
        0..400,
    )
}

/// Records the calls, each in the recorder that `choose` returns, and returns the time of the last.
fn record(calls: &[Call], recorders: &mut [Recorder], choose: impl Fn(usize) -> usize) -> Duration {
    let mut now = Duration::from_secs(5);
    for (number, (image, later, took, failed)) in calls.iter().enumerate() {
        now += Duration::from_millis(*later);
        let recorder = &mut recorders[choose(number)];
        recorder.record(&format!("i{image}"), now, Duration::from_micros(*took), *failed);
    }
    now
}

fn sum<'a>(all: impl IntoIterator<Item = &'a Recorded>) -> Recorded {
    all.into_iter().fold(Recorded::default(), |mut sum, one| {
        sum.merge(one);
        sum
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn merging_equals_recording_together(calls in calls(20), seed in any::<usize>()) {
        let mut both = [Recorder::default(), Recorder::default()];
        let mut one = [Recorder::default()];
        record(&calls, &mut both, |number| (seed >> (number % 64)) & 1);
        let now = record(&calls, &mut one, |_| 0);
        let [first, second] = both.map(|recorder| recorder.recorded(now));
        for (image, expected) in &one[0].recorded(now) {
            let mut merged = sum(first.get(image).into_iter().chain(second.get(image)));
            // The part of the oldest slot is rounded for each recorder.
            for (found, expected) in merged.minute.iter().zip(expected.minute) {
                prop_assert!(found.abs_diff(expected) <= 1);
            }
            merged.minute = expected.minute;
            prop_assert_eq!(&merged, expected);
            prop_assert_eq!(merged.numbers(), expected.numbers());
        }
    }

    #[test]
    fn images_are_bounded_and_no_call_is_lost(calls in calls(300)) {
        let mut recorders = [Recorder::default()];
        let now = record(&calls, &mut recorders, |_| 0);
        let all = recorders[0].recorded(now);
        prop_assert!(all.len() <= MAX_IMAGES + 1);
        let total = sum(all.values());
        prop_assert_eq!(total.calls, calls.len() as u64);
        prop_assert_eq!(total.failed, calls.iter().filter(|call| call.3).count() as u64);

        let slot = |time: Duration| time.as_secs() / SLOT.as_secs();
        let mut time = Duration::from_secs(5);
        let (mut ten_minutes, mut durations) = (vec![[0; 2]; SLOTS], 0);
        for (_, later, _, failed) in &calls {
            time += Duration::from_millis(*later);
            let age = (slot(now) - slot(time)) as usize;
            if age < SLOTS {
                let [calls, failures] = &mut ten_minutes[SLOTS - 1 - age];
                *calls += 1;
                *failures += u64::from(*failed);
            }
            durations += u64::from(age < 7);
        }
        if !calls.is_empty() {
            prop_assert_eq!(&total.ten_minutes, &ten_minutes);
        }
        prop_assert_eq!(total.durations.total(), durations);
        let numbers = total.numbers();
        prop_assert_eq!(numbers.ten_minutes.len(), SLOTS);
        prop_assert!(numbers.minute.failed <= numbers.minute.calls);
        prop_assert_eq!(numbers.minute.calls == 0, numbers.minute.p50_ms.is_none());
    }
}

#[test]
fn the_last_minute_ends_and_quantiles_end_with_it() {
    let mut series = Series::default();
    for _ in 0..100 {
        series.record(Duration::from_secs(5), Duration::from_millis(3), true);
    }
    let minute = |seconds: u64| {
        let Minute { calls, failed, p99_ms, .. } =
            series.recorded(Duration::from_secs(seconds)).numbers().minute;
        (calls, failed, p99_ms.is_some())
    };
    assert_eq!(minute(59), (100, 100, true));
    assert_eq!(minute(65), (50, 50, true), "half of the oldest slot");
    assert_eq!(minute(70), (0, 0, false));
    let later = series.recorded(Duration::from_secs(609)).ten_minutes;
    assert_eq!((later[0], later.len()), ([0, 0], SLOTS));
    assert_eq!(series.recorded(Duration::from_secs(599)).ten_minutes[0], [100, 100]);
    assert_eq!(series.recorded(Duration::from_secs(9999)).numbers().calls, 100);
}

#[test]
fn images_in_use_keep_their_numbers_when_many_others_are_called_once() {
    let mut recorder = Recorder::default();
    let took = Duration::from_millis(1);
    for number in 0..5000_u64 {
        let now = Duration::from_millis(number * 50);
        recorder.record(&format!("busy{}", number % 50), now, took, false);
        recorder.record(&format!("once{number}"), now, took, true);
    }
    let now = Duration::from_secs(250);
    let all = recorder.recorded(now);
    assert!((0..50).all(|number| all[&*format!("busy{number}")].calls == 100));
    assert_eq!((all.len(), all[""].calls), (MAX_IMAGES + 1, 5000 - 50));
    recorder.record(&"x".repeat(MAX_IMAGE_BYTES + 1), now, took, false);
    recorder.record("", now, took, false);
    assert_eq!(recorder.recorded(now)[""].calls, 5000 - 50 + 2);
}

#[test]
fn a_page_of_another_version_can_be_read() {
    let other: Recorded = serde_json::from_str(r#"{"calls": 3, "new": 1}"#).unwrap();
    assert_eq!((other.calls, other.numbers().ten_minutes.len()), (3, SLOTS));
    let mut recorder = Recorder::default();
    recorder.record("a", Duration::ZERO, Duration::from_millis(2), true);
    let recorded = &recorder.recorded(Duration::ZERO)["a"];
    let text = serde_json::to_string(recorded).unwrap();
    assert_eq!(&serde_json::from_str::<Recorded>(&text).unwrap(), recorded);
    let numbers = serde_json::to_value(recorded.numbers()).unwrap();
    let minute = serde_json::json!({"calls": 1, "failed": 1, "p50_ms": 1.9835, "p95_ms": 1.9835, "p99_ms": 1.9835,
        "queue_p50_ms": null, "queue_p95_ms": null});
    assert_eq!((&numbers["calls"], &numbers["failed"], &numbers["minute"]), (&1.into(), &1.into(), &minute));
    assert_eq!((&numbers["ten_minutes"][58], &numbers["ten_minutes"][59]), (&[0, 0].into(), &[1, 1].into()));
}

/// The processor time of this thread in nanoseconds. Other processes do not change it.
fn cpu() -> u64 {
    let used = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    used.split(' ').next().unwrap().parse().unwrap()
}

/// Prints what recording costs: `cargo test --release -p porch-fn-numbers cost -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn cost() {
    let names: Vec<_> =
        (0..MAX_IMAGES).map(|n| format!("ghcr.io/kptdev/krm-functions-catalog/f{n}:v0.4.1")).collect();
    let mut recorder = Recorder::default();
    let mut measure = |what: &str, calls: u64, name: &dyn Fn(u64) -> String| {
        let names: Vec<_> = (0..calls).map(name).collect();
        let began = cpu();
        for (number, name) in names.iter().enumerate() {
            let took = Duration::from_micros(number as u64 % 5000);
            recorder.record(name, Duration::from_micros(number as u64 * 100), took, false);
        }
        println!("{what}: {} ns per call", (cpu() - began) / calls);
    };
    measure("known image", 1_000_000, &|number| names[number as usize % MAX_IMAGES].clone());
    measure("new image that replaces another", 100_000, &|number| format!("once{number}"));
    let began = cpu();
    let all = recorder.recorded(Duration::from_secs(100));
    println!("snapshot of {}: {} ns", all.len(), cpu() - began);
}

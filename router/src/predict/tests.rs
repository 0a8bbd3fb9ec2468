//! Pipelines as values: each step is a call and its answer.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn target(image: &str) -> Target {
    Target { key: image.into(), image: image.to_owned(), tag: String::new() }
}

/// Calls an image and answers it 10 ms later. Returns the hints.
fn step(predictor: &mut Predictor, image: &str, size: usize, now: &mut Duration) -> Vec<String> {
    let hints = predictor.call(target(image), size, *now);
    *now += Duration::from_millis(10);
    predictor.answered(&image.into(), size, size + 100, *now);
    *now += Duration::from_millis(1);
    hints.into_iter().map(|hint| hint.image.clone()).collect()
}

#[test]
fn the_second_time_the_first_call_predicts_the_whole_pipeline() {
    let (mut predictor, mut now) = (Predictor::new(), Duration::ZERO);
    for image in ["a", "b", "c"] {
        assert_eq!(step(&mut predictor, image, 9000, &mut now), [""; 0], "nothing is known yet");
    }
    now += SECOND * 3;
    for image in ["a", "b", "c"] {
        assert_eq!(step(&mut predictor, image, 9000, &mut now), [""; 0], "the pods are still warm");
    }
    now += SECOND * 3600;
    assert_eq!(step(&mut predictor, "a", 9000, &mut now), ["b", "c"]);
    assert_eq!(step(&mut predictor, "b", 9000, &mut now), [""; 0], "one hint is enough");
}

#[test]
fn sizes_tell_interleaved_pipelines_apart() {
    let (mut predictor, mut now) = (Predictor::new(), Duration::ZERO);
    for (image, size) in [("a", 9000), ("x", 900_000), ("b", 9100), ("y", 900_500), ("c", 9200)] {
        step(&mut predictor, image, size, &mut now);
    }
    now += SECOND * 3600;
    assert_eq!(step(&mut predictor, "a", 1, &mut now), ["b", "c"]);
    assert_eq!(step(&mut predictor, "x", 1, &mut now), ["y"]);
}

#[test]
fn packages_of_different_sizes_have_different_pipelines() {
    let (mut predictor, mut now) = (Predictor::new(), Duration::ZERO);
    for (pipeline, size) in [(["a", "b"], 2_000), (["a", "c"], 9_000), (["a", "d"], 50_000)] {
        for image in pipeline {
            step(&mut predictor, image, size, &mut now);
        }
        now += SECOND * 3600;
    }
    for (size, expected) in [(9_050, &["c"][..]), (2_010, &["b"]), (50_400, &["d"]), (100_000, &[])] {
        assert_eq!(step(&mut predictor, "a", size, &mut now), expected, "{size}");
        now += SECOND * 3600;
    }
}

#[test]
fn only_likely_successors_get_hints() {
    let (mut predictor, mut now) = (Predictor::new(), Duration::ZERO);
    let mut hints = |pipeline: &[&str]| {
        now += SECOND * 3600;
        let hints: Vec<_> = pipeline.iter().map(|image| step(&mut predictor, image, 10, &mut now)).collect();
        hints.into_iter().next().unwrap_or_default()
    };
    assert_eq!(hints(&["a", "b"]), [""; 0]);
    assert_eq!(hints(&["a"]), ["b"]);
    assert_eq!(hints(&["a"]), [""; 0], "a was also the last one");
    for other in ["b", "c", "d", "e", "f", "c"] {
        hints(&["a", other]);
    }
    assert_eq!(hints(&["a"]), [""; 0], "too many different ones");
    for _ in 0..MAX_SEEN {
        hints(&["a", "c"]);
    }
    assert_eq!(hints(&["a"]), ["c"], "the old ones are forgotten");
    hints(&["b", "b"]);
    assert_eq!(hints(&["b"]), [""; 0], "the same image is warm");
}

#[test]
fn everything_is_bounded() {
    let (mut predictor, mut now) = (Predictor::new(), Duration::ZERO);
    for image in 0..MAX_IMAGES.get() + 100 {
        now += Duration::from_millis(1);
        predictor.call(target(&image.to_string()), image * 10_000, now);
        predictor.answered(&"0".into(), image, image, now);
    }
    assert_eq!((predictor.images.len(), predictor.answers.len()), (MAX_IMAGES.get(), MAX_ANSWERS));
    for _ in 0..50 {
        step(&mut predictor, "same", 10, &mut now);
    }
    assert!(predictor.images.iter().all(|(_, known)| known.seen.len() <= MAX_SEEN));
}

const TTL: Duration = Duration::from_mins(30);

/// The first calls of pods that nobody has used yet, and all starts.
#[derive(Debug, Default)]
struct Counts {
    starts: usize,
    cold_calls: usize,
}

/// Runs calls (time, image, size) with or without predictions. A pod ends after [`TTL`] without use.
fn simulate(calls: &[(Duration, String, usize)], predicts: bool) -> Counts {
    let (mut predictor, mut counts) = (Predictor::new(), Counts::default());
    let mut ends = std::collections::HashMap::<String, Duration>::new();
    let mut answers: VecDeque<(Duration, &str, usize)> = VecDeque::new();
    for (now, image, size) in calls {
        while let Some((at, image, size)) = answers.pop_front_if(|(at, ..)| *at <= *now) {
            predictor.answered(&image.into(), size, size, at);
        }
        let mut start = |image: &str| {
            let is_new = ends.get(image).is_none_or(|end| end <= now);
            counts.starts += usize::from(is_new);
            if is_new {
                ends.insert(image.to_owned(), *now + TTL);
            }
            is_new
        };
        counts.cold_calls += usize::from(start(image));
        for hint in predictor.call(target(image), *size, *now).into_iter().filter(|_| predicts) {
            start(&hint.image);
        }
        ends.insert(image.clone(), *now + TTL);
        answers.push_back((*now + Duration::from_millis(30), image, *size));
    }
    counts
}

/// A week of 50 packages with pipelines of 1 to 6 of 25 images. A few images are in most of them.
#[test]
fn predictions_start_few_pods_that_nobody_uses() {
    let mut random = fastrand::Rng::with_seed(7);
    let mut calls = Vec::new();
    for _ in 0..50 {
        let size = random.usize(2_000..500_000);
        let pipeline: Vec<_> =
            (0..random.usize(1..=6)).map(|_| format!("f{:.0}", random.f64() * random.f64() * 24.0)).collect();
        let mut at = Duration::from_secs(random.u64(0..3600));
        while at < Duration::from_hours(7 * 24) {
            let steps = pipeline.iter().zip(0..);
            calls.extend(
                steps.map(|(image, step)| (at + step * Duration::from_millis(40), image.clone(), size)),
            );
            at += Duration::from_secs(random.u64(3_600..172_800));
        }
    }
    calls.sort();
    let (without, with) = (simulate(&calls, false), simulate(&calls, true));
    let extra = with.starts as f64 / without.starts as f64 - 1.0;
    println!(
        "{} calls; without predictions {without:?}, with {with:?}: {:+.1} % pods",
        calls.len(),
        extra * 100.0
    );
    assert!(with.cold_calls < without.cold_calls, "{with:?} {without:?}");
    assert!(extra <= 0.1, "{extra}");
}

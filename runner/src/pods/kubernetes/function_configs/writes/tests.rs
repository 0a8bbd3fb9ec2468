//! How writes follow each other: a writer that disagrees must not make this one run hot.

use super::*;

const WORK: Work = Work::Finalizer { index: 0 };
const OTHER: Work = Work::Finalizer { index: 1 };

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Asks for the next write, which must be this work on `a`, and says how it went.
fn write(writes: &mut Writes, now: Instant, work: &Work, succeeded: bool) {
    let next = writes.next(now, |_| Some(work.clone()));
    assert_eq!(next, Next::Write("a".to_owned(), work.clone()));
    writes.tried("a".to_owned(), work.clone(), succeeded, now);
}

#[test]
fn each_object_is_looked_at_once() {
    let (mut writes, now) = (Writes::default(), Instant::now());
    for name in ["b", "a", "b", "c"] {
        writes.look_at(name);
    }
    let work = |name: &str| (name != "a").then_some(WORK);
    for expected in ["b", "c"] {
        assert_eq!(writes.next(now, work), Next::Write(expected.to_owned(), WORK));
        writes.tried(expected.to_owned(), WORK, true, now);
    }
    assert_eq!(writes.next(now, work), Next::Nothing);
}

#[test]
fn what_failed_is_tried_again_and_again_more_slowly() {
    let mut writes = Writes::default();
    let mut now = Instant::now();
    writes.look_at("a");
    for pause in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
        write(&mut writes, now, &WORK, false);
        let again = now + seconds(pause);
        // Whatever is heard of the object meanwhile.
        writes.look_at("a");
        assert_eq!(writes.next(again - Duration::from_millis(1), |_| Some(WORK)), Next::At(again));
        now = again;
    }
}

#[test]
fn another_writer_makes_no_hot_loop() {
    let mut writes = Writes::default();
    let begin = Instant::now();
    let mut written = 0;
    // It takes back at once what was written.
    for millis in 0..600_000 {
        let now = begin + Duration::from_millis(millis);
        writes.look_at("a");
        if let Next::Write(name, work) = writes.next(now, |_| Some(WORK)) {
            writes.tried(name, work, true, now);
            written += 1;
        }
    }
    assert_eq!(written, 10, "1 s, 2 s, 4 s...: 9 pauses in 511 s");
}

#[test]
fn something_else_is_written_at_once() {
    let (mut writes, now) = (Writes::default(), Instant::now());
    writes.look_at("a");
    write(&mut writes, now, &WORK, true);
    writes.look_at("a");
    write(&mut writes, now, &OTHER, true);
    writes.look_at("a");
    assert_eq!(writes.next(now, |_| Some(OTHER)), Next::At(now + seconds(1)));
}

#[test]
fn pauses_begin_anew_after_peace() {
    let (mut writes, now) = (Writes::default(), Instant::now());
    writes.look_at("a");
    write(&mut writes, now, &WORK, true);
    writes.look_at("a");
    write(&mut writes, now + seconds(1), &WORK, true);
    let much_later = now + seconds(601);
    writes.look_at("a");
    write(&mut writes, much_later, &WORK, true);
    writes.look_at("a");
    assert_eq!(writes.next(much_later, |_| Some(WORK)), Next::At(much_later + seconds(1)));
}

#[test]
fn what_is_gone_is_forgotten() {
    let (mut writes, now) = (Writes::default(), Instant::now());
    writes.look_at("a");
    write(&mut writes, now, &WORK, false);
    writes.forget("a");
    assert_eq!(writes.next(now + seconds(9), |_| None), Next::Nothing);
    // One that has its name is another.
    writes.look_at("a");
    write(&mut writes, now + seconds(9), &WORK, true);
    assert_eq!(writes.tried.len(), 1);
}

//! The pauses between writes: a writer that disagrees must not make this one run hot.

use super::*;

/// Seconds after `begin` of each write to `a` within `seconds`, if something is due all the time.
fn writes(seconds: u64, succeed: bool) -> Vec<u64> {
    let (mut queue, begin) = (WriteQueue::default(), Instant::now());
    let mut written = Vec::new();
    queue.add("a", begin);
    for second in 0..seconds {
        let now = begin + Duration::from_secs(second);
        if succeed {
            queue.add("a", now);
        }
        if let Some(name) = queue.pop(now) {
            queue.record_write(&name, succeed, now);
            written.push(second);
        }
    }
    written
}

#[test]
fn pauses_double_while_another_writer_disagrees_or_writes_fail() {
    for succeed in [true, false] {
        assert_eq!(writes(1500, succeed), [0, 1, 3, 7, 15, 31, 63, 127, 255, 511, 811, 1111, 1411]);
    }
}

#[test]
fn each_object_has_a_pause_of_its_own_that_ends_with_it_or_with_rest() {
    let (mut queue, mut now) = (WriteQueue::default(), Instant::now());
    for name in ["b", "a", "b"] {
        queue.add(name, now);
    }
    assert_eq!(queue.pop(now).as_deref(), Some("a"));
    queue.record_write("a", false, now);
    assert_eq!((queue.pop(now).as_deref(), queue.pop(now)), (Some("b"), None));
    assert_eq!(queue.next_at(), Some(now + FIRST_PAUSE));
    queue.remove("a");
    assert_eq!(queue.next_at(), None);
    for _ in 0..9 {
        queue.add("a", now);
        assert_eq!(queue.pop(now).as_deref(), Some("a"), "at once");
        queue.record_write("a", true, now);
        now += 2 * FIRST_PAUSE;
    }
}

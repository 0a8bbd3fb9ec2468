//! Content that is kept for a moment, so that a page costs little however often it is requested.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// How long large content is kept.
const KEPT: Duration = Duration::from_secs(1);

/// Returns a function that returns the content of `create`, and keeps it if `is_large`. Small
/// content costs little, and is created for each request.
pub(crate) fn recent<T: Clone>(create: impl Fn() -> T, is_large: impl Fn(&T) -> bool) -> impl Fn() -> T {
    let last = Mutex::new(None::<(Instant, T)>);
    move || {
        let mut last = last.lock();
        if let Some((_, content)) = last.as_ref().filter(|(at, _)| at.elapsed() < KEPT) {
            return content.clone();
        }
        let content = create();
        *last = is_large(&content).then(|| (Instant::now(), content.clone()));
        content
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_large_content_is_kept_and_only_for_a_second() {
        let created = Cell::new(0);
        let create = || {
            created.set(created.get() + 1);
            created.get()
        };
        let get = recent(create, |number| *number == 3);
        assert_eq!([get(), get(), get(), get(), get()], [1, 2, 3, 3, 3]);
        tokio::time::advance(KEPT).await;
        assert_eq!([get(), get()], [4, 5]);
    }
}

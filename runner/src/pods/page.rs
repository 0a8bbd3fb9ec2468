//! The `/pods` page: what the pool holds, as JSON.

use serde::Serialize;

use super::Handle;

/// One function. Fields are only ever added.
#[derive(Serialize)]
struct FunctionInfo {
    image: String,
    owned: bool,
    ready: usize,
    starting: usize,
    terminating: usize,
    /// Have served, and do not answer.
    silent: usize,
    in_flight: usize,
    waiting: usize,
}

/// The page of this moment.
pub(crate) async fn page(pool: Handle) -> String {
    let stats = pool.stats().await;
    let functions: Vec<_> = stats
        .into_iter()
        .map(|function| FunctionInfo {
            image: function.image.to_string(),
            owned: function.owned,
            ready: function.ready,
            starting: function.starting,
            terminating: function.terminating,
            silent: function.silent,
            in_flight: function.in_flight,
            waiting: function.waiting,
        })
        .collect();
    // Strings and numbers only: serialising cannot fail.
    serde_json::to_string_pretty(&functions).unwrap_or_default()
}

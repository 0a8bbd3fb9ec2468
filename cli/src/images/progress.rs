//! Shows how far a pull is, on a terminal.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use parking_lot::Mutex;
use porch_fn_image::Image;
use porch_fn_images::Progress;
use tokio::time::Instant;

/// How often the line changes.
const EVERY: Duration = Duration::from_millis(200);

/// One line on standard error. Nothing, if that is not a terminal.
pub(crate) struct Terminal {
    image: String,
    state: Option<Mutex<State>>,
}

#[derive(Default)]
struct State {
    layers: usize,
    unpacked: usize,
    bytes: u64,
    received: u64,
    shown: Option<Instant>,
}

// === impl Terminal ===

impl Terminal {
    pub(crate) fn new(image: &Image) -> Self {
        let state = io::stderr().is_terminal().then(Mutex::default);
        Self { image: image.as_str().to_owned(), state }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let Some(state) = &self.state else { return };
        let mut state = state.lock();
        change(&mut state);
        if state.shown.is_some_and(|shown| shown.elapsed() < EVERY) {
            return;
        }
        state.shown = Some(Instant::now());
        let State { layers, unpacked, bytes, received, .. } = *state;
        let line = format!(
            "\r\x1b[KPulling {}: {} of {} MiB, {unpacked} of {layers} layers unpacked",
            self.image,
            received >> 20,
            bytes >> 20,
        );
        // It only informs.
        let _ = io::stderr().write_all(line.as_bytes());
    }
}

impl Progress for Terminal {
    fn start(&self, layers: usize, bytes: u64) {
        self.change(|state| (state.layers, state.bytes) = (layers, bytes));
    }

    fn add(&self, bytes: u64) {
        self.change(|state| state.received += bytes);
    }

    fn unpacked(&self) {
        self.change(|state| state.unpacked += 1);
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if self.state.as_mut().is_some_and(|state| state.get_mut().shown.is_some()) {
            let _ = io::stderr().write_all(b"\r\x1b[K");
        }
    }
}

//! Asserts that a duration in Go's format, parsed, printed and parsed again, is the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use porch_fn_flags::{GoDuration, parse_duration};
use porch_fn_fuzz::texts;

fuzz_target!(|data: &[u8]| {
    let [text] = texts(data);
    match parse_duration(text) {
        Ok(duration) => {
            let printed = GoDuration(duration).to_string();
            assert_eq!(parse_duration(&printed).as_ref(), Ok(&duration), "{text} {printed}");
        }
        Err(error) => assert!(!error.contains('\n')),
    }
});

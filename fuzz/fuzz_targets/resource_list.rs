//! Checks arbitrary bytes as the output of a function. The check terminates, returns the same
//! result twice, and accepts only UTF-8 and UTF-16 text.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wrapper_server::resource_list::check;

fuzz_target!(|output: &[u8]| {
    let checked = check(output);
    assert_eq!(checked, check(output));
    if checked.is_ok() {
        assert!(
            std::str::from_utf8(output).is_ok()
                || output.starts_with(&[0xff, 0xfe])
                || output.starts_with(&[0xfe, 0xff])
        );
    }
});

//! Parses a Docker config file. Asserts that an error text has 1 to 1023 bytes.

#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use porch_fn_registry::CredentialsFileContent;

fuzz_target!(|data: &[u8]| {
    if let Err(error) = CredentialsFileContent::parse(Bytes::copy_from_slice(data)) {
        assert!(!error.is_empty() && error.len() < 1024, "{error}");
    }
});

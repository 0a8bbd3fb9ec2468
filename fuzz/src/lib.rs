//! Shared code of the fuzz targets.

/// Splits an input at its zero bytes into `N` texts. A missing text is empty. A text ends at its
/// first byte that is not UTF-8.
pub fn texts<const N: usize>(data: &[u8]) -> [&str; N] {
    let mut parts = data.split(|byte| *byte == 0);
    std::array::from_fn(|_| {
        let part = parts.next().unwrap_or_default();
        match std::str::from_utf8(part) {
            Ok(text) => text,
            Err(error) => std::str::from_utf8(&part[..error.valid_up_to()]).unwrap_or_default(),
        }
    })
}

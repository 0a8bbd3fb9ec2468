//! What the targets share: how one input becomes several texts.

/// The first `N` texts of an input that are separated by zero bytes; what is missing is empty, and
/// what is no UTF-8 is cut off where it begins.
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

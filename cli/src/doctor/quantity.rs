//! Kubernetes' quantities of memory, as far as manifests have them.

/// The bytes of `128Mi`, `1G`, `1e9` or `1073741824`; `None` for what is none of these.
pub(super) fn bytes(quantity: &str) -> Option<u64> {
    const UNITS: [(&str, f64); 10] = [
        ("Ki", 1024.0),
        ("Mi", 1_048_576.0),
        ("Gi", 1_073_741_824.0),
        ("Ti", 1_099_511_627_776.0),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("m", 1e-3),
        ("", 1.0),
    ];
    let (number, unit) =
        UNITS.iter().find_map(|(suffix, unit)| Some((quantity.strip_suffix(suffix)?, unit)))?;
    let number: f64 = number.parse().ok()?;
    // Larger than any machine's memory is as good as the largest number.
    (number.is_finite() && number >= 0.0).then_some((number * unit) as u64)
}

/// For people: `6 MiB`, or the number of bytes where it is no round one.
pub(super) fn shown(bytes: u64) -> String {
    const MIB: u64 = 1024 * 1024;
    if bytes >= MIB && bytes.is_multiple_of(MIB) {
        format!("{} MiB", bytes / MIB)
    } else {
        format!("{bytes} bytes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_bytes() {
        for (text, expected) in [
            ("768Mi", Some(805_306_368)),
            ("1Gi", Some(1_073_741_824)),
            ("1.5Gi", Some(1_610_612_736)),
            ("2G", Some(2_000_000_000)),
            ("1e3", Some(1000)),
            ("12", Some(12)),
            ("1Mb", None),
            ("", None),
            ("-1", None),
        ] {
            assert_eq!(bytes(text), expected, "{text:?}");
        }
        assert_eq!((shown(6_291_456), shown(6_291_457)), ("6 MiB".to_owned(), "6291457 bytes".to_owned()));
    }
}

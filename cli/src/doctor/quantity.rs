//! Memory quantities of Kubernetes, in the forms that manifests use.

/// Parses `128Mi`, `1G`, `1e9` or `1073741824` to bytes. `None` for other forms.
pub(super) fn bytes(quantity: &str) -> Option<u64> {
    let (text, base) = quantity.strip_suffix('i').map_or((quantity, 1000.0_f64), |text| (text, 1024.0));
    let number = text.trim_end_matches(['k', 'K', 'M', 'G', 'T']);
    let power = match &text[number.len()..] {
        "" => 0,
        "k" | "K" => 1,
        "M" => 2,
        "G" => 3,
        "T" => 4,
        _ => return None,
    };
    let (number, unit) = (number.parse::<f64>().ok()?, base.powi(power));
    // The cast saturates: a larger quantity becomes `u64::MAX`.
    (number.is_finite() && number >= 0.0).then_some((number * unit) as u64)
}

/// Formats a size for people: `6 MiB`, or bytes if it is not a whole number of MiB.
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
    fn quantities_are_parsed_to_bytes() {
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

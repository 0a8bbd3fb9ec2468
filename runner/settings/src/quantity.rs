//! Checks quantities such as `100m` and `64Mi`. Without this check, the API server would refuse
//! each pod, and the error would not name the file with the wrong quantity.

use k8s_openapi::api::core::v1::ResourceRequirements;

use crate::field::{bounded, quoted};

/// The suffixes for powers of 1000, from 1000⁻³.
const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
/// The suffixes for powers of 1024.
const BINARY: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// Checks all quantities. The error names the first wrong one.
pub(crate) fn check(resources: &ResourceRequirements) -> Result<(), String> {
    for (kind, quantities) in [("requests", &resources.requests), ("limits", &resources.limits)] {
        for (name, quantity) in quantities.iter().flatten() {
            if self::quantity(&quantity.0).is_none() {
                return Err(format!(
                    "{kind}: {}: {} is no quantity; write a number such as 100m, 0.5, 64Mi or 1e3",
                    bounded(name),
                    quoted(&quantity.0)
                ));
            }
        }
    }
    Ok(())
}

/// The value of a quantity: a number, optionally with a suffix or a decimal exponent. `None` for
/// other texts and negative numbers.
pub fn quantity(text: &str) -> Option<f64> {
    // `f64` also parses `inf`, `nan` and negative numbers.
    let number = |text: &str| text.parse().ok().filter(|it: &f64| it.is_finite() && !text.starts_with('-'));
    let scaled = |suffix: &str, unit: f64| {
        let text = text.strip_suffix(suffix).filter(|text| !text.contains(['e', 'E']))?;
        Some(number(text)? * unit)
    };
    let decimal =
        || DECIMAL.iter().zip(-3..).find_map(|(suffix, power)| scaled(suffix, 1000_f64.powi(power)));
    let binary = || BINARY.iter().zip(1..).find_map(|(suffix, power)| scaled(suffix, 1024_f64.powi(power)));
    number(text).or_else(decimal).or_else(binary)
}

#[cfg(test)]
mod tests {
    use super::quantity;

    #[test]
    fn quantities_are_parsed_like_in_kubernetes() {
        let right =
            "0 1 +1 100m 0.5 .5 5. 64Mi 1.5Gi 1k 3n 7u 2E 2Ei 1e3 1E3 1e-3 1.5E+10 9223372036854775807";
        for right in right.split(' ') {
            assert!(quantity(right).is_some(), "{right:?}");
        }
        let wrong = ". + m -1 1..5 1.2.3 1K 1mi 1MB 64Mib 1ki 1e 1e+ 1e1.5 1E3k 0x10 NaN inf lots ١ 1_000";
        for wrong in wrong.split(' ').chain(["", "10 m", " 1", "1 "]) {
            assert_eq!(quantity(wrong), None, "{wrong:?}");
        }
        for (text, value) in [("12", 12.0), ("768Mi", 805_306_368.0), ("2G", 2e9), ("1e3", 1e3), ("2k", 2e3)]
        {
            assert_eq!(quantity(text), Some(value), "{text}");
        }
    }
}

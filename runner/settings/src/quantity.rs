//! Checks quantities such as `100m` and `64Mi`. Otherwise the API server would refuse each pod, and
//! the error would not name the file with the wrong quantity.

use k8s_openapi::api::core::v1::ResourceRequirements;

use crate::field::{bounded, quoted};

/// The suffixes for powers of ten, from nano, and for powers of 1024.
const SUFFIXES: [&str; 15] =
    ["n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// Checks all quantities. The error names the first wrong one.
pub(crate) fn check(resources: &ResourceRequirements) -> Result<(), String> {
    for (kind, quantities) in [("requests", &resources.requests), ("limits", &resources.limits)] {
        for (name, quantity) in quantities.iter().flatten() {
            if !is_quantity(&quantity.0) {
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

/// Whether Kubernetes accepts the text as a quantity that is not negative: a number with a suffix,
/// or with a decimal exponent.
fn is_quantity(text: &str) -> bool {
    // `f64` also reads signs, `inf` and `nan`.
    let is_number =
        |number: &str| !number.starts_with('-') && number.parse().is_ok_and(|number: f64| number.is_finite());
    let has_suffix = |suffix: &&str| {
        let number = text.strip_suffix(*suffix);
        number.is_some_and(|number| is_number(number) && !number.contains(['e', 'E']))
    };
    is_number(text) || SUFFIXES.iter().any(has_suffix)
}

#[cfg(test)]
mod tests {
    use super::is_quantity;

    #[test]
    fn quantities_are_recognised_like_in_kubernetes() {
        let right =
            "0 1 +1 100m 0.5 .5 5. 64Mi 1.5Gi 1k 3n 7u 2E 2Ei 1e3 1E3 1e-3 1.5E+10 9223372036854775807";
        for right in right.split(' ') {
            assert!(is_quantity(right), "{right:?}");
        }
        let wrong = ". + m -1 1..5 1.2.3 1K 1mi 1MB 64Mib 1ki 1e 1e+ 1e1.5 1E3k 0x10 NaN inf lots ١ 1_000";
        for wrong in wrong.split(' ').chain(["", "10 m", " 1", "1 "]) {
            assert!(!is_quantity(wrong), "{wrong:?}");
        }
    }
}

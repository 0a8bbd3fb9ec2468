//! Checks quantities such as `100m` and `64Mi`: the API server would refuse a wrong one at each
//! pod, far from the file that holds it.

use k8s_openapi::api::core::v1::ResourceRequirements;

use crate::field::{bounded, quoted};

/// The suffixes for powers of ten, from nano, and for powers of 1024.
const SUFFIXES: [&str; 16] =
    ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

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

/// Whether Kubernetes accepts the text as a quantity that is not negative: a number, and a suffix
/// or a decimal exponent.
fn is_quantity(text: &str) -> bool {
    let unsigned = text.strip_prefix('+').unwrap_or(text);
    let end = unsigned.find(|char: char| !char.is_ascii_digit() && char != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let is_number = number.bytes().any(|byte| byte.is_ascii_digit()) && number.matches('.').count() <= 1;
    is_number && (SUFFIXES.contains(&suffix) || is_exponent(suffix))
}

fn is_exponent(suffix: &str) -> bool {
    let Some(exponent) = suffix.strip_prefix(['e', 'E']) else { return false };
    let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::is_quantity;

    #[test]
    fn quantities_are_told_from_other_texts() {
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

//! Sizes in bytes, as Docker's flags and Kubernetes' quantities write them.

use std::{fmt, str::FromStr};

use super::values::quote;

/// A number of bytes: `65536`, `64Ki`, `64k` in, `64Ki` out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Size(pub u64);

/// The units in powers of two. Unlike in Kubernetes, `M` is `Mi`, as with Docker.
const UNITS: [(&str, u32); 4] = [("T", 40), ("G", 30), ("M", 20), ("K", 10)];

// === impl Size ===

impl FromStr for Size {
    type Err = String;

    /// Reads a whole number and a unit: none or `b`; `k`, `m`, `g`, `t`, also followed by `i`, `b`
    /// or `ib`. Upper and lower case are alike.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let problem =
            || format!("{} is not a size; use whole numbers such as 64Mi, 1g, 1048576", quote(text));
        let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
        let unit = unit.to_ascii_uppercase();
        let known =
            |(name, shift)| matches!(unit.strip_prefix(name)?, "" | "I" | "B" | "IB").then_some(shift);
        let shift = match &*unit {
            "" | "B" => 0,
            _ => UNITS.into_iter().find_map(known).ok_or_else(problem)?,
        };
        let number: u64 = number.parse().map_err(|_| problem())?;
        number.checked_mul(1 << shift).map(Self).ok_or_else(|| format!("{} is too large", quote(text)))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_whole = |(_, shift): &(_, u32)| self.0 > 0 && self.0.trailing_zeros() >= *shift;
        match UNITS.into_iter().find(is_whole) {
            Some((unit, shift)) => write!(f, "{}{unit}i", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_are_those_of_docker_and_kubernetes() {
        for (texts, expected, printed) in [
            (&["0", "0b", "0g", "00"][..], 0, "0"),
            (&["1000", "1000b", "1000B"], 1000, "1000"),
            (&["64Ki", "64k", "64K", "64kb", "64KiB", "65536"], 64 << 10, "64Ki"),
            (&["64Mi", "64m", "64M", "64MB", "64mib", "65536k"], 64 << 20, "64Mi"),
            (&["2Gi", "2g", "2048m"], 2 << 30, "2Gi"),
            (&["3Ti", "3t"], 3 << 40, "3Ti"),
            (&["18446744073709551615"], u64::MAX, "18446744073709551615"),
            (&["16777215Ti"], (u64::MAX >> 40) << 40, "16777215Ti"),
        ] {
            for text in texts {
                assert_eq!(text.parse(), Ok(Size(expected)), "{text}");
            }
            assert_eq!(Size(expected).to_string(), printed);
        }
        for text in ["", "g", "-1", "+1", "1.5g", "1 g", "1gg", "1bi", "1x", "1Ei", "nan", "0x10", "1g\n"] {
            let error = text.parse::<Size>().unwrap_err();
            assert_eq!(
                error,
                format!("{text:?} is not a size; use whole numbers such as 64Mi, 1g, 1048576"),
                "{text}"
            );
        }
        for text in ["16777216Ti", "18446744073709551615k"] {
            assert_eq!(text.parse::<Size>(), Err(format!("{text:?} is too large")));
        }
        // Larger than any number that is read.
        assert!("18446744073709551616".parse::<Size>().unwrap_err().contains("not a size"));
    }

    proptest! {
        #[test]
        fn sizes_survive_printing_and_parsing(number: u64, zeros in 0_u32..64) {
            let size = Size((number >> zeros) << zeros);
            prop_assert_eq!(size.to_string().parse::<Size>(), Ok(size));
        }
    }
}

//! Constraints against the Go library that kpt uses, and what is ours on top.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use porch_fn_image::{Constraint, ConstraintError, parse_version};

const TABLE: &str = include_str!("constraints.txt");

#[test]
fn constraints_mean_what_the_go_library_makes_of_them() {
    let mut lines =
        TABLE.lines().filter(|line| !line.starts_with('#')).map(|line| line.split_once('\t').unwrap());
    let (_, versions) = lines.next().unwrap();
    let versions: Vec<_> =
        versions.split(' ').filter_map(|text| Some((text, parse_version(text)?))).collect();
    let mut constraints = 0;
    for (constraint, expected) in lines {
        let accepted = match Constraint::parse(constraint) {
            Ok(parsed) => {
                let accepted = versions.iter().filter(|(_, version)| parsed.matches(version));
                accepted.map(|(text, _)| *text).collect::<Vec<_>>().join(" ")
            }
            Err(_) => "invalid".to_owned(),
        };
        assert_eq!(accepted, expected, "{constraint:?}");
        constraints += 1;
    }
    assert!(constraints > 100, "{constraints}");
}

#[test]
fn versions_are_read_leniently() {
    for (text, expected) in [
        ("v1.2.3", Some("1.2.3")),
        ("1", Some("1.0.0")),
        ("v1.2", Some("1.2.0")),
        ("01.02.03", Some("1.2.3")),
        ("1-rc.1", Some("1.0.0-rc.1")),
        ("1.2+b-1", Some("1.2.0+b-1")),
        ("1.2.3-a+b", Some("1.2.3-a+b")),
        ("", None),
        ("v", None),
        ("V1", None),
        ("vv1", None),
        ("1.x", None),
        ("1.2.*", None),
        ("x", None),
        ("1.2.3.4", None),
        ("1..2", None),
        ("1.2.3-", None),
        ("1.2.3+", None),
        ("1.2.3-01", None),
        ("latest", None),
        ("18446744073709551616", None),
    ] {
        assert_eq!(parse_version(text).map(|v| v.to_string()).as_deref(), expected, "{text:?}");
    }
}

#[test]
fn the_highest_tag_is_chosen_whatever_their_order() {
    let highest = |constraint: &str, tags: &[&str]| {
        let constraint = Constraint::parse(constraint).unwrap();
        let forward = constraint.highest(tags.iter().copied()).map(str::to_owned);
        let backward = constraint.highest(tags.iter().rev().copied()).map(str::to_owned);
        assert_eq!(forward, backward);
        forward
    };
    let tags = ["latest", "v0.9.0", "v0.10.0", "v0.11.0-rc.1", "v0.10", "1.0.0", "sha256-abc.sig"];
    assert_eq!(highest("~0.9 || 0.10.x", &tags).as_deref(), Some("v0.10.0"));
    assert_eq!(highest("*", &tags).as_deref(), Some("1.0.0"));
    assert_eq!(highest(">=0.10.0-0 <1", &tags).as_deref(), Some("v0.11.0-rc.1"));
    assert_eq!(highest(">=2", &tags), None);
    assert_eq!(highest("*", &[]), None);
    assert_eq!(highest("1.x-0", &["v1.0.0-git-abc", "v1.0.0-alpha"]).as_deref(), Some("v1.0.0-alpha"));
}

#[test]
fn errors_quote_the_part_and_list_the_valid_forms() {
    let text = |constraint: &str| Constraint::parse(constraint).unwrap_err().to_string();
    let error = text(">=1.2, latest || 2.x");
    assert!(
        error.contains(r#"">=1.2, latest || 2.x" cannot be read at "latest": write versions"#),
        "{error}"
    );
    assert!(text("").contains(r#"cannot be read at """#));
    let long = "1 ".repeat(257);
    assert_eq!(Constraint::parse(&long), Err(ConstraintError::TooLong { length: 514 }));
    assert!(Constraint::parse(&long[..511]).is_ok());
}

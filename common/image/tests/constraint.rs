//! Compares constraints with the Go library that kpt uses, and tests our own additions.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use porch_fn_image::{Constraint, parse_version};

const TABLE: &str = include_str!("constraints.txt");

#[test]
fn constraints_match_like_the_go_library() {
    let mut lines =
        TABLE.lines().filter(|line| !line.starts_with('#')).map(|line| line.split_once('\t').unwrap());
    let (_, versions) = lines.next().unwrap();
    let versions: Vec<_> =
        versions.split(' ').filter_map(|text| Some((text, parse_version(text)?))).collect();
    let mut constraints = 0;
    for (constraint, expected) in lines {
        let accepted = match Constraint::parse(constraint) {
            Some(parsed) => {
                let accepted = versions.iter().filter(|(_, version)| parsed.matches(version));
                accepted.map(|(text, _)| *text).collect::<Vec<_>>().join(" ")
            }
            None => "invalid".to_owned(),
        };
        assert_eq!(accepted, expected, "{constraint:?}");
        constraints += 1;
    }
    assert!(constraints > 100, "{constraints}");
}

#[test]
fn versions_are_read_leniently() {
    for (text, expected) in [
        ("v1.2.3", "1.2.3"),
        ("1", "1.0.0"),
        ("v1.2", "1.2.0"),
        ("01.02.03", "1.2.3"),
        ("1-rc.1", "1.0.0-rc.1"),
        ("1.2+b-1", "1.2.0+b-1"),
        ("1.2.3-a+b", "1.2.3-a+b"),
    ] {
        assert_eq!(parse_version(text).unwrap().to_string(), expected);
    }
    let none = " v V1 vv1 1.x 1.2.* x 1.2.3.4 1..2 1.2.3- 1.2.3+ 1.2.3-01 latest 18446744073709551616";
    for text in none.split(' ') {
        assert_eq!(parse_version(text), None, "{text:?}");
    }
}

#[test]
fn the_highest_tag_is_chosen_in_any_order() {
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
fn the_length_of_constraints_is_limited() {
    let long = "1 ".repeat(257);
    assert!(Constraint::parse(&long).is_none() && Constraint::parse(&long[..511]).is_some());
}

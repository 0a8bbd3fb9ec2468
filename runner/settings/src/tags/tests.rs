//! Which images a list matches, in both semantics: the cases of Porch's own tests, and corner
//! cases.

use TagSemantics::{Constraint as Constrained, Exact};

use super::*;

fn image(text: &str) -> Image {
    Image::parse(text, "ghcr.io/x").unwrap()
}

fn digest(tag: &str) -> String {
    format!("f{tag}@sha256:{}", "0".repeat(64))
}

fn owned(tags: &[&str]) -> Tags {
    tags.iter().map(|&tag| tag.to_owned()).collect::<Vec<_>>().into()
}

fn pods(tags: &[&str], semantics: TagSemantics) -> Tags {
    owned(tags).of_pods(semantics).unwrap()
}

fn binaries(tags: &[&str], semantics: TagSemantics) -> Tags {
    owned(tags).of_binaries(semantics).unwrap()
}

fn is_for(tags: &Tags, text: &str) -> bool {
    tags.matches(&Asked::of(&image(text)))
}

/// The result of matching an executable's tag list: the listed version that satisfies the request,
/// or `entry` if an entry matches the request's tag itself.
fn answer(tags: &Tags, asked: &Asked<'_>) -> Option<String> {
    tags.match_executable(asked).map(|found| match found {
        Match::Entry => "entry".to_owned(),
        Match::Version(version) => version.to_string(),
    })
}

#[test]
fn constraint_a_list_matches_versions_that_satisfy_one_of_its_entries() {
    for (tags, yes, no) in [
        (&["v0.4.1"][..], vec!["f:v0.4.1", "f:0.4.1"], vec!["f:v0.4.2", "f:v0.4", "f:v0.4.1-rc1", "f"]),
        (&["0.4.5"], vec!["f:v0.4.5", "f:0.4.5"], vec!["f:v0.4.4"]),
        (&["v0.2"], vec!["f:v0.2", "f:v0.2.0", "f:0.2.17"], vec!["f:v0.3.0", "f:v0.1", "f:v0.2.1-rc1"]),
        (&["~0.1"], vec!["f:v0.1.0", "f:v0.1.5", "f:v0.1"], vec!["f:v0.2.0", "f:latest"]),
        (&["~0.1 != v0.1.4"], vec!["f:v0.1.3", "f:0.1.5"], vec!["f:v0.1.4", "f:0.1.4", "f:v0.2.0"]),
        (&[">= v0.4.0 < v0.5.0", ">= v1.0.0"], vec!["f:v0.4.2", "f:v1.2.0"], vec!["f:v0.3.9", "f:v0.5.0"]),
        (&["v1.0.0-rc1"], vec!["f:v1.0.0-rc1"], vec!["f:v1.0.0", "f:v1.0.0-rc2"]),
        // A tag that is not a version matches only an equal entry, or `*`.
        (&["latest"], vec!["f", "f:latest"], vec!["f:v1", "f:Latest", "f:stable"]),
        (&["1.x"], vec!["f:v1.0.0", "f:1.x"], vec!["f:v2.0.0", "f:1.X", "f:x"]),
        (&["*"], vec!["f", "f:latest", "f:v0.0.1", "f:v99.99.99", "f:odd_tag-1", "f:v1.0.0-rc1"], vec![]),
        (&[], vec![], vec!["f", "f:v0.4.1", "f:latest"]),
    ] {
        for list in [pods(tags, Constrained), binaries(tags, Constrained)] {
            let wrong: Vec<_> = yes.iter().filter(|text| !is_for(&list, text)).collect();
            assert!(wrong.is_empty(), "{tags:?} is for {wrong:?}");
            let wrong: Vec<_> = no.iter().filter(|text| is_for(&list, text)).collect();
            assert!(wrong.is_empty(), "{tags:?} is not for {wrong:?}");
            // A digest alone has no tag. A tag next to a digest counts.
            assert_eq!(is_for(&list, &digest("")), tags == ["*"], "{tags:?}");
            assert_eq!(is_for(&list, &digest(":v0.4.2")), is_for(&list, "f:v0.4.2"), "{tags:?}");
        }
    }
}

#[test]
fn constraint_the_empty_entry_matches_an_image_without_a_tag() {
    let list = pods(&["", ">= v0.4.0"], Constrained);
    assert!(["f", "f:latest", "f:v0.4.0", &digest("")].iter().all(|text| is_for(&list, text)));
    assert!(!["f:v0.3.0", "f:stable"].iter().any(|text| is_for(&list, text)));
}

#[test]
fn a_request_that_is_a_constraint_chooses_among_the_listed_versions() {
    let constraint = [
        (&["v0.1.2", "v0.1.3"][..], ">= 0.1.2 < 0.2.0", Some("0.1.3")),
        (&["v0.1.2", "v0.1.3"], "> 1.0.0", None),
        (&["~0.1", "v0.2.1"], "v0.1.5", Some("entry")),
        (&["~0.1", "v0.2.1"], ">= 0.2.0 < 0.3.0", Some("0.2.1")),
        (&["~0.1", "v0.2.1"], "~0.1", Some("entry")),
        // An equivalent constraint in another spelling does not match the entry.
        (&["~0.1", "v0.2.1"], "~0.1.0", None),
        (&["v0.4.1", "v0.4"], ">= 0.4.0 < 0.5.0", Some("0.4.1")),
        (&["v1.0.0", "v1.1.0", "v1.2.0", "v2.0.0"], ">= 1.0.0 < 2.0.0", Some("1.2.0")),
        (&["v0.4.5"], "v0.4", Some("0.4.5")),
        (&["latest", "v1.0.0"], ">= 1.0.0", Some("1.0.0")),
        (&["*"], ">= 9", Some("entry")),
        (&[], ">= 0.1.0", None),
    ];
    let exact = [
        (&["v0.1.2", "v0.1.3"][..], ">= 0.1.2 < 0.2.0", Some("0.1.3")),
        (&["v0.1.2", "v0.1.3"], "v0.1.2", Some("0.1.2")),
        (&["v0.1.2", "v0.1.3"], "v0.1", Some("0.1.3")),
        (&["latest", "~0.1"], ">= 0", None),
        (&["~0.1"], "~0.1", None),
    ];
    let exact = exact.map(|case| (Exact, case)).into_iter();
    for (semantics, (tags, request, expected)) in exact.chain(constraint.map(|case| (Constrained, case))) {
        let list = binaries(tags, semantics);
        assert_eq!(answer(&list, &Asked::of_field(request)).as_deref(), expected, "{tags:?} {request}");
    }
    // With `Constrained`, the image's own tag is matched like a tag in the `tag` field.
    assert_eq!(
        answer(&binaries(&["v0.4.5"], Constrained), &Asked::of(&image("f:v0.4"))).as_deref(),
        Some("0.4.5")
    );
    assert_eq!(answer(&binaries(&["v0.4.5"], Constrained), &Asked::of(&image("f"))), None);
}

#[test]
fn constraint_only_valid_entries_are_accepted() {
    for tags in [&[][..], &["v0.4.1", ">= v0.5.0 < v1.0.0", "*"], &["latest"], &["v1"; MAX_TAGS]] {
        assert!(owned(tags).of_pods(Constrained).is_ok() && owned(tags).of_binaries(Constrained).is_ok());
    }
    assert!(owned(&[""]).of_pods(Constrained).is_ok() && owned(&[""]).of_binaries(Constrained).is_err());
    for wrong in ["not-a-constraint", ">> 1.0.0", "stable", " ", "a b", "1.2.3.4/5", "ä", "Latest"] {
        for (read, words) in
            [(Tags::of_pods as fn(_, _) -> _, r#""*", "", "latest""#), (Tags::of_binaries, r#""latest""#)]
        {
            let (index, reason) = read(owned(&["v1", wrong]), Constrained).unwrap_err();
            let start = format!("{wrong:?} is no version constraint: write one such");
            assert!(index == 1 && reason.starts_with(&start) && reason.ends_with(words), "{reason}");
            assert!(read(owned(&[wrong]), Exact).is_ok(), "{wrong}");
        }
    }
}

#[test]
fn exact_tags_of_pods_are_ignored() {
    for tags in [&[][..], &["v0.1.1"], &["~0.2"], &["no tag!"]] {
        let list = pods(tags, Exact);
        assert!(list.is_all() && !list.is_none());
        assert!(["f", "f:v9", "f:odd_tag", &digest("")].iter().all(|text| is_for(&list, text)), "{tags:?}");
    }
}

#[test]
fn exact_executables_match_the_same_tag_only() {
    for (tag, yes, no) in [
        ("v0.1.1", vec!["f:v0.1.1"], vec!["f:0.1.1", "f:v0.1.2", "f:v0.1"]),
        ("v0.2", vec!["f:v0.2"], vec!["f:v0.2.0", "f:v0.2.1"]),
        ("1", vec!["f:1"], vec!["f:v1", "f:1.0.0", "f:1.2"]),
        ("1.x", vec!["f:1.x"], vec!["f:v1.2", "f:v2"]),
        ("~0.2", vec![], vec!["f:v0.2", "f:v0.2.1"]),
        ("*", vec![], vec!["f", "f:v1"]),
        ("latest", vec!["f"], vec!["f:v1"]),
    ] {
        let list = binaries(&[tag], Exact);
        assert!(
            yes.iter().all(|text| answer(&list, &Asked::of(&image(text))).as_deref() == Some("entry")),
            "{tag}"
        );
        assert!(!no.iter().any(|text| answer(&list, &Asked::of(&image(text))).is_some()), "{tag}");
        assert!(!list.is_all());
    }
    assert_eq!(binaries(&["v1", "~0.2", "*"], Exact).first_impossible(), Some((1, "~0.2")));
    assert_eq!(binaries(&["v1", "~0.2"], Constrained).first_impossible(), None);
    assert_eq!(pods(&["~0.2"], Exact).first_impossible(), None);
}

#[test]
fn both_semantics_warm_up_the_same_tags() {
    for semantics in [Exact, Constrained] {
        let texts = ["v1.0.0", "v1", "latest", "1.x", ">=1", "*", "v1.0+build"];
        let list = pods(&texts, semantics);
        assert_eq!(list.literal().collect::<Vec<_>>(), ["v1.0.0", "v1", "latest"]);
        assert_eq!(list.first_constraint(), Some("1.x"));
        assert_eq!(list.texts().collect::<Vec<_>>(), texts);
        assert_eq!(pods(&["~0.1 != v0.1.4", "~0.2"], semantics).first_constraint(), Some("~0.1 != v0.1.4"));
        assert_eq!(pods(&["*"], semantics).first_constraint(), Some("*"));
        assert_eq!(pods(&[""], semantics).literal().collect::<Vec<_>>(), ["latest"]);
        assert_eq!(pods(&["v0.2"], semantics).first_constraint(), None);
    }
}

#[test]
fn lists_overlap_if_one_matches_a_tag_of_the_other() {
    let overlap = |these: &[&str], those: &[&str], mut budget| {
        let (these, those) = (pods(these, Constrained), pods(those, Constrained));
        these.overlap(&those, &mut budget).map(str::to_owned)
    };
    assert_eq!(overlap(&["v1.0.0", "latest"], &["v2", "latest"], 100).as_deref(), Some("latest"));
    assert_eq!(overlap(&["v0.2"], &["v0.2.3"], 100).as_deref(), Some("v0.2.3"));
    assert_eq!(overlap(&["v0.2.3"], &["v0.2"], 100).as_deref(), Some("v0.2.3"));
    assert_eq!(overlap(&["v0.2.3"], &["v0.3"], 100), None);
    assert_eq!(overlap(&["~0.2"], &["~0.2"], 100).as_deref(), Some("~0.2"));
    assert_eq!(overlap(&["v1.0.0", "latest"], &["v2", "latest"], 2), None, "the budget is used up");
    let exact = |tags: &[&str]| binaries(tags, Exact);
    assert_eq!(exact(&["v0.2"]).overlap(&exact(&["v0.2.0"]), &mut 100), None);
    assert_eq!(exact(&["v0.2"]).overlap(&exact(&["v0.2"]), &mut 100), Some("v0.2"));
}

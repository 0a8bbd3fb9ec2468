//! Lists of tags and the links between their pages, which a registry may make long or hostile.

use proptest::prelude::*;
use reqwest::Url;

use super::{Tags, next_link};

fn url(text: &str) -> Url {
    Url::parse(text).unwrap()
}

#[test]
fn the_next_link_is_found() {
    for (header, target) in [
        (r#"</v2/a/tags/list?n=2&last=b>; rel="next""#, Some("/v2/a/tags/list?n=2&last=b")),
        ("<x>; rel=next", Some("x")),
        (r#"<x>;title="y"; REL="prev next""#, Some("x")),
        (r#"<w>; rel="prev", <x>; rel="next""#, Some("x")),
        (r#"<w,>; rel="first",<x?a,b>; rel="next""#, Some("x?a,b")),
        (r#"<x>; rel="prev""#, None),
        ("<x>", None),
        ("<x", None),
        ("", None),
    ] {
        assert_eq!(next_link(header), target, "{header}");
    }
}

#[test]
fn a_next_page_is_only_at_the_same_place() {
    let first = url("https://r.example.com/v2/a/tags/list?n=1000");
    for (target, next) in [
        ("/v2/a/tags/list?last=b", Some("https://r.example.com/v2/a/tags/list?last=b")),
        ("?last=b", Some("https://r.example.com/v2/a/tags/list?last=b")),
        ("https://r.example.com/x", Some("https://r.example.com/x")),
        ("https://r.example.com:443/x", Some("https://r.example.com/x")),
        ("https://other.example.com/x", None),
        ("//other.example.com/x", None),
        ("http://r.example.com/x", None),
        ("https://r.example.com:444/x", None),
        ("https://me@r.example.com/x", None),
        ("https://r.example.com/v2/a/tags/list?n=1000", None),
    ] {
        let mut tags = Tags::new(first.clone());
        let link = format!("<{target}>; rel=\"next\"");
        let added = tags.add(&first, br#"{"tags":["v1"]}"#, [link.as_str()]);
        assert_eq!(added.ok().and(tags.next.as_ref().map(Url::as_str)), next, "{target}");
    }
}

#[test]
fn pages_and_tags_are_bounded() {
    let mut tags = Tags::new(url("https://r/0"));
    let error = (0..)
        .find_map(|page| {
            let link = format!("</{}>; rel=next", page + 1);
            tags.add(&url(&format!("https://r/{page}")), b"{\"tags\":null}", [link.as_str()]).err()
        })
        .unwrap();
    assert!(error.to_string().ends_with("it has more than 100 pages, which are not read"), "{error}");

    let page = serde_json::json!({"tags": vec!["v"; 60_000]}).to_string();
    let mut tags = Tags::new(url("https://r/0"));
    tags.add(&url("https://r/0"), page.as_bytes(), []).unwrap();
    let error = tags.add(&url("https://r/1"), page.as_bytes(), []).unwrap_err();
    assert!(error.to_string().ends_with("it has more than 100000 tags, which are not read"), "{error}");
}

#[test]
fn only_tags_are_kept() {
    let mut tags = Tags::new(url("https://r/0"));
    let page =
        serde_json::json!({"tags": ["v1", "", "../x", "a b", "-x", ".x", "_x", "x".repeat(129)]}).to_string();
    tags.add(&url("https://r/0"), page.as_bytes(), []).unwrap();
    assert_eq!(tags.finish(), ["v1", "_x"]);
}

proptest! {
    #[test]
    fn any_link_and_page_is_an_answer(header in "\\PC{0,80}", pieces in prop::collection::vec(prop::sample::select(vec!["<", ">", ";", ",", "rel", "=", "next", "\"", " "]), 0..20), body in prop::collection::vec(any::<u8>(), 0..100)) {
        let at = url("https://r/0");
        let _ = Tags::new(at.clone()).add(&at, &body, [header.as_str()]);
        let _ = Tags::new(at.clone()).add(&at, b"{}", [header.as_str(), pieces.concat().as_str()]);
    }
}

//! Links between pages of tags, which a registry may make hostile.

use reqwest::Url;

use super::{next_link, next_page};

#[test]
fn the_next_link_is_found() {
    for (header, target) in [
        (r#"</v2/a/tags/list?n=2&last=b>; rel="next""#, Some("/v2/a/tags/list?n=2&last=b")),
        ("<x>; rel=next", Some("x")),
        (r#"<x>;title="y"; REL="next""#, Some("x")),
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
    let first = Url::parse("https://r.example.com/v2/a/tags/list?n=1000").unwrap();
    for (target, expected) in [
        ("/v2/a/tags/list?last=b", Some("https://r.example.com/v2/a/tags/list?last=b")),
        ("?last=b", Some("https://r.example.com/v2/a/tags/list?last=b")),
        ("https://r.example.com:443/x", Some("https://r.example.com/x")),
        ("https://other.example.com/x", None),
        ("//other.example.com/x", None),
        ("http://r.example.com/x", None),
        ("https://r.example.com:444/x", None),
        ("https://me@r.example.com/x", None),
        ("https://[::x/", None),
    ] {
        let next = next_page(&first, [format!("<{target}>; rel=\"next\"").as_str()]);
        assert_eq!(next.ok().flatten().as_ref().map(Url::as_str), expected, "{target}");
    }
    assert_eq!(next_page(&first, ["<x>; rel=prev"]), Ok(None));
}

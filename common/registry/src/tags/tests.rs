//! Links between pages of tags. A registry may send hostile links.

use reqwest::Url;

use super::next_page;

#[test]
fn the_next_page_must_have_the_same_origin() {
    let first = Url::parse("https://r.example.com/v2/a/tags/list?n=1000").unwrap();
    let page = |query: &str| Some(format!("https://r.example.com/v2/a/tags/list{query}"));
    for (link, expected) in [
        (r#"</v2/a/tags/list?n=2&last=b>; rel="next""#, page("?n=2&last=b")),
        ("<?last=b>; rel=next", page("?last=b")),
        (r#"<?a>;title="y"; REL="next""#, page("?a")),
        (r#"<w,>; rel="first",<?a,b>; rel="next""#, page("?a,b")),
        ("<https://r.example.com:443/v2/a/tags/list>; rel=next", page("")),
        (r#"<x>; rel="prev""#, None),
        ("<x>", None),
        ("<x", None),
        ("", None),
    ] {
        let next = next_page(&first, [link]).unwrap();
        assert_eq!(next.map(String::from), expected, "{link}");
    }
    for elsewhere in [
        "https://other.example.com/x",
        "//other.example.com/x",
        "http://r.example.com/x",
        "https://r.example.com:444/x",
        "https://me@r.example.com/x",
        "https://[::x/",
    ] {
        assert!(next_page(&first, [&*format!("<{elsewhere}>; rel=next")]).is_err(), "{elsewhere}");
    }
}

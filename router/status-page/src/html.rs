//! The page itself: one HTML text without a request to anywhere but its own `status.json`.

use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;
use ring::digest::{SHA256, digest};

const STYLE: &str = include_str!("page.css");
/// One script, of several files for those who read them.
const SCRIPT: &str = concat!(
    "\"use strict\";\n",
    include_str!("format.js"),
    include_str!("ring.js"),
    include_str!("tables.js"),
    include_str!("page.js")
);

static PAGE: LazyLock<String> = LazyLock::new(|| {
    include_str!("page.html").replacen("/*STYLE*/", STYLE, 1).replacen("/*SCRIPT*/", SCRIPT, 1)
});

/// The page.
pub(crate) fn page() -> String {
    PAGE.clone()
}

/// Its Content-Security-Policy: this style, this script, its own data, nothing else. Image names are callers' input: if
/// a browser ever took one for HTML, nothing would run.
pub(crate) fn policy() -> HeaderValue {
    let policy = format!(
        "default-src 'none'; style-src {}; script-src {}; connect-src 'self'; img-src data:; base-uri 'none'; form-action \
         'none'; frame-ancestors 'none'",
        hash(STYLE),
        hash(SCRIPT)
    );
    // Base64 and ASCII words only. Without a policy of its own a page may run nothing.
    HeaderValue::try_from(policy).unwrap_or_else(|_| HeaderValue::from_static("default-src 'none'"))
}

fn hash(text: &str) -> String {
    format!("'sha256-{}'", STANDARD.encode(digest(&SHA256, text.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_allows_exactly_the_pages_own_style_and_script() {
        let page = page();
        let between = |open: &str, close: &str| {
            let (_, rest) = page.split_once(open).unwrap();
            rest.split_once(close).unwrap().0.to_owned()
        };
        let (style, script) = (between("<style>", "</style>"), between("<script>", "</script>"));
        let policy = policy();
        let policy = policy.to_str().unwrap();
        assert!(policy.contains(&format!("style-src {};", hash(&style))), "{policy}");
        assert!(policy.contains(&format!("script-src {};", hash(&script))), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
    }

    #[test]
    fn it_asks_nobody_else_and_makes_no_html_of_data() {
        let page = page();
        for word in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            " style=\"",
            "onclick=",
        ] {
            assert!(!page.contains(word), "{word}");
        }
        // The only address in it is a name: that of SVG.
        let addresses: Vec<_> = page.split("://").skip(1).map(|rest| &rest[..18]).collect();
        assert!(addresses.iter().all(|address| *address == "www.w3.org/2000/sv"), "{addresses:?}");
    }
}

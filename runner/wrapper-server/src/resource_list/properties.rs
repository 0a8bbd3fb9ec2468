//! The check ends without a panic for any output, and any text in JSON is unchanged. tests/fuzz looks for
//! more of the former.

use std::fmt::Write as _;

use proptest::prelude::*;

use super::*;

/// Texts with a meaning in YAML.
const PIECES: &str = " |\n|:|-|#|'|\"|{|}|[|]|,|&a |*a|!x |!!str |>|2-|? |: |- |\t|...\n|---\n|%TAG ! x\n|@|\\|\\x4|\r|a|\n  |\n- |\
                      \u{feff}|\0|~|é|<<: *a|kind: ResourceList\n|results:\n|items:\n|message: m\n";

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn any_output_is_judged(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        pieces in proptest::collection::vec(proptest::sample::select(PIECES.split('|').collect::<Vec<_>>()), 0..60),
    ) {
        let _ = check(&bytes);
        let _ = check(pieces.concat().as_bytes());
        let _ = check(format!("kind: ResourceList\nresults:\n- {}", pieces.join("|")).as_bytes());
    }

    /// A reader of YAML must read JSON too.
    #[test]
    fn results_in_json_are_unchanged(
        message in "[ -~\u{a1}-\u{d7ff}\n]{0,40}",
        name in "[ -~]{1,10}",
        path in "[ -~]{0,10}",
    ) {
        let json = |text: &str| {
            let mut quoted = String::new();
            text.encode_utf16().for_each(|unit| write!(quoted, "\\u{unit:04x}").unwrap());
            format!("\"{quoted}\"")
        };
        let output = format!(
            "{{\"kind\":\"ResourceList\",\"results\":[{{\"message\":{},\"resourceRef\":{{\"name\":{}}},\
             \"field\":{{\"path\":{}}}}}]}}",
            json(&message),
            json(&name),
            json(&path),
        );
        let expected = format!("[info] {name} {path}: {message}");
        prop_assert_eq!(check(output.as_bytes()).unwrap().to_string(), expected);
    }
}

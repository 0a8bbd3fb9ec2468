//! Whatever a function writes, it is judged: no panic, no endless loop.

use std::fmt::Write as _;

use proptest::prelude::*;

use super::*;

const SAMPLE: &str = r#"apiVersion: config.kubernetes.io/v1
kind: ResourceList
items:
- apiVersion: v1
  kind: ConfigMap
  metadata: {name: a, labels: {"x": 'y', z: "q\n"}}
  data:
    script: |-
      #!/bin/sh
        echo "a: b"   # not a comment

      exit
    folded: >
      a
      b

    keep: |2+
        x

  list: [a, "b", {c: d}, [e]]
  anchor: &a {k: v}
  alias: *a
  tagged: !!str 3
  ? complex
  : value
  empty:
  'quoted key': "tab\tx é"
results:
- message: 'it''s bad'
  severity: error
  resourceRef: {apiVersion: v1, kind: Pod, name: n, namespace: ns}
  field: {path: spec.x}
- message: two
functionConfig:
  kind: ConfigMap
"#;

/// What YAML gives a meaning to.
const PIECES: [&str; 40] = [
    " ",
    "\n",
    ":",
    "-",
    "#",
    "'",
    "\"",
    "{",
    "}",
    "[",
    "]",
    ",",
    "&a ",
    "*a",
    "!x ",
    "!!str ",
    "|",
    ">",
    "|2-",
    "? ",
    ": ",
    "- ",
    "\t",
    "...\n",
    "---\n",
    "%TAG ! x\n",
    "@",
    "\\",
    "\\x4",
    "\r",
    "a",
    "\n  ",
    "\n- ",
    "\u{feff}",
    "\0",
    "~",
    "é",
    "<<: *a",
    "kind: ResourceList\n",
    "results:\n",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn any_bytes_are_judged(output in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = check(&output);
    }

    #[test]
    fn any_run_of_yaml_pieces_is_judged(pieces in proptest::collection::vec(proptest::sample::select(&PIECES[..]), 0..60)) {
        let _ = check(pieces.concat().as_bytes());
    }

    #[test]
    fn any_damaged_resource_list_is_judged(
        edits in proptest::collection::vec((any::<proptest::sample::Index>(), 0usize..8, proptest::sample::select(&PIECES[..])), 1..6),
    ) {
        let mut output = SAMPLE.as_bytes().to_vec();
        for (at, removed, piece) in edits {
            let at = at.index(output.len());
            let end = output.len().min(at + removed);
            output.splice(at..end, piece.bytes());
        }
        let _ = check(&output);
    }

    /// Escaped as JSON, which this must read as well, any text comes back as it was.
    #[test]
    fn results_in_json_come_back(
        message in "[ -~\u{a1}-\u{d7ff}\n]{0,40}",
        name in "[ -~]{1,10}",
        path in proptest::option::of("[ -~]{0,10}"),
    ) {
        let json = |text: &str| {
            let mut quoted = String::from("\"");
            for unit in text.encode_utf16() {
                write!(quoted, "\\u{unit:04x}").unwrap();
            }
            quoted + "\""
        };
        let field = path.as_ref().map(|path| format!(",\"field\":{{\"path\":{}}}", json(path))).unwrap_or_default();
        let output = format!(
            "{{\"kind\":\"ResourceList\",\"results\":[{{\"message\":{},\"resourceRef\":{{\"name\":{}}}{field}}}]}}",
            json(&message),
            json(&name),
        );
        let path = path.map(|path| format!(" {path}")).unwrap_or_default();
        prop_assert_eq!(check(output.as_bytes()).unwrap().to_string(), format!("[info] {name}{path}: {message}"));
    }
}

#[test]
fn the_sample_is_sound() {
    assert_eq!(
        check(SAMPLE.as_bytes()).unwrap().to_string(),
        "[error] v1/Pod/ns/n spec.x: it's bad\n\n[info]: two"
    );
}

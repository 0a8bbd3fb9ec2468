//! Tests accepted and rejected outputs. The expectations were compared with Go's
//! `fn.ParseResourceList` (SDK v1.0.2).

use std::fmt::Write as _;

use proptest::prelude::*;

use super::*;

const RL: &str = "apiVersion: config.kubernetes.io/v1\nkind: ResourceList\n";

/// Checks a `ResourceList` that continues with `rest`.
fn with(rest: &str) -> Result<Results, String> {
    check(format!("{RL}{rest}").as_bytes())
}

fn text(rest: &str) -> String {
    with(rest).unwrap().to_string()
}

fn refusal(output: impl AsRef<[u8]>) -> String {
    check(output.as_ref()).unwrap_err()
}

#[test]
fn accepts_a_resource_list() {
    for output in [
        RL,
        "kind: ResourceList\n",
        "kind: ResourceList",
        "apiVersion: [any]\nkind: 'ResourceList'\nitems: []\n",
        "{\n\t\"kind\": \"ResourceList\",\n\t\"items\": [\n\t\t{\"a\": [1, {\"b\": null}]}\n\t]\n}\n",
        "{\"items\":[{\"s\":\"\\u00e9\\/\u{feff}\"}],\"kind\":\"ResourceList\"}",
        "\u{feff}kind: ResourceList\n",
        "\u{feff}{kind: ResourceList}\n",
        "---\nkind: ResourceList\n...\n# done\n",
        "# first\n%YAML 1.1\n---\nkind: ResourceList\r\nitems: []\r\n",
        "kind: ResourceList\nkind: Other\n",
        "kind: |-\n  ResourceList\nitems:\n- ? [complex]\n  : key\n",
        "kind: ResourceList\nitems: []\nitems: 3\nfunctionConfig: {}\nfunctionConfig: 3\n",
        "kind: ResourceList\nitems:\n- x: &a {k: v}\n  y: *a\n  z: {<<: *a}\n",
        "kind: ResourceList\nkind_: \"\u{85}\u{a0}\"\n",
        "kind: ResourceList\na:\n  b: |2+\n      x\n\n  c: >\n    d\n    e\n  ? complex\n  : !!str 3\n'f g': \"tab\\tx é\"\n",
    ] {
        assert_eq!(check(output.as_bytes()), Ok(Results::default()), "{output}");
    }
}

#[test]
fn anything_else_is_rejected() {
    for (output, text) in [
        ("", "expected exactly one object, got 0: the function must write a ResourceList to stdout"),
        (" \n# nothing\n", "expected exactly one object, got 0"),
        (
            "kind: ResourceList\n---\n",
            "got another at line 2, column 1: only the ResourceList may go to stdout",
        ),
        ("kind: ResourceList\n...\n---\nkind: ResourceList\n", "got another at line 3, column 1: only"),
        ("log\nkind: ResourceList\n", "the function's stdout must be a mapping, found a scalar at line 1"),
        ("---\n", "the function's stdout must be a mapping, found a null at line 2, column 1"),
        ("- kind: ResourceList\n", "stdout must be a mapping, found a list at line 1, column 1"),
        ("kind: List\nkind: ResourceList\n", r#"input was of unexpected kind "List"; expected ResourceList"#),
        ("kind: [ResourceList]\n", r#"unexpected kind ""; expected ResourceList"#),
        ("a: &a ResourceList\nkind: *a\n", r#"unexpected kind """#),
        ("a: &a {kind: ResourceList}\n<<: *a\n", r#"unexpected kind """#),
        ("hello: world\n", r#"unexpected kind """#),
        (
            "kind: ResourceList\nitems: []\ndone: all: of it\n",
            "invalid YAML at line 3, column 10: mapping values",
        ),
        ("{\"kind\": \"ResourceList\"]", "line 1, column 24: while parsing a flow mapping, did not find"),
        (
            "kind: ResourceList\na: *unknown\n",
            "line 2, column 4: while parsing node, found unknown anchor: only",
        ),
        (
            "kind: ResourceList\na: \"\x1b[1m\"\n",
            "not allowed, U+001B in line 2: it must be escaped in double",
        ),
        ("a: \0\n", "U+0000 in line 1"),
        ("\n\na: \u{80}", "U+0080 in line 3"),
        ("\u{ffff}", "U+FFFF in line 1"),
        ("kind: ResourceList\nitems:\n", "items must be a list, found a null at line 2, column 6"),
        ("kind: ResourceList\nitems: {}\n", "items must be a list, found a mapping at line 2, column 8"),
        ("kind: ResourceList\na: &a []\nitems: *a\n", "items must be a list, found a YAML alias at line 3"),
        (
            "kind: ResourceList\nitems:\n- {}\n- 3\n",
            "each of items must be a mapping, found a scalar at line 4",
        ),
        (
            "kind: ResourceList\nfunctionConfig: []\n",
            "functionConfig must be a mapping, found a list at line 2",
        ),
    ] {
        assert!(refusal(output).contains(text), "{output}: {}", refusal(output));
    }
    assert_eq!(
        refusal(b"kind: ResourceList\na: \xff\n"),
        "invalid UTF-8 in line 2: the function must write UTF-8 to stdout"
    );
    let long = refusal(format!("kind: {}\n", "é".repeat(1000)));
    assert!(long.contains("é...\"") && long.len() < 400, "{long}");
}

#[test]
fn nesting_is_bounded() {
    let nested = |opening: &str, levels: usize| with(&format!("a:\n{}", opening.repeat(levels)));
    assert_eq!(nested("- ", 9_999), Ok(Results::default()));
    let too_deep = nested("- ", 3_000_000).unwrap_err();
    assert!(too_deep.ends_with("nested more than 10000 levels deep"), "{too_deep}");
    let too_deep = nested(" [", 3_000_000).unwrap_err();
    assert!(too_deep.ends_with("all else to stderr"), "{too_deep}");
}

#[test]
fn aliases_are_not_expanded() {
    let mut laughs = "a0: &a0 [ha]\n".to_owned();
    for level in 1..100 {
        let before = format!("*a{},", level - 1).repeat(10);
        writeln!(laughs, "a{level}: &a{level} [{before}]").unwrap();
    }
    assert_eq!(with(&laughs), Ok(Results::default()));
}

#[test]
fn results_read_as_in_the_go_sdk() {
    for (results, expected) in [
        ("", ""),
        ("results: null\n", ""),
        ("results: []\n", ""),
        ("results: {}\n", ""),
        ("results: nothing\n", ""),
        ("results: [{}]\n", "[info]: "),
        ("results: [{message: null, severity: 3, field: {path: ''}}]\n", "[3] : "),
        ("results: [{message: 1.50, field: null, resourceRef: ~}]\n", "[info]: 1.50"),
        ("results: {items: [{message: m}]}\n", "[info]: m"),
        ("results: {other: 3, items: [{message: m}], items: 3}\n", "[info]: m"),
        ("results: [{message: m, tags: {a: b}, file: {path: f, index: 1}}]\n", "[info]: m"),
        ("results: [{message: m, resourceRef: {kind: Pod, name: n}}]\n", "[info] Pod/n: m"),
        ("results: [{message: m}]\nresults: [{message: n}]\n", "[info]: m"),
        (
            "results:\n- message: first\n  severity: error\n  field:\n    path: spec.a\n    currentValue: {a: b}\n  \
             resourceRef:\n    name: n\n    namespace: ns\n    kind: Deployment\n    apiVersion: apps/v1\n\
             - severity: warning\n  message: |\n    two\n    lines\n- message: 'null'\n",
            "[error] apps/v1/Deployment/ns/n spec.a: first\n\n[warning]: two\nlines\n\n\n[info]: null",
        ),
    ] {
        assert_eq!(text(results), expected, "{results}");
    }
}

#[test]
fn results_of_another_shape_are_rejected() {
    for (results, refusal) in [
        ("x: &a []\nresults: *a\n", "results must be a list, found a YAML alias at line 4, column 10"),
        ("results: {items: ~}\n", "results must be a list, found a null at line 3, column 18"),
        ("results: {items: {}}\n", "results must be a list, found a mapping at line 3, column 18"),
        ("results: [x]\n", "each of results must be a mapping, found a scalar at line 3, column 11"),
        ("results: [{message: {}}]\n", "message of a result must be a scalar, found a mapping"),
        ("results: [{severity: []}]\n", "severity of a result must be a scalar, found a list"),
        ("results: [{field: x}]\n", "field of a result must be a mapping, found a scalar"),
        ("results: [{resourceRef: []}]\n", "resourceRef of a result must be a mapping, found a list"),
    ] {
        let found = with(results).unwrap_err();
        assert!(found.starts_with(refusal), "{results}: {found}");
    }
}

#[test]
fn aliases_in_results_are_not_followed() {
    let results =
        "x: &x error\nresults:\n- &r {message: m, severity: *x, field: *x, resourceRef: *x}\n- *r\n";
    assert_eq!(text(results), "[info]: m\n\n[info]: (YAML alias)");
}

#[test]
fn an_error_among_the_results_is_noticed() {
    let has_error = |results| with(results).unwrap().has_error;
    assert!(has_error("results: [{severity: info}, {severity: error}]\n"));
    assert!(!has_error("results: [{severity: warning}, {severity: Error}, {}]\n"));
    let many = "- message: x\n".repeat(100_000);
    assert!(has_error(&format!("results:\n{many}- severity: error\n")));
}

#[test]
fn results_are_kept_within_a_bound() {
    let results = with(&format!("results:\n{}", "- message: 0123456789\n".repeat(10_000))).unwrap();
    // Each result is "[info]: 0123456789". A blank line (two bytes) separates results.
    assert_eq!(results.text.len(), TEXT_LIMIT / 20 * 20 - 2);
    assert_eq!(results.left_out, 10_000 - TEXT_LIMIT / 20);
    let text = results.to_string();
    assert!(text.ends_with("\n\n[info]: 0123456789\n\n[... 6724 more results left out ...]"), "{text}");

    let long = "é".repeat(1 << 20);
    let results = with(&format!(
        "results:\n- message: {long}\n  severity: {long}\n  field: {{path: {long}}}\n  resourceRef: {{kind: {long}}}\n"
    ));
    let text = results.unwrap().to_string();
    assert!(text.len() <= MESSAGE_LIMIT + 3 * PART_LIMIT + 10 && text.ends_with("é..."), "{}", text.len());
}

#[test]
fn the_outline_of_the_usual_style_suffices() {
    for output in [
        RL,
        "---\nkind: ResourceList\n",
        "kind: ResourceList\nitems:\n- apiVersion: v1\n  kind: Pod\n\n# comment\n-   kind: Service\nfunctionConfig:\n  kind: X\n",
        "kind: ResourceList\nitems:\n  - a:\n    - b\n   # comment\n  - config.kubernetes.io/x: y\nresults: []",
        "kind: ResourceList\nfunctionConfig: {}\nitems: []\n",
        "apiVersion: config.kubernetes.io/v1\nitems:\n- a: |\n    \"x\n    kind: y\nkind: ResourceList\n",
        // Porch refuses invalid YAML in an item.
        "kind: ResourceList\nitems:\n- a: b: c\n  - [\n",
    ] {
        assert_eq!(outline::results(output.as_bytes()), Some(results_of(output)), "{output}");
    }
    let output = "items:\n- a: b\nresults:\n- message: m\n  severity: error\nkind: ResourceList\n";
    assert_eq!(outline::results(output.as_bytes()), Some("results:\n- message: m\n  severity: error\n"));
    let checked = check_outline(output.as_bytes());
    assert!(checked.as_ref().unwrap().has_error);
    assert_eq!(checked, check(output.as_bytes()));
}

/// The last line, if it is the key `results`.
fn results_of(output: &str) -> &str {
    output.rfind("results").map_or("", |at| &output[at..])
}

#[test]
fn a_parser_reads_all_other_outputs() {
    for output in [
        "",
        "{kind: ResourceList}",
        "items: []\n",
        "kind: List\n",
        "kind: ResourceList # comment\n",
        "kind: 'ResourceList'\n",
        "kind: ResourceList\nkind: ResourceList\n",
        "kind: ResourceList\nother: 1\n",
        "kind: ResourceList\nitems:\n",
        "kind: ResourceList\nitems:\nresults: []\n",
        "kind: ResourceList\nitems: {}\n",
        "kind: ResourceList\nitems: []\n- a: b\n",
        "kind: ResourceList\n  more\n",
        "kind: ResourceList\nitems:\n- a\n",
        "kind: ResourceList\nitems:\n- {a: b}\n",
        "kind: ResourceList\nitems:\n- &a a: b\n",
        "kind: ResourceList\nitems:\n-\ta: b\n",
        "kind: ResourceList\nitems:\n\t- a: b\n",
        "kind: ResourceList\nitems:\n  - a: b\n - c: d\n",
        "kind: ResourceList\nitems:\n  - a: b\n  c: d\n",
        "kind: ResourceList\nitems:\n- a: \"b\nc\"\n",
        "kind: ResourceList\nfunctionConfig:\n",
        "kind: ResourceList\nfunctionConfig: text\n",
        "kind: ResourceList\nfunctionConfig:\n  - a\n",
        "kind: ResourceList\n---\nkind: ResourceList\n",
        "kind: ResourceList\n...\n",
        "kind: ResourceList\r---\r",
        "kind: ResourceList\nitems:\n- a: \u{1b}\n",
    ] {
        assert_eq!(outline::results(output.as_bytes()), None, "{output:?}");
        assert_eq!(check_outline(output.as_bytes()), check(output.as_bytes()), "{output:?}");
    }
    assert_eq!(outline::results(b"kind: ResourceList\nitems:\n- a: \xff\n"), None);
    // Positions are those in the output, not in the lines of `results`.
    let output = b"kind: ResourceList\nitems: []\nresults:\n- x\n";
    assert_eq!(check_outline(output), check(output));
}

/// Lines of a `ResourceList`, in the usual style and in others.
const LINES: &str = "kind: ResourceList|kind: List|apiVersion: v1|items:|items: []|functionConfig:|functionConfig: {}|results:|\
                     results: []|- a: b|  - a: b|  c: d|    e: |# f||---|- x|  - severity: error|- severity: error|\
                     - message: \"|  \"|- a: |\\|  - 'a|'|\tx|a: &a b|- *a|- message: *a|? x|- ? x|  {|}";

/// Texts that have a meaning in YAML.
const PIECES: &str = " |\n|:|-|#|'|\"|{|}|[|]|,|&a |*a|!x |!!str |>|2-|? |: |- |\t|...\n|---\n|%TAG ! x\n|@|\\|\\x4|\r|a|\n  |\n- |\
                      \u{feff}|\0|~|é|<<: *a|kind: ResourceList\n|results:\n|items:\n|message: m\n";

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// No output causes a panic.
    #[test]
    fn any_output_is_checked(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        pieces in proptest::collection::vec(proptest::sample::select(PIECES.split('|').collect::<Vec<_>>()), 0..60),
    ) {
        let _ = check(&bytes);
        let _ = check(pieces.concat().as_bytes());
        let _ = check(format!("kind: ResourceList\nresults:\n- {}", pieces.join("|")).as_bytes());
    }

    /// If the outline suffices, a parser gives the same results, or finds invalid YAML in an item.
    #[test]
    fn the_outline_agrees_with_the_parser(
        lines in proptest::collection::vec(proptest::sample::select(LINES.split('|').collect::<Vec<_>>()), 1..12),
    ) {
        let output = lines.join("\n");
        for output in [output.as_bytes(), format!("kind: ResourceList\nitems:\n- a: b\n{output}").as_bytes()] {
            let (outlined, parsed) = (check_outline(output), check(output));
            let invalid = |error: &String| error.starts_with("invalid YAML");
            prop_assert!(outlined == parsed || outlined.is_ok() && parsed.as_ref().is_err_and(invalid), "{:?}", parsed);
        }
    }

    /// JSON is YAML too.
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

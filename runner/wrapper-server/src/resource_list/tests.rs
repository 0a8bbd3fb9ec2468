//! Accepted and rejected outputs. They were compared with Go's `fn.ParseResourceList` (SDK v1.0.2).

use std::fmt::Write as _;

use super::*;

const RL: &str = "apiVersion: config.kubernetes.io/v1\nkind: ResourceList\n";

/// `rest` as more of a `ResourceList`.
fn with(rest: &str) -> Result<Results, Invalid> {
    check(format!("{RL}{rest}").as_bytes())
}

fn text(rest: &str) -> String {
    with(rest).unwrap().to_string()
}

fn refusal(output: impl AsRef<[u8]>) -> String {
    check(output.as_ref()).unwrap_err().to_string()
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
            "expected exactly one object, got another at line 2, column 1: only the ResourceList may go to stdout",
        ),
        ("kind: ResourceList\n...\n---\nkind: ResourceList\n", "got another at line 3, column 1: only"),
        (
            "log\nkind: ResourceList\n",
            "the function's stdout must be a mapping, found a scalar at line 1, column 1",
        ),
        ("---\n", "the function's stdout must be a mapping, found a null at line 2, column 1"),
        (
            "- kind: ResourceList\n",
            "the function's stdout must be a mapping, found a list at line 1, column 1",
        ),
        ("kind: List\nkind: ResourceList\n", r#"input was of unexpected kind "List"; expected ResourceList"#),
        ("kind: [ResourceList]\n", r#"unexpected kind ""; expected ResourceList"#),
        ("a: &a ResourceList\nkind: *a\n", r#"unexpected kind """#),
        ("a: &a {kind: ResourceList}\n<<: *a\n", r#"unexpected kind """#),
        ("hello: world\n", r#"unexpected kind """#),
        (
            "kind: ResourceList\nitems: []\ndone: all: of it\n",
            "invalid YAML at line 3, column 10: mapping values are not allowed in this context: \
             only the ResourceList may go to stdout, all else to stderr",
        ),
        (
            "{\"kind\": \"ResourceList\"]",
            "line 1, column 24: while parsing a flow mapping, did not find expected ','",
        ),
        (
            "kind: ResourceList\na: *unknown\n",
            "line 2, column 4: while parsing node, found unknown anchor: only",
        ),
        (
            "kind: ResourceList\na: \"\x1b[1m\"\n",
            "control characters are not allowed, U+001B in line 2: it must be escaped in double quotes",
        ),
        ("a: \0\n", "U+0000 in line 1"),
        ("\n\na: \u{80}", "U+0080 in line 3"),
        ("\u{ffff}", "U+FFFF in line 1"),
        ("kind: ResourceList\nitems:\n", "items must be a list, found a null at line 2, column 6"),
        ("kind: ResourceList\nitems: {}\n", "items must be a list, found a mapping at line 2, column 8"),
        (
            "kind: ResourceList\na: &a []\nitems: *a\n",
            "items must be a list, found a YAML alias at line 3, column 8",
        ),
        (
            "kind: ResourceList\nitems:\n- {}\n- 3\n",
            "each of items must be a mapping, found a scalar at line 4, column 3",
        ),
        (
            "kind: ResourceList\nfunctionConfig: []\n",
            "functionConfig must be a mapping, found a list at line 2, column 17",
        ),
    ] {
        assert!(refusal(output).contains(text), "{output}: {}", refusal(output));
    }
    assert_eq!(
        refusal(b"kind: ResourceList\na: \xff\n"),
        "invalid UTF-8 in line 2: the function must write UTF-8 to stdout"
    );
}

#[test]
fn repeats_only_a_part_of_a_long_kind() {
    let refusal = refusal(format!("kind: {}\n", "é".repeat(1000)));
    assert!(refusal.contains("é...\"") && refusal.len() < 400, "{refusal}");
}

#[test]
fn nesting_is_bounded() {
    let nested = |opening: &str, levels: usize| with(&format!("a:\n{}", opening.repeat(levels)));
    assert_eq!(nested("- ", 9_999), Ok(Results::default()));
    let too_deep = nested("- ", 3_000_000).unwrap_err();
    assert!(matches!(too_deep, Invalid::TooDeep { limit: 10_000, .. }), "{too_deep}");
    let too_deep = nested(" [", 3_000_000).unwrap_err();
    assert!(matches!(too_deep, Invalid::Syntax { .. }), "{too_deep}");
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
        (
            "results: [{message: {}}]\n",
            "message of a result must be a scalar, found a mapping at line 3, column 21",
        ),
        (
            "results: [{severity: []}]\n",
            "severity of a result must be a scalar, found a list at line 3, column 22",
        ),
        (
            "results: [{field: x}]\n",
            "field of a result must be a mapping, found a scalar at line 3, column 19",
        ),
        (
            "results: [{resourceRef: []}]\n",
            "resourceRef of a result must be a mapping, found a list at line 3, column 25",
        ),
    ] {
        assert_eq!(with(results).unwrap_err().to_string(), refusal, "{results}");
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
    // "[info]: 0123456789" and a blank line before all but the first.
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

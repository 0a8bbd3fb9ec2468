//! The text tools one by one.

use super::comments::comments;
use super::emit::document;
use super::scalar::{double_quoted, is_plain_string, single_quoted};
use super::{Body, Node, ParseError, parse, same, sections};

fn tree(text: &str) -> Node {
    parse(text).unwrap().unwrap()
}

/// The text of each scalar's span, in order.
fn spans<'a>(text: &'a str, node: &Node, found: &mut Vec<&'a str>) {
    match &node.body {
        Body::Scalar(_) | Body::Alias(_) => found.push(&text[node.span.clone()]),
        Body::Sequence { items, .. } => items.iter().for_each(|item| spans(text, item, found)),
        Body::Mapping { entries, .. } => entries.iter().for_each(|(key, value)| {
            spans(text, key, found);
            spans(text, value, found);
        }),
    }
}

#[test]
fn spans_are_bytes_and_end_with_the_content() {
    let text = "é: \"a\\\"\"  # c \"d\"\n'k''': 'it''s' # e\nb: | # f\n  x→\n\n# g\n☃: [ü , \"b\" , ]\np: &a !!str q\n  r # h\n";
    let mut found = Vec::new();
    spans(text, &tree(text), &mut found);
    assert_eq!(
        found,
        ["é", "\"a\\\"\"", "'k'''", "'it''s'", "b", "x→\n\n", "☃", "ü", "\"b\"", "p", "&a !!str q\n  r"]
    );
}

#[test]
fn flow_mappings_end_with_their_brace() {
    for text in [
        "{a: b}",
        "{a: b,}",
        "{a: b , # c }\n # }\n }",
        "{}",
        "{ }",
        "{ # c\n }",
        "{ a: b }",
        "&a !!map { a: b }",
        "{a: {b: c,},}",
        "{a}",
        "{a: }",
    ] {
        let root = tree(text);
        assert_eq!(root.span, 0..text.len(), "{text}");
        assert!(matches!(root.body, Body::Mapping { flow: true, .. }), "{text}");
    }
}

#[test]
fn long_texts_have_right_spans() {
    let text = format!("a: {}\nb: ß\nc: x\n", "é".repeat(1000));
    let c = tree(&text).get("c").unwrap().span.clone();
    assert_eq!(&text[c], "x");
}

#[test]
fn comments_are_told_from_content() {
    let text = "# a\nk: 'b # no' # c\nu: x#no # d\n? |  # e\n  # no\n: - \"f\\\" # no\" #g\n  - {h: i, # j\n  # k\n    }\n&x#no l: *x#no\n# m";
    assert_eq!(comments((text, &tree(text))), ["# a", "# c", "# d", "# e", "#g", "# j", "# k", "# m"]);
}

#[test]
fn documents_are_told_apart_by_their_lines() {
    let parts = |text: &'static str| -> Vec<(&str, &str)> {
        sections(text).into_iter().map(|part| (&text[part.directives], &text[part.body])).collect()
    };
    assert_eq!(parts(""), []);
    assert_eq!(parts("\n \n"), []);
    assert_eq!(parts("a"), [("", "a")]);
    assert_eq!(parts("# c\n\na\n"), [("", "# c\n\na\n")]);
    assert_eq!(parts("\u{feff}# c\n---\n\n  \n# d\na\n"), [("# c\n", "# d\na\n")]);
    assert_eq!(parts("a: '\n---\nb'\n"), [("", "a: '\n"), ("", "b'\n")]);
    assert_eq!(
        parts("a\n--- # c\nb\n---\n---\nc\n...\n%YAML 1.2\n---\r\nd"),
        [("", "a\n"), ("", "b\n"), ("", "c\n"), ("%YAML 1.2\n", "d")]
    );
    assert_eq!(parts("--- a\n---b\n----\n"), [("", "a\n---b\n----\n")]);
    assert_eq!(parts("...\n...\n# c\na\n...\nb\n"), [("", "# c\na\n"), ("", "b\n")]);
}

#[test]
fn only_sure_strings_go_without_quotes() {
    for text in ["a", "a-b.c/d e", "/x", "_", "v1", "e3", "nan", "NULLs"] {
        assert!(is_plain_string(text), "{text}");
    }
    for text in [
        "", "1", "-a", ".5", "a:", "a: b", "a #b", "yes", "Null", "TRUE", "a ", "é", "a\nb", "~", "[a", "0x1",
    ] {
        assert!(!is_plain_string(text), "{text}");
    }
}

#[test]
fn plain_text_is_told_from_numbers_words_and_dates() {
    let is_string =
        |text: &str| tree(&format!("a: {text}\n")).get("a").and_then(Node::scalar).unwrap().is_string();
    for text in
        ["a:b", "1.10.0", "100m", "1Mi", "10.0.0.1", "é", "a b", "nginx:1.29", "1-b", "0xg", "08:x", "--"]
    {
        assert!(is_string(text), "{text}");
    }
    for text in [
        "1",
        "-1",
        "+1.5",
        ".5",
        "1e3",
        "0x1f",
        "0o7",
        "0644",
        "1_000",
        "y",
        "No",
        "2001-01-01",
        "12:30",
        "-.inf",
        "~",
    ] {
        assert!(!is_string(text), "{text}");
    }
}

#[test]
fn values_are_the_same_in_any_spelling() {
    let is_same = |a: &str, b: &str| same(&tree(&format!("a: {a}\n")), &tree(&format!("a: {b}\n")));
    for (a, b) in [
        ("0644", "420"),
        ("0x1F", "31"),
        ("0o17", "15"),
        ("1_000", "1000"),
        ("1.50", "1.5"),
        ("1e3", "1000.0"),
        ("1000", "1e3"),
        ("-0x10", "-16"),
        ("~", "null"),
        ("", "~"),
        ("True", "true"),
        ("nginx:1.29", "'nginx:1.29'"),
        ("1.10.0", "\"1.10.0\""),
    ] {
        assert!(is_same(a, b), "{a} {b}");
    }
    for (a, b) in [
        ("0644", "644"),
        ("1", "'1'"),
        ("~", "''"),
        ("true", "'true'"),
        ("yes", "'yes'"),
        ("yes", "true"),
        ("1", "2"),
        ("1.5", "1.50001"),
        ("2001-01-01", "'2001-01-01'"),
        ("12:30", "750"),
        ("08", "8.5"),
        ("null", "false"),
        ("9007199254740993.0", "9007199254740992"),
    ] {
        assert!(!is_same(a, b), "{a} {b}");
    }
}

#[test]
fn any_string_survives_quoting() {
    let texts = [
        "",
        "a",
        "it's",
        "\"",
        "\\",
        "a\tb",
        "a\nb",
        " a ",
        "# a",
        "a: b",
        "\u{85}\u{2028}\u{feff}\u{0}",
        "é☃𝄞",
        "%",
        "- ",
    ];
    for text in texts {
        for quoted in [single_quoted(text), double_quoted(text)] {
            assert_eq!(tree(&format!("k: {quoted}\n")).get("k").and_then(Node::text), Some(text), "{quoted}");
        }
        assert_eq!(serde_json::from_str::<String>(&double_quoted(text)).unwrap(), text);
    }
}

#[test]
fn any_tree_can_be_written() {
    for text in [
        "a: {b: [c, {d: e, f: []}, [g, [h]], {}, ~, '']}\n",
        "a: \"x\\ny\\n\\n\\n\"\nb: \"x\\n  y \"\nc: \" x\\ny\"\nd: \"\\n\"\ne: \"x\\r\\ny\"\n",
        "- !!str 1\n- !l {a: b}\n- !!seq [a]\n- !l\n  - a\n- !<tag:e.org:x> |\n  b\n  c\n",
        "1: a\ntrue: b\n~: c\n\"x: y\": d\n!!str 2: e\n",
        "a: b\n  c\n\n  d\nn: 0x1F\nf: 1_000\no: 0644\nd: 2001-01-01\n",
    ] {
        let root = tree(text);
        match document(&root) {
            Ok(written) => assert!(same(&tree(&written), &root), "{text}\n{written}"),
            Err(error) => panic!("{text}: {error}"),
        }
    }
    for text in ["? {a: b}\n: c\n", "a: &x b\nc: *x\n"] {
        assert!(document(&tree(text)).is_err(), "{text}");
    }
}

#[test]
fn trees_differ_where_values_do() {
    let base = tree("a: [1, '2', x]\nb: &n {c: d}\ne: *n\n");
    assert!(same(&base, &tree("a:\n- 1\n- \"2\"\n- 'x' # c\n'b': &m\n  c: |-\n    d\ne: *m\n")));
    let aliases = |which: &str| tree(&format!("a: &x 1\nb: &y 1\nc: *{which}\n"));
    assert!(same(&aliases("x"), &aliases("x")) && !same(&aliases("x"), &aliases("y")));
    assert!(same(&tree("<<: {a: b}\n"), &tree("!!merge <<: {a: b}\n")), "as Go's YAML library writes it");
    for other in [
        "a: ['1', '2', x]\nb: &n {c: d}\ne: *n\n",
        "a: [1, 2, x]\nb: &n {c: d}\ne: *n\n",
        "a: [1, '2', x]\ne: {c: d}\nb: {c: d}\n",
        "a: [1, '2', x]\nb: &n {c: d}\ne: {c: d}\n",
        "a: [1, '2', !t x]\nb: &n {c: d}\ne: *n\n",
        "a: [1, '2', x]\nb: &n {c: d, f: g}\ne: *n\n",
        "a: [1, '2']\nb: &n {c: d}\ne: *n\n",
        "a: &n [1, '2', x]\nb: &o {c: d}\ne: *n\n",
    ] {
        assert!(!same(&base, &tree(other)), "{other}");
    }
}

#[test]
fn nothing_and_null_are_no_document() {
    for text in ["", "# c\n", "~", "null # c\n", "---\n"] {
        assert!(parse(text).unwrap().is_none(), "{text}");
    }
    assert!(matches!(parse("a\n---\nb\n"), Err(ParseError::SeveralDocuments { line: 2 })));
    assert!(parse("!!str\n").unwrap().is_some());
}

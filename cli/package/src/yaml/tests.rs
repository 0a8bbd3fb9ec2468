//! Tests of parsing, comparing, serializing and patching.

use super::{Node, Yaml, document, patch, same};

fn yaml(text: &str) -> Yaml {
    Yaml::parse(text).unwrap().unwrap()
}

fn tree(text: &str) -> Node {
    yaml(text).root
}

#[test]
fn spellings_of_one_value_are_equal() {
    let is_same = |a: &str, b: &str| same(&tree(&format!("a: {a}\n")), &tree(&format!("a: {b}\n")));
    let equal = "0644 420, 0x1F 31, 0o17 15, 1_000 1000, 1.50 1.5, 1e3 1000.0, 1000 1e3, -0x10 -16, ~ null, True true,  ~";
    let unequal = "0644 644, ~ '', yes true, 1 2, 1.5 1.50001, 12:30 750, 08 8.5, null false, \
                   9007199254740993.0 9007199254740992";
    for (pairs, expected) in [(equal, true), (unequal, false)] {
        for pair in pairs.split(", ") {
            let (a, b) = pair.split_once(' ').unwrap();
            assert_eq!(is_same(a, b), expected, "{pair}");
        }
    }
    // Strings with and without quotes.
    for text in "a:b 1.10.0 100m 1Mi 10.0.0.1 é nginx:1.29 1-b 0xg 08:x --".split(' ') {
        assert!(is_same(text, &format!("'{text}'")), "{text}");
    }
    for text in "1 -1 +1.5 .5 1e3 0x1f 0o7 0644 1_000 y No true 2001-01-01 12:30 -.inf ~ <<".split(' ') {
        assert!(!is_same(text, &format!("'{text}'")), "{text}");
    }
}

#[test]
fn trees_with_different_values_differ() {
    let base = tree("a: [1, '2', x]\nb: &n {c: d}\ne: *n\n");
    for same_values in [
        "a:\n- 1\n- \"2\"\n- 'x' # c\n'b': &m\n  c: |-\n    d\ne: *m\n",
        "a: [1, '2', x]\nb: {c: d}\ne: {c: d}\n",
    ] {
        assert!(same(&base, &tree(same_values)), "{same_values}");
    }
    assert!(same(&tree("<<: {a: b}\n"), &tree("!!merge <<: {a: b}\n")), "Go's YAML library writes this tag");
    for other in [
        "a: [1, 2, x]\nb: {c: d}\ne: {c: d}\n",
        "a: [1, '2', x]\ne: {c: d}\nb: {c: d}\n",
        "a: [1, '2', !t x]\nb: {c: d}\ne: {c: d}\n",
        "a: [1, '2', x]\nb: {c: d, f: g}\ne: {c: d}\n",
        "a: [1, '2']\nb: {c: d}\ne: {c: d}\n",
    ] {
        assert!(!same(&base, &tree(other)), "{other}");
    }
}

#[test]
fn every_value_can_be_serialized() {
    let texts = "|a|it's|\"|\\|a\tb|a\nb| a |# a|a: b|\u{85}\u{2028}\u{feff}\u{0}|é☃𝄞|%|- |1|yes|12:30|x\ny\n\n\n|\n\nx\n  y \
                 | x\ny|\n|x\r\ny|?|a:|~|0644";
    for text in texts.split('|') {
        let entry = (Node::string(text), Node::string(text));
        let nested = (Node::string("nested"), Node::mapping(vec![entry.clone()]));
        let root = document(&Node::mapping(vec![entry, nested])).unwrap().root;
        for mapping in [&root, root.get("nested").unwrap()] {
            let (key, value) = &mapping.entries().unwrap()[0];
            assert_eq!((key.text(), value.text()), (Some(text), Some(text)));
        }
    }
    for text in [
        "a: {b: [c, {d: e, f: []}, [g, [h]], {}, ~, '']}\n",
        "- !!str 1\n- !l {a: b}\n- !!seq [a]\n- !l\n  - a\n- !<tag:e.org:x> |\n  b\n  c\n",
        "1: a\ntrue: b\n~: c\n\"x: y\": d\n!!str 2: e\n",
        "a: b\n  c\n\n  d\nn: 0x1F\nf: 1_000\no: 0644\nd: 2001-01-01\n",
    ] {
        let root = tree(text);
        assert!(document(&root).is_some_and(|written| same(&written.root, &root)), "{text}");
    }
    assert!(document(&tree("? {a: b}\n: c\n")).is_none());
    assert_eq!(document(&tree("a: &x [{b: c}]\nd: *x\n")).unwrap().text, "a:\n- b: c\nd:\n- b: c\n");
}

#[test]
fn a_patch_keeps_anchors_and_aliases() {
    for (old, new, patched) in [
        ("a: &x 1 # c\nb: *x\nc: 2\n", "a: 1\nb: 1\nc: 3\n", Some("a: &x 1 # c\nb: *x\nc: 3\n")),
        ("a: &x 1 # c\nb: *x\n", "a: 2\nb: 2\n", Some("a: &x 2 # c\nb: 2\n")),
        ("a: &x {b: 1}\nc: *x # d\n", "a: {b: 1}\nc: {b: 2}\n", Some("a: &x {b: 1}\nc: {b: 2}\n")),
        // Replacing the value would remove the anchor that the alias needs.
        ("a: &x [1]\nb: *x\n", "a: [1, 2]\nb: [1]\n", None),
    ] {
        let found = patch(&yaml(old), new, &tree(new)).map(|yaml| yaml.text);
        assert_eq!(found.as_deref(), patched, "{old}");
    }
}

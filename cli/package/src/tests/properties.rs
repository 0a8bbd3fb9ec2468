//! Property tests with generated YAML, with and without typing errors.

use proptest::prelude::*;
use proptest::sample::select;

use super::{documents as items, sent_items, tree, try_package};
use crate::annotations::{LEGACY_INDEX, PATH, bare, get};
use crate::write::rebuilt;
use crate::yaml::{Node, Yaml, same};
use crate::{Package, split};

/// Metadata whose text stays the same when another value changes.
const EXACT: &[&str] = &[
    "",
    "metadata:\n  name: a\n",
    "metadata: # kpt-merge: a/b\n  name: a\n  # foot\n",
    "metadata:\n    name: a\n    labels:\n        x: y\n",
    "metadata:\n  name: a\n  annotations:\n    foo: bar # c\n    # tail\n",
    "metadata:\n\n  # head\n  annotations: # why\n    # head\n    a/b: |\n      block\n\n  name: a\n",
    "metadata: {name: a}\n",
    "metadata: { name: \"a\" }  # c\n",
    "metadata: { name: 'a' , # c }\n  annotations: { b: \"c\" # d\n  }}\n",
    "metadata:\n  name: \"a\" # b\n  # c\n",
    "metadata: {\n  name: a,\n  annotations: {x: y,},\n}\n",
    "metadata: &m\n  name: &n a\n  annotations: &o\n    x: *n\n",
    "metadata:\n  name: \"a\"\n  finalizers:\n  - x\n  -\n",
    "metadata:\n  name: |-\n    a\n  # after\n\n",
    "metadata:\n  annotations:\n    x: 'ü'\n  name: a\n  creationTimestamp:\n",
    "\"metadata\":\n  \"name\": >\n    a\n   \n\n",
];

/// Metadata whose text does not stay: old annotations and empty mappings are removed.
const INEXACT: &[&str] = &[
    "metadata: {}\n",
    "metadata:\n",
    "metadata: ~ # none\n",
    "metadata: null\n",
    "metadata:\n  name: a\n  annotations: {}\n",
    "metadata:\n  name: a\n  annotations:\n",
    "metadata:\n  annotations: null # none\n  name: a\n",
    "? metadata\n: name: a\n",
    "metadata:\n  ? name\n  : a\n",
    "x-base: &x {name: a}\nmetadata: *x\n",
    "x-base: &x {b: c}\nmetadata:\n  annotations: *x\n",
    "metadata:\n  annotations:\n    internal.config.kubernetes.io/path: 'old.yaml'\n    a: b\n",
    "metadata: {annotations: {config.kubernetes.io/index: '9'}}\n",
];

/// Other entries; `N` is replaced so that keys are unique.
const FRAGMENTS: &[&str] = &[
    "# comment\n",
    "\n",
    "    # deep comment\n",
    "specN:\n  a: 1\n\n  b: {c: d}   # e\n",
    "dataN:\n  s: |\n    x\n     y\n\n    z\n",
    "keepN:\n  s: |2+\n      x\n\n\n",
    "spacesN: |\n  a\n    \n  b\n   \n",
    "foldN: >-\n  a\n  b\n\n  c\n",
    "quotedN: \"a\n  b\\\n  c  \n\n  d\"\n",
    "singleN: 'it''s\n  # no comment'\n",
    "plainN: a\n  b\n\n  c#d # e\n",
    "baseN: &b {x: 1}\nuseN: *b\nmergeN:\n  <<: *b\n",
    "bracesN: { a: \"b\" , # c\n  d: { } }\n",
    "flowN: [a,\n  b, {c: d},\n  ]\n",
    "listN:\n- a\n- b: c\n  d: e\n-\n  - x\n",
    "wideN:\n  - a # b\n  # c\n  - - b\n    - c\n",
    "üN: \"é→\" # ☃\n",
    "tabN:\t\"x\"\t# c\n",
    "'q N': 1\n\"a N\": -b\n",
    "emptyN:\nnoneN: ~\n",
    "tagN: !!str 1\nlocalN: !l x\n",
    "urlN: http://a/b#c\n",
    "jsonN: {\"a\": [1, 2.50, true, null]}\n",
];

fn fragment() -> impl Strategy<Value = String> {
    (select(FRAGMENTS), 0..1000_u32).prop_map(|(fragment, n)| fragment.replace('N', &n.to_string()))
}

#[derive(Debug, Clone)]
struct Generated {
    text: String,
    documents: usize,
    exact: bool,
}

fn document() -> impl Strategy<Value = (String, bool)> {
    let metadata = prop_oneof![
        3 => select(EXACT).prop_map(|metadata| (metadata, true)),
        1 => select(INEXACT).prop_map(|metadata| (metadata, false)),
    ];
    let fragments = || prop::collection::vec(fragment(), 0..4).prop_map(|all| all.concat());
    (fragments(), fragments(), metadata, fragments()).prop_map(|(head, middle, (metadata, exact), tail)| {
        (format!("{head}apiVersion: v1\n{middle}kind: A\n{metadata}{tail}"), exact)
    })
}

fn file() -> impl Strategy<Value = Generated> {
    let start = select(&["", "---\n", "# c\n---\n", "%YAML 1.2\n---\n", "\u{feff}", "--- # c\n\n\n"][..]);
    let between = select(
        &[
            "---\n",
            "--- # c\n",
            "---\n---\n",
            "...\n---\n",
            "---\n# alone\n---\n",
            "...\n%YAML 1.2\n# x\n---\n",
        ][..],
    );
    let end = select(&["", "", "---\n", "...\n", "---\n# alone\n"][..]);
    let documents = prop::collection::vec((between, document()), 1..4);
    (start, documents, end, any::<bool>(), any::<bool>()).prop_map(|(start, documents, end, windows, cut)| {
        let mut text = start.to_owned();
        for (at, (between, (document, _))) in documents.iter().enumerate() {
            text.push_str(if at == 0 { "" } else { between });
            text.push_str(document);
        }
        text.push_str(end);
        let length_without_newlines = text.trim_end_matches('\n').len();
        if cut && end.is_empty() && !text.ends_with("\n\n") {
            text.truncate(length_without_newlines);
        }
        if windows {
            text = text.replace('\n', "\r\n");
        }
        Generated {
            text,
            documents: documents.len(),
            exact: !cut && documents.iter().all(|(_, (_, exact))| *exact),
        }
    })
}

/// A text with a few random edits: characters are removed, and YAML syntax is inserted.
fn mutated(text: impl Strategy<Value = String>) -> impl Strategy<Value = String> {
    let noise: Vec<&str> = "|\n| |  |\t|-|- |:|: |#| #|>|{|}|[|]|,|'|\"".split('|').chain(["|"]).collect();
    let more: Vec<&str> = "&a |*a|!|!!x |? |---\n|...\n|%|\r|\u{feff}|ü|\0|<<|@".split('|').collect();
    let edit = (any::<prop::sample::Index>(), 0..4_usize, prop_oneof![3 => select(noise), 1 => select(more)]);
    (text, prop::collection::vec(edit, 1..5)).prop_map(|(text, edits)| {
        let mut characters: Vec<char> = text.chars().collect();
        for (at, removed, added) in edits {
            let at = at.index(characters.len() + 1);
            let end = (at + removed).min(characters.len());
            characters.splice(at..end, added.chars());
        }
        characters.into_iter().collect()
    })
}

/// Checks the properties that every readable file has.
fn check(package: &Package) -> Result<(), TestCaseError> {
    let file = &package.files[0];
    let sent = sent_items(package);
    prop_assert_eq!(sent.len(), file.documents.len());
    for (at, (item, document)) in sent.iter().zip(&file.documents).enumerate() {
        let document = file.text[document.range.clone()].replace("\r\n", "\n");
        // If the file ends in a block scalar without a newline, this test's parser adds a newline
        // to the value.
        let whole = Yaml::valid(document.as_str());
        let is_same = |document: &Node| same(&bare(item), &bare(document));
        let ends_open = !document.ends_with('\n') && document.contains(['|', '>']);
        prop_assert!(ends_open || whole.is_none_or(|document| is_same(&document.root)), "document {}", at);
        prop_assert_eq!(get(item, PATH), Some("a.yaml"));
        prop_assert_eq!(get(item, LEGACY_INDEX).and_then(|index| index.parse().ok()), Some(at));
    }
    let items = items(package);
    prop_assert_eq!(items.len(), file.documents.len());
    prop_assert_eq!(&rebuilt(file, &items), &file.text);
    Ok(())
}

/// Each case has many documents, so half of the usual cases are enough.
fn config() -> ProptestConfig {
    let usual = ProptestConfig::default();
    ProptestConfig { cases: usual.cases.div_ceil(2), failure_persistence: None, ..usual }
}

proptest! {
    #![proptest_config(config())]

    /// Any file in a usual layout survives the round trip unchanged, except for the value that the
    /// function changed.
    #[test]
    fn files_survive_the_round_trip(generated in file()) {
        let package = try_package(&generated.text).map_err(|error| TestCaseError::fail(format!("{error:?}")))?;
        prop_assert_eq!(package.files[0].documents.len(), generated.documents);
        check(&package)?;
        if generated.exact {
            let mut answer = items(&package);
            for text in answer.values_mut() {
                *text = text.replace("kind: A\n", "kind: B\n");
            }
            prop_assert_eq!(rebuilt(&package.files[0], &answer), generated.text.replace("kind: A", "kind: B"));
        }
    }

    /// A damaged file is either refused or survives the round trip; nothing panics.
    #[test]
    fn damaged_files_are_refused_or_survive(text in mutated(file().prop_map(|file| file.text))) {
        let _ = crate::FunctionConfig::parse(&text);
        if let Ok(package) = try_package(&text) {
            check(&package)?;
        }
    }

    /// A written file has the values that the function returned, even if parts of the old text
    /// stay.
    #[test]
    fn files_have_the_values_that_the_function_returned(old in file(), new in file()) {
        let (old, new) = (try_package(&old.text).unwrap(), try_package(&new.text).unwrap());
        let answer = items(&new);
        let text = rebuilt(&old.files[0], &answer);
        let written = try_package(&text).map_err(|error| TestCaseError::fail(format!("{error:?} in {text}")))?;
        let written = items(&written);
        prop_assert_eq!(written.len(), answer.len());
        for (written, item) in written.values().zip(answer.values()) {
            prop_assert!(same(&bare(&tree(written)), &bare(&tree(item))), "{}\n{}", text, item);
        }
    }

    /// A function may return any bytes.
    #[test]
    fn damaged_outputs_never_panic(
        list in mutated(file().prop_map(|file| try_package(&file.text).unwrap().to_resource_list(None)))
    ) {
        if let Ok(output) = split(list.as_bytes()) {
            for text in output.files.values().flat_map(|file| file.values()) {
                prop_assert!(!text.is_empty());
                tree(text);
            }
        }
    }
}

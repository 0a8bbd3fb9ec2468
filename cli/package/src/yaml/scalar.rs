//! Scalars, and the comparison of their values.

use serde_json::Value;

/// Style of a scalar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// Without quotes: the text decides whether it is a string, a number, a boolean or null.
    Plain,
    /// In quotes, with the quote character.
    Quoted(char),
    /// A literal or folded block.
    Block,
}

/// The text of a scalar. It is not resolved to a number or a boolean.
#[derive(Debug, Clone)]
pub(crate) struct Scalar {
    /// The content, after folding and unescaping.
    pub(crate) text: String,
    pub(crate) style: Style,
}

/// Words with a special meaning in YAML 1.1, such as booleans and the merge key. In YAML 1.2, they
/// are strings.
const YAML_1_1_WORDS: [&str; 8] = ["yes", "no", "on", "off", "y", "n", "<<", "="];

impl Scalar {
    /// Returns whether this is an absent value, `~` or `null`.
    pub(crate) fn is_null(&self) -> bool {
        self.style == Style::Plain && matches!(self.text.as_str(), "" | "~" | "null" | "Null" | "NULL")
    }

    /// Returns whether every YAML version reads this scalar as a string. False means "maybe not".
    pub(crate) fn is_string(&self) -> bool {
        self.style != Style::Plain || self.text.contains('\n') || !may_be_special(&self.text)
    }

    /// Returns whether both scalars have the same value. Needless quotes and the spelling of a
    /// number do not matter: libraries that use JSON's types write `0644` as 420.
    pub(crate) fn same(&self, other: &Self) -> bool {
        if self.text == other.text {
            return self.style == other.style || self.is_string() == other.is_string();
        }
        let is_plain = self.style == Style::Plain && other.style == Style::Plain;
        is_plain && same_value(special(&self.text), special(&other.text))
    }
}

/// Returns whether some YAML version reads plain text as null, a boolean, a number, a date or a
/// merge key. serde-saphyr's rule for quotes is too broad: it also quotes `1.10.0`, for example.
fn may_be_special(text: &str) -> bool {
    let is_date = |(year, _): (&str, &str)| year.len() == 4 && year.bytes().all(|byte| byte.is_ascii_digit());
    // YAML 1.1 reads 12:30:45 as a number in base 60.
    let is_sexagesimal = text.contains(':')
        && text.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b':' | b'.' | b'_' | b'+' | b'-'));
    YAML_1_1_WORDS.contains(&text.to_ascii_lowercase().as_str())
        || text.split_once('-').is_some_and(is_date)
        || is_sexagesimal
        || matches!(text.trim_start_matches(['+', '-']).to_ascii_lowercase().as_str(), ".inf" | ".nan")
        || special(text).is_some()
}

/// Returns the value of a plain scalar; `None` if it is a string. The rules are those of Go's YAML
/// library, and so of Kubernetes: YAML 1.2 with the octal numbers of YAML 1.1.
fn special(text: &str) -> Option<Value> {
    let options = serde_saphyr::options! {
        legacy_octal_numbers: true,
        strict_booleans: true,
        with_snippet: false
    };
    let value: Value = serde_saphyr::from_str_with_options(text, options).ok()?;
    (value.is_null() || value.is_boolean() || value.is_number()).then_some(value)
}

/// Compares two values. JSON does not distinguish 1000.0 from 1000.
fn same_value(a: Option<Value>, b: Option<Value>) -> bool {
    // From 2^53 on, one float represents several integers.
    let float = |value: &Value| value.as_f64().filter(|float| float.abs() < 9_007_199_254_740_992.0);
    let Some((a, b)) = a.zip(b) else { return false };
    a == b || float(&a).is_some_and(|a| Some(a) == float(&b))
}

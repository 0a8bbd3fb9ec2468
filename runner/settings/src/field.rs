//! Reads JSON field by field, so that an error names the field: serde's own does not where the text is gone.

use serde::de::DeserializeOwned;
use serde_json::Value;

/// Longest part of an error text that is the user's, in bytes: it ends up in a status, and in logs.
const MAX_QUOTED: usize = 200;

/// What is wrong with one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FieldError {
    /// Such as `spec.podExecutor.tags[1]`.
    pub(crate) path: String,
    pub(crate) reason: String,
}

/// A field and its value. `null` is as if the field was not there.
#[derive(Debug, Clone)]
pub(crate) struct Field<'a> {
    path: String,
    value: Option<&'a Value>,
}

impl<'a> Field<'a> {
    pub(crate) fn root(value: &'a Value) -> Self {
        Self { path: String::new(), value: Some(value) }
    }

    pub(crate) fn wrong(&self, reason: impl Into<String>) -> FieldError {
        FieldError { path: self.path.clone(), reason: reason.into() }
    }

    /// Says that of an item of this list.
    pub(crate) fn wrong_item(&self, index: usize, reason: String) -> FieldError {
        FieldError { path: format!("{}[{index}]", self.path), reason }
    }

    fn expected(&self, value: &Value, what: &str) -> FieldError {
        self.wrong(format!("{} is no {what}", quoted_value(value)))
    }

    /// The field `key` of this one, which must be an object or absent.
    pub(crate) fn get(&self, key: &str) -> Result<Field<'a>, FieldError> {
        let value = match self.value {
            None => None,
            Some(Value::Object(map)) => map.get(key).filter(|value| !value.is_null()),
            Some(other) => return Err(self.expected(other, "object")),
        };
        let path = match (self.path.is_empty(), key.contains(['.', '/'])) {
            (true, _) => key.to_owned(),
            (false, false) => format!("{}.{key}", self.path),
            (false, true) => format!("{}[{key}]", self.path),
        };
        Ok(Self { path, value })
    }

    /// This field, unless it is absent; an error if it is no object.
    pub(crate) fn object(self) -> Result<Option<Field<'a>>, FieldError> {
        match self.value {
            None => Ok(None),
            Some(Value::Object(_)) => Ok(Some(self)),
            Some(other) => Err(self.expected(other, "object")),
        }
    }

    /// The items of a list; none if it is absent.
    pub(crate) fn items(&self) -> Result<Vec<Field<'a>>, FieldError> {
        let items = match self.value {
            None => return Ok(Vec::new()),
            Some(Value::Array(items)) => items,
            Some(other) => return Err(self.expected(other, "list")),
        };
        let item = |(index, value)| Field { path: format!("{}[{index}]", self.path), value: Some(value) };
        Ok(items.iter().enumerate().map(item).collect())
    }

    pub(crate) fn text(&self) -> Result<Option<&'a str>, FieldError> {
        match self.value {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.expected(other, "text")),
        }
    }

    /// A list of at most `max` texts.
    pub(crate) fn texts(&self, max: usize) -> Result<Vec<&'a str>, FieldError> {
        if let Some(Value::Array(items)) = self.value
            && items.len() > max
        {
            return Err(self.wrong(format!("{} items are more than the {max} that are read", items.len())));
        }
        let text = |item: &Field<'a>| item.text()?.ok_or_else(|| item.wrong("is no text"));
        self.items()?.iter().map(text).collect()
    }

    /// A number of things. Zero is as if the field was not there.
    pub(crate) fn count(&self) -> Result<Option<u32>, FieldError> {
        let Some(value) = self.value else { return Ok(None) };
        let count = value.as_u64().and_then(|count| u32::try_from(count).ok());
        let wrong = || {
            format!(
                "{} is no number of things: write a whole number from 0 to {}; 0 means not set",
                quoted_value(value),
                u32::MAX
            )
        };
        count.map(|count| (count > 0).then_some(count)).ok_or_else(|| self.wrong(wrong()))
    }

    /// A value of one of Kubernetes' own types; `what` says which. Fields that it does not have are ignored.
    pub(crate) fn read<T: DeserializeOwned>(&self, what: &str) -> Result<Option<T>, FieldError> {
        let Some(value) = self.value else { return Ok(None) };
        let read = T::deserialize(value);
        read.map(Some).map_err(|error| self.wrong(format!("not {what}: {}", bounded(&error.to_string()))))
    }
}

/// `text` in quotes, cut to a bounded length.
pub(crate) fn quoted(text: &str) -> String {
    format!("{:?}", bounded(text))
}

fn quoted_value(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        Value::Null => "null".to_owned(),
        Value::Bool(_) | Value::Number(_) => bounded(&value.to_string()),
    }
}

/// `text`, cut to a bounded length.
pub(crate) fn bounded(text: &str) -> String {
    if text.len() <= MAX_QUOTED {
        return text.to_owned();
    }
    let mut end = MAX_QUOTED;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}...", &text[..end])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn error<T: std::fmt::Debug>(result: Result<T, FieldError>) -> String {
        let FieldError { path, reason } = result.unwrap_err();
        format!("{path}: {reason}")
    }

    #[test]
    fn errors_name_the_field() {
        let object = json!({"a": {"b": [1, "x", null], "c.d/e": true, "n": -3, "t": "lots"}, "z": null});
        let root = Field::root(&object);
        let a = root.get("a").unwrap();
        let b = a.get("b").unwrap();
        assert_eq!(error(b.texts(9)), "a.b[0]: 1 is no text");
        assert_eq!(error(b.texts(2)), "a.b: 3 items are more than the 2 that are read");
        assert_eq!(error(b.get("k")), "a.b: a list is no object");
        assert_eq!(error(a.get("c.d/e").unwrap().object()), "a[c.d/e]: true is no object");
        assert!(error(a.get("n").unwrap().count()).starts_with("a.n: -3 is no number of things"));
        assert!(error(a.get("t").unwrap().count()).starts_with("a.t: \"lots\" is no number of things"));
        assert_eq!(root.get("z").unwrap().text(), Ok(None), "null");
        assert_eq!(a.get("absent").unwrap().count(), Ok(None));
    }

    #[test]
    fn long_texts_are_cut() {
        let long = "ä".repeat(150);
        assert_eq!(bounded(&long), format!("{}...", "ä".repeat(100)));
        assert_eq!(bounded(&long[..200]), long[..200]);
        assert_eq!(bounded(&format!("x{long}")).len(), 199 + 3);
    }
}

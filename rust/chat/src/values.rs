//! JSON values as templates see them.

use minijinja::Value;
use serde_json::{Map, Value as Json};

/// A JSON value as templates see it, keys in their own order.
pub(crate) fn from_json(value: &Json) -> Value {
    match value {
        Json::Null => Value::from(()),
        Json::Bool(b) => Value::from(*b),
        Json::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(n), _) => Value::from(n),
            (None, Some(n)) => Value::from(n),
            (None, None) => Value::from(n.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => items.iter().map(from_json).collect(),
        Json::Object(map) => from_object(map),
    }
}

/// A JSON object as templates see it.
pub(crate) fn from_object(map: &Map<String, Json>) -> Value {
    Value::from_pairs(
        map.iter()
            .map(|(key, value)| (key.as_str(), from_json(value))),
    )
}

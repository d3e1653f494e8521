//! What a template wants, found out by rendering small conversations with it.
//!
//! A template is a program: reading its source tells less than running it. Owns the conversations that are tried and
//! the conclusions. Does not know how templates are run.

use limits::ApiError;
use serde_json::{Map, Value, json};

use crate::ContentFormat;

const TEXT: &str = "PROBE7TEXT";
const NAME: &str = "PROBE7NAME";

/// What was found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wants {
    /// The form of contents.
    pub(crate) format: ContentFormat,
    /// Whether there is a role `developer`.
    pub(crate) developer: bool,
    /// Whether a message's name reaches the prompt.
    pub(crate) name: bool,
}

impl Default for Wants {
    fn default() -> Self {
        Wants {
            format: ContentFormat::String,
            developer: false,
            name: false,
        }
    }
}

/// Tries the template `source`; `run` renders messages with it.
pub(crate) fn find(
    source: &str,
    run: impl Fn(&[Map<String, Value>]) -> Result<String, ApiError>,
) -> Wants {
    let try_user = |mut message: Value| {
        let mut map = Map::new();
        map.insert("role".to_owned(), "user".into());
        map.append(message.as_object_mut().unwrap_or(&mut Map::new()));
        run(&[map]).ok()
    };
    let as_string = try_user(json!({"content": TEXT}));
    let as_parts = try_user(json!({"content": [{"type": "text", "text": TEXT}]}));
    // A template that only knows strings prints the list itself, or the part's keys.
    let takes_parts = as_parts.is_some_and(|text| text.contains(TEXT) && !is_dump(&text));
    let takes_string = as_string.is_some_and(|text| text.contains(TEXT));
    let format = match (takes_string, takes_parts) {
        (true, true) => ContentFormat::Either,
        (false, true) => ContentFormat::Parts,
        (_, false) => ContentFormat::String,
    };
    let content = if format == ContentFormat::Parts {
        json!([{"type": "text", "text": TEXT}])
    } else {
        json!(TEXT)
    };
    let named = try_user(json!({"content": content, "name": NAME}));
    Wants {
        format,
        // Templates that print any role as it comes have no such role either: the model never saw it.
        developer: source.contains("developer"),
        name: named.is_some_and(|text| text.contains(NAME)),
    }
}

/// Whether the part was printed as data instead of as text.
fn is_dump(text: &str) -> bool {
    ["'text'", "\"text\"", "\\\"text\\\""]
        .iter()
        .any(|key| text.contains(key))
}

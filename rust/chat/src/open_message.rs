//! Leaving the last message of a conversation open, so that the model continues it.
//!
//! Owns the mark that is put behind the message's text and where the prompt is cut. Does not know templates.

use limits::{ApiError, ErrorKind as ApiKind};
use serde_json::{Map, Value as Json};

/// Python's marker for the place where an open message ends; the blank tells whether the template trims.
const CONTINUE_TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// Marks the end of the last message's text; returns that text.
pub(crate) fn open_last(messages: &mut [Map<String, Json>]) -> Result<String, ApiError> {
    let nothing = || {
        ApiError::invalid_value(
            "continue_final_message",
            "the last message has no text that could be continued",
        )
    };
    let content = messages
        .last_mut()
        .and_then(|message| message.get_mut("content"))
        .ok_or_else(nothing)?;
    let text = match content {
        Json::Array(parts) => parts
            .last_mut()
            .and_then(|part| part.get_mut("text"))
            .ok_or_else(nothing)?,
        content => content,
    };
    let Json::String(text) = text else {
        return Err(nothing());
    };
    let last = text.clone();
    text.push_str(CONTINUE_TAG);
    Ok(last)
}

/// The prompt up to the end of the last message's text `last`.
pub(crate) fn cut_at_tag(mut text: String, last: &str) -> Result<String, ApiError> {
    let found = text
        .rfind(CONTINUE_TAG.trim_end())
        .filter(|_| text.contains(last.trim()));
    let Some(at) = found else {
        return Err(ApiError::new(
            ApiKind::Template,
            "The last message cannot be continued: the chat template leaves its text out.",
        )
        .with_param("continue_final_message"));
    };
    let keeps_blanks = text[at..].starts_with(CONTINUE_TAG);
    text.truncate(at);
    if !keeps_blanks {
        text.truncate(text.trim_end().len());
    }
    Ok(text)
}

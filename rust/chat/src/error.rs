//! Why a template cannot be used, and how a failed rendering is told to a client.

use std::error::Error as _;

use limits::{ApiError, ErrorKind as ApiKind};
use minijinja::{Error, ErrorKind};

use crate::functions::Raised;

/// Longest text of a template's own that a message repeats, in characters.
const MAX_MESSAGE_CHARS: usize = 512;

/// A template that cannot be compiled.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The template's source is wrong.
    #[error("the chat template cannot be compiled: {0}")]
    Syntax(String),
    /// The template is larger than the cap.
    #[error("the chat template has {bytes} bytes, above the limit of {limit}")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The cap.
        limit: usize,
    },
}

impl TemplateError {
    pub(crate) fn syntax(error: &Error) -> Self {
        TemplateError::Syntax(describe(error))
    }
}

fn cut(text: &str) -> String {
    text.chars().take(MAX_MESSAGE_CHARS).collect()
}

/// The reason and the line, without the template's source.
fn describe(error: &Error) -> String {
    let reason = error
        .detail()
        .map_or_else(|| error.kind().to_string(), str::to_owned);
    match error.line() {
        Some(line) => format!("{} (line {line})", cut(&reason)),
        None => cut(&reason),
    }
}

/// The error of a run that passed a cap.
pub(crate) fn limit_exceeded(what: &str, flag: &'static str) -> ApiError {
    ApiError::new(
        ApiKind::Template,
        format!("The chat template {what} ({flag})."),
    )
    .with_code("template_limit_exceeded")
    .with_flag(flag)
    .with_param("messages")
}

/// A failed rendering as the client sees it.
pub(crate) fn api_error(error: &Error) -> ApiError {
    let mut innermost = error;
    let mut source = error.source();
    while let Some(inner) = source {
        if let Some(Raised(message)) = inner.downcast_ref() {
            return ApiError::new(ApiKind::Template, cut(message)).with_param("messages");
        }
        if let Some(inner) = inner.downcast_ref::<Error>() {
            innermost = inner;
        }
        source = inner.source();
    }
    if [error.kind(), innermost.kind()].contains(&ErrorKind::OutOfFuel) {
        return limit_exceeded("took more instructions than are allowed", "--template-fuel");
    }
    ApiError::new(
        ApiKind::Template,
        format!("The chat template failed: {}.", describe(innermost)),
    )
    .with_param("messages")
}

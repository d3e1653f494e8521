//! The one error value that crosses crate borders and becomes an HTTP reply or a stream's last event.
//!
//! Owns the message texts of http-surface.md section 0, so that every field says the same thing in the
//! same words. Does not know HTTP, JSON or which release supports what.

use std::fmt;

use crate::ErrorKind;

/// Characters of a client's string that a message may repeat.
const MAX_QUOTED_CHARS: usize = 64;

/// A number or text reported in `error.limit` or `error.value`.
#[derive(Clone, Debug, PartialEq)]
pub enum ErrorValue {
    /// An integer; i128 holds every JSON integer a field can be given, i64 and u64 alike.
    Int(i128),
    /// A finite number with a fraction.
    Float(f64),
    /// Anything that is no finite number, as the client wrote it (`1e400`), already cut.
    Text(String),
}

impl fmt::Display for ErrorValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ErrorValue::Int(value) => write!(f, "{value}"),
            ErrorValue::Float(value) => write!(f, "{value}"),
            ErrorValue::Text(value) => f.write_str(value),
        }
    }
}

macro_rules! error_value_from_int {
    ($($int:ty),*) => {$(
        impl From<$int> for ErrorValue {
            fn from(value: $int) -> Self {
                ErrorValue::Int(value as i128)
            }
        }
    )*};
}
error_value_from_int!(i32, i64, i128, u16, u32, u64, usize);

impl From<f64> for ErrorValue {
    fn from(value: f64) -> Self {
        if value.is_finite() {
            ErrorValue::Float(value)
        } else {
            ErrorValue::Text(value.to_string())
        }
    }
}

impl From<&str> for ErrorValue {
    fn from(value: &str) -> Self {
        ErrorValue::Text(quote(value))
    }
}

/// What a range bounds; decides the code of an out-of-range error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ranged {
    /// An integer's value.
    Integer,
    /// A number's value.
    Decimal,
    /// The number of items of a list.
    Array,
    /// The bytes or characters of a string.
    String,
    /// The number of entries of an object; has no lower bound.
    Object,
}

/// An error of the closed list, with what the client may be told about it.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    /// Decides status and type.
    pub kind: ErrorKind,
    /// One of `kind.codes()`.
    pub code: &'static str,
    /// One or two sentences for people; holds no prompt text, key, path or address.
    pub message: String,
    /// Path of the field (`messages[2].content`), `query.NAME` or `header.NAME`.
    pub param: Option<String>,
    /// The limit that was passed.
    pub limit: Option<ErrorValue>,
    /// The value that passed it.
    pub value: Option<ErrorValue>,
    /// The flag that moves the limit, with its dashes.
    pub flag: Option<&'static str>,
    /// When a retry may succeed; becomes `Retry-After` and `Retry-After-Ms`.
    pub retry_after_ms: Option<u64>,
}

impl ApiError {
    /// An error of `kind` with the kind's default code.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        ApiError {
            kind,
            code: kind.codes()[0],
            message: message.into(),
            param: None,
            limit: None,
            value: None,
            flag: None,
            retry_after_ms: None,
        }
    }

    /// The same error with another code of its kind; a code the kind lacks is a bug and keeps the default.
    pub fn with_code(mut self, code: &'static str) -> Self {
        debug_assert!(
            self.kind.codes().contains(&code),
            "{code} is no code of {:?}",
            self.kind
        );
        if self.kind.codes().contains(&code) {
            self.code = code;
        }
        self
    }

    /// The same error about the field at `param`.
    pub fn with_param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// The same error with the numbers of `error.limit` and `error.value`.
    pub fn with_numbers(
        mut self,
        limit: impl Into<ErrorValue>,
        value: impl Into<ErrorValue>,
    ) -> Self {
        self.limit = Some(limit.into());
        self.value = Some(value.into());
        self
    }

    /// The same error naming the flag that moves the limit.
    pub fn with_flag(mut self, flag: &'static str) -> Self {
        self.flag = Some(flag);
        self
    }

    /// The same error with a time after which a retry may succeed.
    pub fn with_retry_after_ms(mut self, retry_after_ms: u64) -> Self {
        self.retry_after_ms = Some(retry_after_ms);
        self
    }

    /// `field` exceeds `limit` (inclusive); `flag` is the flag that moves it.
    pub fn above(
        what: Ranged,
        field: &str,
        value: impl Into<ErrorValue>,
        limit: impl Into<ErrorValue>,
        flag: Option<&'static str>,
    ) -> Self {
        let code = match what {
            Ranged::Integer => "integer_above_max_value",
            Ranged::Decimal => "decimal_above_max_value",
            Ranged::Array => "array_above_max_length",
            Ranged::String => "string_above_max_length",
            Ranged::Object => "object_above_max_entries",
        };
        let (value, limit) = (value.into(), limit.into());
        let hint = flag.map(|flag| format!(" ({flag})")).unwrap_or_default();
        let message = format!(
            "Invalid '{}': {value} is above the maximum {limit}{hint}.",
            quote(field)
        );
        let error = Self::new(ErrorKind::OutOfRange, message)
            .with_code(code)
            .with_param(field);
        ApiError {
            limit: Some(limit),
            value: Some(value),
            flag,
            ..error
        }
    }

    /// `field` lies below `limit` (inclusive). Objects have no lower bound and count as lists.
    pub fn below(
        what: Ranged,
        field: &str,
        value: impl Into<ErrorValue>,
        limit: impl Into<ErrorValue>,
    ) -> Self {
        let code = match what {
            Ranged::Integer => "integer_below_min_value",
            Ranged::Decimal => "decimal_below_min_value",
            Ranged::Array | Ranged::Object => "array_below_min_length",
            Ranged::String => "string_below_min_length",
        };
        let (value, limit) = (value.into(), limit.into());
        let message = format!(
            "Invalid '{}': {value} is below the minimum {limit}.",
            quote(field)
        );
        let error = Self::new(ErrorKind::OutOfRange, message)
            .with_code(code)
            .with_param(field);
        ApiError {
            limit: Some(limit),
            value: Some(value),
            ..error
        }
    }

    /// The body is no JSON the server reads; `offset` is the byte where that shows.
    pub fn invalid_json(reason: &str, offset: usize) -> Self {
        Self::new(
            ErrorKind::InvalidJson,
            format!("Invalid JSON at byte {offset}: {reason}."),
        )
    }

    /// A required field is absent.
    pub fn missing(field: &str) -> Self {
        let message = format!("Missing required parameter: '{}'.", quote(field));
        Self::new(ErrorKind::MissingField, message).with_param(field)
    }

    /// A field of the wrong JSON type; both types with their article (`an integer`, `a string`).
    pub fn invalid_type(field: &str, expected: &str, got: &str) -> Self {
        let message = format!(
            "Invalid type for '{}': expected {expected}, got {got}.",
            quote(field)
        );
        Self::new(ErrorKind::InvalidType, message).with_param(field)
    }

    /// A field the route does not know, at `path`; `hint` is the name that was probably meant.
    pub fn unknown_field(path: &str, hint: Option<&str>) -> Self {
        let mut message = format!("Unknown parameter: '{}'.", quote(path));
        if let Some(hint) = hint {
            message.push_str(&format!(" Did you mean '{hint}'?"));
        }
        Self::new(ErrorKind::UnknownField, message).with_param(path)
    }

    /// A wrong word, key or pattern in `field`; `reason` is a clause without full stop.
    pub fn invalid_value(field: &str, reason: &str) -> Self {
        let message = format!("Invalid '{}': {reason}.", quote(field));
        Self::new(ErrorKind::InvalidValue, message).with_param(field)
    }

    /// The id at `param` (`prompt[7]`, `logit_bias.50257`) is not in 0..vocab_size.
    pub fn token_id_out_of_range(param: &str, id: i128, vocab_size: u32) -> Self {
        let last = i128::from(vocab_size) - 1;
        let message = format!(
            "Invalid '{}': token id {id} is not between 0 and {last}.",
            quote(param)
        );
        Self::new(ErrorKind::TokenIdOutOfRange, message)
            .with_param(param)
            .with_numbers(last, id)
    }

    /// `first` excludes `second`; `reason` is a sentence that says why.
    pub fn incompatible(first: &str, second: &str, reason: &str) -> Self {
        let message = format!("'{first}' cannot be combined with '{second}': {reason}.");
        Self::new(ErrorKind::IncompatibleFields, message).with_param(first)
    }

    /// A feature that this release, build or model lacks; `reason` is a whole sentence.
    pub fn not_supported(param: Option<&str>, reason: impl Into<String>) -> Self {
        ApiError {
            param: param.map(str::to_owned),
            ..Self::new(ErrorKind::NotSupported, reason)
        }
    }

    /// Prompt and requested tokens together exceed the context of `context` tokens.
    pub fn context_length(param: &str, context: u64, prompt: u64, requested: u64) -> Self {
        let sum = prompt.saturating_add(requested);
        let message = format!(
            "This model's context holds {context} tokens; the request asks for {sum} \
             ({prompt} in the prompt, {requested} for the output)."
        );
        Self::new(ErrorKind::ContextLength, message)
            .with_param(param)
            .with_numbers(context, sum)
    }

    /// No model called `name` is served; `served` are the names that are.
    pub fn model_not_found(name: &str, served: &[String]) -> Self {
        let message = format!(
            "The model '{}' does not exist; served: {}.",
            quote(name),
            served.join(", ")
        );
        Self::new(ErrorKind::ModelNotFound, message).with_param("model")
    }

    /// A bug or caught panic; the client is told nothing but to report the request id.
    pub fn internal() -> Self {
        Self::new(ErrorKind::Internal, "The server failed on this request.")
    }

    /// The engine died under the request.
    pub fn engine_lost(retry_after_ms: u64) -> Self {
        Self::new(
            ErrorKind::EngineLost,
            "The engine stopped while the request was running.",
        )
        .with_retry_after_ms(retry_after_ms)
    }

    /// The queue of `limit` entries is full; `flag` moves the limit.
    pub fn queue_full(limit: u64, flag: &'static str, retry_after_ms: u64) -> Self {
        let message = format!("The queue is full: at most {limit} may wait ({flag}).");
        let error = Self::new(ErrorKind::QueueFull, message).with_flag(flag);
        ApiError {
            limit: Some(limit.into()),
            ..error
        }
        .with_retry_after_ms(retry_after_ms)
    }

    /// The server is draining.
    pub fn shutting_down() -> Self {
        Self::new(ErrorKind::ShuttingDown, "The server is shutting down.").with_retry_after_ms(1000)
    }

    /// No token came before the request's deadline.
    pub fn deadline_exceeded() -> Self {
        Self::new(
            ErrorKind::DeadlineExceeded,
            "The deadline passed before the first token.",
        )
        .with_param("deadline_ms")
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl std::error::Error for ApiError {}

/// A client's text as a message may repeat it: at most 64 characters, control characters as U+FFFD.
pub fn quote(text: &str) -> String {
    let mut chars = text.chars();
    let mut quoted: String = chars
        .by_ref()
        .take(MAX_QUOTED_CHARS)
        .map(|c| if c.is_control() { '\u{FFFD}' } else { c })
        .collect();
    if chars.next().is_some() {
        quoted.push('…');
    }
    quoted
}

//! Chat templates: from messages to a prompt, byte for byte as `transformers` renders them.
//!
//! Does not know HTTP, tokens or the engine.

mod clock;
mod error;
mod functions;
mod message;
mod open_message;
mod output;
mod probe;
mod python_text;
mod source;
mod string_methods;
mod template;
mod values;

pub use error::TemplateError;
pub use message::{Content, ContentFormat, Message, Role, ToolCall};
pub use template::{ChatTemplate, RenderRequest, TemplateOptions, missing_template};

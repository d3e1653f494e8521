//! The messages of a conversation, as the server has checked them and as a template sees them.
//!
//! Owns the keys a template finds in a message and their order. Does not know HTTP or which parts a request may have.

use serde_json::{Map, Value, json};

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Instructions of the operator.
    System,
    /// Instructions of the application; becomes `system` where a template has no such role.
    Developer,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// The result of a tool call.
    Tool,
}

impl Role {
    /// The role called `name`; `function` is none.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "system" => Role::System,
            "developer" => Role::Developer,
            "user" => Role::User,
            "assistant" => Role::Assistant,
            "tool" => Role::Tool,
            _ => return None,
        })
    }

    /// The name in requests and templates.
    pub fn name(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::Developer => "developer",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        }
    }
}

/// What a message says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// One text.
    Text(String),
    /// The texts of several parts, in order.
    Parts(Vec<String>),
}

/// One call of a function by the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// The call's id.
    pub id: String,
    /// The function's name.
    pub name: String,
    /// The arguments as the client sent them: the text of a JSON object, or any other text.
    pub arguments: String,
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said; None only for an assistant message with tool calls or reasoning.
    pub content: Option<Content>,
    /// The speaker's name.
    pub name: Option<String>,
    /// Calls the assistant made.
    pub tool_calls: Vec<ToolCall>,
    /// The call a tool message answers.
    pub tool_call_id: Option<String>,
    /// What the assistant thought before it spoke.
    pub reasoning: Option<String>,
}

impl Message {
    /// A message that is one text.
    pub fn text(role: Role, text: impl Into<String>) -> Self {
        Message {
            role,
            content: Some(Content::Text(text.into())),
            name: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
            reasoning: None,
        }
    }
}

/// How a template wants the content of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentFormat {
    /// A string.
    String,
    /// A list of `{"type": "text", "text": ...}`.
    Parts,
    /// Either; it is given as the client sent it.
    Either,
}

fn content_value(content: &Content, format: ContentFormat) -> Value {
    let part = |text: &str| json!({"type": "text", "text": text});
    match (content, format) {
        (Content::Text(text), ContentFormat::String | ContentFormat::Either) => {
            Value::from(text.as_str())
        }
        (Content::Text(text), ContentFormat::Parts) => Value::Array(vec![part(text)]),
        (Content::Parts(parts), ContentFormat::String) => Value::from(parts.join("\n")),
        (Content::Parts(parts), ContentFormat::Parts | ContentFormat::Either) => {
            Value::Array(parts.iter().map(|text| part(text)).collect())
        }
    }
}

/// The arguments as an object where they are one, else as the text they are.
fn arguments_value(arguments: &str) -> Value {
    match serde_json::from_str::<Map<String, Value>>(arguments) {
        Ok(object) => Value::Object(object),
        Err(_) => Value::from(arguments),
    }
}

/// `message` as a template sees it; `role` replaces the message's own.
pub(crate) fn template_value(
    message: &Message,
    role: Role,
    format: ContentFormat,
) -> Map<String, Value> {
    let mut map = Map::new();
    map.insert("role".to_owned(), Value::from(role.name()));
    if let Some(content) = &message.content {
        map.insert("content".to_owned(), content_value(content, format));
    }
    if let Some(reasoning) = &message.reasoning {
        // The names under which published templates look for it.
        for key in ["reasoning_content", "reasoning", "thinking"] {
            map.insert(key.to_owned(), Value::from(reasoning.as_str()));
        }
    }
    if let Some(name) = &message.name {
        map.insert("name".to_owned(), Value::from(name.as_str()));
    }
    if !message.tool_calls.is_empty() {
        let call = |call: &ToolCall| {
            json!({
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": arguments_value(&call.arguments)},
            })
        };
        map.insert(
            "tool_calls".to_owned(),
            message.tool_calls.iter().map(call).collect(),
        );
    }
    if let Some(id) = &message.tool_call_id {
        map.insert("tool_call_id".to_owned(), Value::from(id.as_str()));
    }
    map
}

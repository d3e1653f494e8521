//! `ChatTemplate`: from messages to a prompt, for tests and offline use.

use std::collections::BTreeMap;

use chat::{Content, Message, RenderRequest, Role, TemplateOptions, ToolCall};
use model_files::TemplateSource;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use serde_json::{Map, Value};

use crate::guard::guarded;
use crate::tokenizer::value_error;

/// A compiled chat template.
#[pyclass(frozen, module = "proa._rust")]
pub struct ChatTemplate {
    template: chat::ChatTemplate,
}

#[pymethods]
impl ChatTemplate {
    /// Compiles `source`; `special_tokens` are the model's by name. Raises ValueError.
    #[new]
    #[pyo3(signature = (source, special_tokens = BTreeMap::new()))]
    fn new(source: String, special_tokens: BTreeMap<String, String>) -> PyResult<Self> {
        guarded(|| {
            let source = TemplateSource {
                text: source,
                tool_use: None,
                origin: "python",
            };
            let template =
                chat::ChatTemplate::compile(&source, &special_tokens, TemplateOptions::default())
                    .map_err(|error| PyValueError::new_err(error.to_string()))?;
            Ok(ChatTemplate { template })
        })
    }

    /// The prompt of a conversation. `messages`, `tools` and `kwargs` are JSON texts. `ending` is "generate" (the answer is
    /// begun), "closed", or "open" (the last message is left to be continued). Raises ValueError.
    #[pyo3(signature = (messages, tools = None, kwargs = None, ending = "generate"))]
    fn render(
        &self,
        messages: &str,
        tools: Option<&str>,
        kwargs: Option<&str>,
        ending: &str,
    ) -> PyResult<String> {
        if !["generate", "closed", "open"].contains(&ending) {
            return Err(PyValueError::new_err(
                "ending must be generate, closed or open",
            ));
        }
        guarded(|| {
            let messages: Vec<Map<String, Value>> = parse(messages)?;
            let messages = messages.iter().map(message).collect::<PyResult<Vec<_>>>()?;
            let tools: Option<Vec<Value>> = tools.map(parse).transpose()?;
            let kwargs: Option<Map<String, Value>> = kwargs.map(parse).transpose()?;
            let request = RenderRequest {
                messages: &messages,
                tools: tools.as_deref(),
                kwargs: kwargs.as_ref(),
                add_generation_prompt: ending == "generate",
                continue_final_message: ending == "open",
            };
            self.template
                .render(&request)
                .map_err(|error| value_error(&error))
        })
    }

    /// The variables the template reads from outside, sorted.
    fn variables(&self) -> Vec<&str> {
        self.template.variables().into_iter().collect()
    }

    /// "string", "parts" or "either": the form of contents the template was found to want.
    fn content_format(&self) -> &'static str {
        match self.template.content_format() {
            chat::ContentFormat::String => "string",
            chat::ContentFormat::Parts => "parts",
            chat::ContentFormat::Either => "either",
        }
    }
}

fn parse<T: serde::de::DeserializeOwned>(text: &str) -> PyResult<T> {
    serde_json::from_str(text).map_err(|error| PyValueError::new_err(error.to_string()))
}

/// A message in the shape of an OpenAI request.
fn message(map: &Map<String, Value>) -> PyResult<Message> {
    let text = |key: &str| map.get(key).and_then(Value::as_str).map(str::to_owned);
    let role = text("role").and_then(|name| Role::from_name(&name));
    let part = |part: &Value| part.get("text").and_then(Value::as_str).map(str::to_owned);
    let content = match map.get("content") {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(Content::Text(text.clone())),
        Some(Value::Array(parts)) => Some(Content::Parts(
            parts
                .iter()
                .map(part)
                .collect::<Option<_>>()
                .ok_or_else(|| PyValueError::new_err("a part without text"))?,
        )),
        Some(_) => {
            return Err(PyValueError::new_err(
                "content must be a string or a list of parts",
            ));
        }
    };
    let calls = map.get("tool_calls").and_then(Value::as_array);
    Ok(Message {
        role: role.ok_or_else(|| PyValueError::new_err("a message without a known role"))?,
        content,
        name: text("name"),
        tool_calls: calls
            .into_iter()
            .flatten()
            .map(tool_call)
            .collect::<PyResult<_>>()?,
        tool_call_id: text("tool_call_id"),
        reasoning: text("reasoning_content").or_else(|| text("reasoning")),
    })
}

fn tool_call(call: &Value) -> PyResult<ToolCall> {
    let function = call
        .get("function")
        .ok_or_else(|| PyValueError::new_err("a tool call without a function"))?;
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    Ok(ToolCall {
        id: text(call.get("id")),
        name: text(function.get("name")),
        arguments: match function.get("arguments") {
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
            None => String::new(),
        },
    })
}

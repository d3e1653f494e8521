//! POST /v1/chat/completions (http-surface.md 2.4, 2.5): read the conversation, render it, run.

use std::sync::Arc;

use chat::{Content, Message, RenderRequest, Role, ToolCall, missing_template};
use limits::{ApiError, Ranged};
use serde_json::{Map, Value};

use crate::fields::{CHAT, Class, Field, FieldReport, Neutral, SHARED, UnknownFields, sort_out};
use crate::generation::{Generation, HeadFacts, bool_of, logprobs_of};
use crate::json::{Object, Raw};
use crate::reply::{Reply, name_fields};
use crate::respond::{Answer, Api};
use crate::state::ServerState;
use crate::submit::{Asks, Prompt, submit};

const fn known(name: &'static str, class: Class) -> Field {
    Field { name, class }
}

const MESSAGE: &[Field] = &[
    known("role", Class::Honoured),
    known("content", Class::Honoured),
    known("name", Class::Honoured),
    known("tool_calls", Class::Honoured),
    known("tool_call_id", Class::Honoured),
    known("reasoning", Class::Honoured),
    known("reasoning_content", Class::Honoured),
    known("refusal", Class::Honoured),
    known(
        "annotations",
        Class::Inert("annotations carry no prompt text"),
    ),
    known(
        "audio",
        Class::Refused(Neutral::Nothing, "audio is not supported"),
    ),
    known(
        "function_call",
        Class::Refused(Neutral::Nothing, "use 'tool_calls'"),
    ),
];
const PART: &[Field] = &[
    known("type", Class::Honoured),
    known("text", Class::Honoured),
    known("refusal", Class::Honoured),
];
const CALL: &[Field] = &[
    known("id", Class::Honoured),
    known("type", Class::Honoured),
    known("function", Class::Honoured),
];
const FUNCTION: &[Field] = &[
    known("name", Class::Honoured),
    known("arguments", Class::Honoured),
];

/// A conversation and how it is rendered.
#[derive(Debug)]
pub struct Conversation {
    messages: Vec<Message>,
    kwargs: Option<Map<String, Value>>,
    add_generation_prompt: bool,
    continue_final_message: bool,
    add_special_tokens: bool,
}

/// Answers a chat request.
pub async fn handle(
    state: Arc<ServerState>,
    body: &str,
    head: HeadFacts,
) -> Result<Reply, ApiError> {
    let mut object = Raw::root(body).object()?;
    head.note_request_id(&object);
    let mut report = FieldReport::default();
    drop_by_template(&mut object, &state, head.unknown_fields, &mut report);
    sort_out(
        &mut object,
        &[SHARED, CHAT],
        head.unknown_fields,
        &mut report,
    )?;
    if !object.has("messages") {
        return Err(ApiError::missing("messages"));
    }
    merge_max_tokens(&mut object)?;
    let names_asked = object.has("return_tokens_as_token_ids");
    let generation = Generation::read(&mut object, &state, &head, &mut report)?;
    let logprobs = read_logprobs(&mut object, &state)?;
    let conversation = read_conversation(&mut object, &state, head.unknown_fields, &mut report)?;
    generation.check_combinations(
        logprobs.is_some(),
        names_asked && generation.tokens_as_ids,
        false,
    )?;
    let (model, words) = (Arc::clone(&state.model), generation.bad_words.clone());
    let text_job = move || {
        let prompt = render(&model, &conversation)?;
        Ok((prompt, model.tokenizer.bad_word_sequences(&words)?))
    };
    let (prompt, bad_words) = state.text.run(text_job).await?;
    let prompts = vec![prompt];
    let asks = Asks {
        logprobs,
        prompt_logprobs: generation.prompt_logprobs,
        default_max_tokens: None,
    };
    let choices = submit(&state, &generation, asks, (&prompts, bad_words), &head)?;
    let stream = generation.stream;
    let answer = Answer {
        state,
        api: Api::Chat,
        generation,
        prompts,
        logprobs,
        echo: false,
        report,
        created: Answer::now(),
    };
    let report = answer.report.clone();
    let mut reply = if stream {
        answer.stream(choices).await?
    } else {
        answer.whole(choices).await?
    };
    name_fields(&mut reply, &report);
    Ok(reply)
}

/// Template switches that are honoured only where the template reads them; `verbosity: medium` is equal to absence.
fn drop_by_template(
    object: &mut Object<'_>,
    _state: &ServerState,
    unknown: UnknownFields,
    report: &mut FieldReport,
) {
    object.retain(|name, value| {
        let medium = name == "verbosity" && value.text() == "\"medium\"";
        if medium {
            report.inert.push(name.to_owned());
        }
        let relaxed = unknown == UnknownFields::Report
            && matches!(name, "reasoning_effort" | "verbosity")
            && !value.is_null()
            && !medium;
        if relaxed {
            report.ignored.push(name.to_owned());
        }
        !medium && !relaxed
    });
}

/// `max_completion_tokens` and `max_tokens` mean the same; both and different contradict each other.
fn merge_max_tokens(object: &mut Object<'_>) -> Result<(), ApiError> {
    for name in ["max_tokens", "max_completion_tokens"] {
        if let Some((_, raw)) = object.entries().find(|(key, _)| *key == name) {
            raw.integer(1, i128::from(i32::MAX), None)?;
        }
    }
    let text = |object: &Object<'_>, name: &str| {
        object
            .entries()
            .find(|(key, _)| *key == name)
            .map(|(_, raw)| raw.text().to_owned())
    };
    match (
        text(object, "max_tokens"),
        text(object, "max_completion_tokens"),
    ) {
        (Some(a), Some(b)) if a != b => Err(ApiError::incompatible(
            "max_tokens",
            "max_completion_tokens",
            "both mean the same and they differ",
        )),
        (None, Some(_)) => {
            object.rename("max_completion_tokens", "max_tokens");
            Ok(())
        }
        _ => Ok(()),
    }
}

fn read_logprobs(object: &mut Object<'_>, state: &ServerState) -> Result<Option<i32>, ApiError> {
    let wanted = bool_of(object, "logprobs", false)?;
    let top = object
        .take("top_logprobs")
        .map(|raw| logprobs_of(&raw, state.config.limits.max_logprobs))
        .transpose()?;
    match (wanted, top) {
        (false, Some(k)) if k != 0 => Err(ApiError::incompatible(
            "top_logprobs",
            "logprobs",
            "it needs 'logprobs: true'",
        )),
        (false, _) => Ok(None),
        (true, top) => Ok(Some(top.unwrap_or(0))),
    }
}

/// Reads messages and rendering options.
pub fn read_conversation(
    object: &mut Object<'_>,
    state: &ServerState,
    unknown: UnknownFields,
    report: &mut FieldReport,
) -> Result<Conversation, ApiError> {
    let template = state.model.template.as_ref().ok_or_else(missing_template)?;
    let limits = &state.config.limits;
    let raw = object
        .take("messages")
        .ok_or_else(|| ApiError::missing("messages"))?;
    let mut messages: Vec<Message> = Vec::new();
    for item in raw.array_of(1, limits.max_messages as usize, limits::MAX_MESSAGES.flag)? {
        let message = read_message(&item, state, unknown, report, &messages)?;
        messages.push(message);
    }
    let kwargs = object
        .take("chat_template_kwargs")
        .map(|raw| read_kwargs(&raw))
        .transpose()?;
    if let Some(kwargs) = &kwargs {
        template.check_kwargs(kwargs)?;
    }
    let continues = bool_of(object, "continue_final_message", false)?;
    let add_prompt = bool_of(object, "add_generation_prompt", !continues)?;
    if continues && add_prompt {
        let reason = "the last message is either continued or followed by a new one";
        return Err(ApiError::incompatible(
            "continue_final_message",
            "add_generation_prompt",
            reason,
        ));
    }
    if continues
        && messages
            .last()
            .is_none_or(|message| message.role != Role::Assistant)
    {
        return Err(ApiError::invalid_value(
            "continue_final_message",
            "the last message is not of the role assistant",
        ));
    }
    Ok(Conversation {
        messages,
        kwargs,
        add_generation_prompt: add_prompt,
        continue_final_message: continues,
        add_special_tokens: bool_of(object, "add_special_tokens", false)?,
    })
}

fn read_kwargs(raw: &Raw<'_>) -> Result<Map<String, Value>, ApiError> {
    let entries = raw.object()?.len();
    let max_keys = limits::MAX_TEMPLATE_KWARGS.value();
    if entries as i64 > max_keys {
        return Err(ApiError::above(
            Ranged::Object,
            raw.path(),
            entries,
            max_keys,
            limits::MAX_TEMPLATE_KWARGS.flag,
        ));
    }
    let max_bytes = limits::MAX_TEMPLATE_KWARGS_BYTES.value();
    if raw.text().len() as i64 > max_bytes {
        let flag = limits::MAX_TEMPLATE_KWARGS_BYTES.flag;
        return Err(ApiError::above(
            Ranged::String,
            raw.path(),
            raw.text().len(),
            max_bytes,
            flag,
        ));
    }
    match raw.tree(limits::MAX_JSON_NODES.value() as usize)? {
        Value::Object(map) => Ok(map),
        _ => Err(raw.type_error("an object")),
    }
}

fn read_message(
    raw: &Raw<'_>,
    state: &ServerState,
    unknown: UnknownFields,
    report: &mut FieldReport,
    earlier: &[Message],
) -> Result<Message, ApiError> {
    let mut object = raw.object()?;
    sort_out(&mut object, &[MESSAGE], unknown, report)?;
    let path = |name: &str| format!("{}.{name}", raw.path());
    let role = object
        .take("role")
        .ok_or_else(|| ApiError::missing(&path("role")))?
        .string()?
        .into_owned();
    let role = match Role::from_name(&role) {
        Some(role) => role,
        None if role == "function" => {
            return Err(ApiError::not_supported(
                Some(&path("role")),
                "The role 'function' is not supported: use 'tool'.",
            ));
        }
        None => {
            let reason = "the role must be system, developer, user, assistant or tool";
            return Err(ApiError::invalid_value(&path("role"), reason));
        }
    };
    let mut message = Message {
        content: None,
        ..Message::text(role, "")
    };
    message.name = object
        .take("name")
        .map(|raw| raw.string_of(1, 64, None).map(|name| name.into_owned()))
        .transpose()?;
    if message.name.is_some()
        && state
            .model
            .template
            .as_ref()
            .is_some_and(|template| !template.reads_name())
    {
        report.inert.push(path("name"));
    }
    let max_parts = state.config.limits.max_content_parts;
    message.content = object
        .take("content")
        .map(|raw| read_content(&raw, (role, max_parts), unknown, report))
        .transpose()?;
    if role == Role::Assistant {
        read_assistant(&mut object, &mut message, unknown, report)?;
    } else if let Some((name, _)) = object.entries().find(|(name, _)| {
        matches!(
            *name,
            "tool_calls" | "reasoning" | "reasoning_content" | "refusal"
        )
    }) {
        return Err(ApiError::invalid_value(
            &path(name),
            "only messages of the role assistant have it",
        ));
    }
    let call_id = object
        .take("tool_call_id")
        .map(|raw| raw.string().map(|id| id.into_owned()))
        .transpose()?;
    match (role, &call_id) {
        (Role::Tool, None) => return Err(ApiError::missing(&path("tool_call_id"))),
        (Role::Tool, Some(id))
            if !earlier
                .iter()
                .any(|m| m.tool_calls.iter().any(|call| call.id == *id)) =>
        {
            return Err(ApiError::invalid_value(
                &path("tool_call_id"),
                "no earlier assistant message made this call",
            ));
        }
        _ => message.tool_call_id = call_id,
    }
    let may_be_silent =
        role == Role::Assistant && (!message.tool_calls.is_empty() || message.reasoning.is_some());
    if message.content.is_none() && !may_be_silent {
        return Err(ApiError::missing(&path("content")));
    }
    Ok(message)
}

fn read_content(
    raw: &Raw<'_>,
    (role, max_parts): (Role, i64),
    unknown: UnknownFields,
    report: &mut FieldReport,
) -> Result<Content, ApiError> {
    if raw.kind() == "a string" {
        return Ok(Content::Text(raw.string()?.into_owned()));
    }
    if raw.kind() != "an array" {
        return Err(raw.type_error("a string or an array of parts"));
    }
    let mut texts = Vec::new();
    for part in raw.array_of(1, max_parts as usize, limits::MAX_CONTENT_PARTS.flag)? {
        let mut object = part.object()?;
        let path = |name: &str| format!("{}.{name}", part.path());
        let kind = object
            .take("type")
            .ok_or_else(|| ApiError::missing(&path("type")))?
            .string()?
            .into_owned();
        if !(kind == "text" || kind == "refusal" && role == Role::Assistant) {
            let message = format!(
                "Parts of type '{}' are not supported by this model.",
                limits::quote(&kind)
            );
            return Err(ApiError::not_supported(Some(&path("type")), message));
        }
        sort_out(&mut object, &[PART], unknown, report)?;
        texts.push(
            object
                .take(&kind)
                .ok_or_else(|| ApiError::missing(&path(&kind)))?
                .string()?
                .into_owned(),
        );
    }
    Ok(Content::Parts(texts))
}

fn read_assistant(
    object: &mut Object<'_>,
    message: &mut Message,
    unknown: UnknownFields,
    report: &mut FieldReport,
) -> Result<(), ApiError> {
    let text = |raw: Option<Raw<'_>>| {
        raw.map(|raw| raw.string().map(|text| text.into_owned()))
            .transpose()
    };
    let base = object.path().to_owned();
    let (reasoning, content) = (
        text(object.take("reasoning"))?,
        text(object.take("reasoning_content"))?,
    );
    if reasoning.is_some() && content.is_some() && reasoning != content {
        let reason = "both mean the same and they differ";
        return Err(ApiError::incompatible(
            &format!("{base}.reasoning"),
            &format!("{base}.reasoning_content"),
            reason,
        ));
    }
    message.reasoning = reasoning.or(content);
    if let Some(refusal) = text(object.take("refusal"))? {
        message.content = message.content.take().or(Some(Content::Text(refusal)));
    }
    let Some(raw) = object.take("tool_calls") else {
        return Ok(());
    };
    for call in raw.array_of(1, limits::MAX_CALLS_PER_MESSAGE.value() as usize, None)? {
        let mut fields = call.object()?;
        sort_out(&mut fields, &[CALL], unknown, report)?;
        let path = |name: &str| format!("{}.{name}", call.path());
        let required = |raw: Option<Raw<'_>>, name: &str| {
            raw.ok_or_else(|| ApiError::missing(&path(name)))?
                .string()
                .map(|text| text.into_owned())
        };
        let id = required(fields.take("id"), "id")?;
        if required(fields.take("type"), "type")? != "function" {
            return Err(ApiError::invalid_value(
                &path("type"),
                "only calls of type function are known",
            ));
        }
        let mut function = fields
            .take("function")
            .ok_or_else(|| ApiError::missing(&path("function")))?
            .object()?;
        sort_out(&mut function, &[FUNCTION], unknown, report)?;
        let name = required(function.take("name"), "function.name")?;
        let arguments = required(function.take("arguments"), "function.arguments")?;
        message.tool_calls.push(ToolCall {
            id,
            name,
            arguments,
        });
    }
    Ok(())
}

/// Renders and tokenises; runs on a text thread.
pub fn render(
    model: &crate::state::ServedModel,
    conversation: &Conversation,
) -> Result<Prompt, ApiError> {
    let template = model.template.as_ref().ok_or_else(missing_template)?;
    let text = template.render(&RenderRequest {
        messages: &conversation.messages,
        tools: None,
        kwargs: conversation.kwargs.as_ref(),
        add_generation_prompt: conversation.add_generation_prompt,
        continue_final_message: conversation.continue_final_message,
    })?;
    let ids = model
        .tokenizer
        .encode(&text, conversation.add_special_tokens)?;
    Ok(Prompt {
        ids: ids.into(),
        text,
        path: "messages".to_owned(),
    })
}

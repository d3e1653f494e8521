//! POST /tokenize and /detokenize (http-surface.md 2.8).

use std::sync::Arc;

use hyper::StatusCode;
use limits::ApiError;
use serde_json::json;

use crate::chat_route::{read_conversation, render};
use crate::fields::{DETOKENIZE, FieldReport, TOKENIZE, sort_out};
use crate::generation::{HeadFacts, bool_of};
use crate::json::{Object, Raw};
use crate::reply::{Reply, json_reply, name_fields};
use crate::state::ServerState;

fn check_model(object: &mut Object<'_>, state: &ServerState) -> Result<(), ApiError> {
    let name = object
        .take("model")
        .map(|raw| raw.string().map(|name| name.into_owned()))
        .transpose()?;
    state.resolve_model(name.as_deref()).map(drop)
}

/// Text or messages to ids; no context check.
pub async fn tokenize(
    state: Arc<ServerState>,
    body: &str,
    head: HeadFacts,
) -> Result<Reply, ApiError> {
    let mut object = Raw::root(body).object()?;
    let mut report = FieldReport::default();
    sort_out(&mut object, &[TOKENIZE], head.unknown_fields, &mut report)?;
    check_model(&mut object, &state)?;
    let wants_strings = bool_of(&mut object, "return_token_strs", false)?;
    let model = Arc::clone(&state.model);
    let ids = match (object.has("prompt"), object.has("messages")) {
        (true, true) => {
            return Err(ApiError::incompatible(
                "prompt",
                "messages",
                "one of them is tokenised",
            ));
        }
        (false, false) => return Err(ApiError::missing("prompt")),
        (true, false) => {
            if let Some(name) = [
                "add_generation_prompt",
                "continue_final_message",
                "chat_template_kwargs",
            ]
            .into_iter()
            .find(|name| object.has(name))
            {
                return Err(ApiError::incompatible(
                    name,
                    "prompt",
                    "it belongs to 'messages'",
                ));
            }
            let add_special = bool_of(&mut object, "add_special_tokens", true)?;
            let prompt = object
                .take("prompt")
                .ok_or_else(|| ApiError::missing("prompt"))?
                .string()?
                .into_owned();
            state
                .text
                .run(move || model.tokenizer.encode(&prompt, add_special))
                .await?
        }
        (false, true) => {
            let conversation =
                read_conversation(&mut object, &state, head.unknown_fields, &mut report)?;
            state
                .text
                .run(move || render(&model, &conversation))
                .await?
                .ids
                .to_vec()
        }
    };
    let mut body = json!({ "count": ids.len(), "max_model_len": state.max_model_len() });
    if wants_strings {
        let names = |id: &u32| {
            state
                .model
                .tokenizer
                .token_name(*id, text::TokenNames::Text)
        };
        body["token_strs"] = ids.iter().map(names).collect();
    }
    body["tokens"] = ids.into();
    let mut reply = json_reply(StatusCode::OK, &body);
    name_fields(&mut reply, &report);
    Ok(reply)
}

/// Ids to text.
pub async fn detokenize(
    state: Arc<ServerState>,
    body: &str,
    head: HeadFacts,
) -> Result<Reply, ApiError> {
    let mut object = Raw::root(body).object()?;
    let mut report = FieldReport::default();
    sort_out(&mut object, &[DETOKENIZE], head.unknown_fields, &mut report)?;
    check_model(&mut object, &state)?;
    let skip_special = bool_of(&mut object, "skip_special_tokens", false)?;
    let raw = object
        .take("tokens")
        .ok_or_else(|| ApiError::missing("tokens"))?;
    let ids = raw.token_ids(state.vocab_size(), 0, usize::MAX, None)?;
    let model = Arc::clone(&state.model);
    let prompt = state
        .text
        .run(move || Ok(model.tokenizer.decode(&ids, skip_special)))
        .await?;
    let mut reply = json_reply(StatusCode::OK, &json!({ "prompt": prompt }));
    name_fields(&mut reply, &report);
    Ok(reply)
}

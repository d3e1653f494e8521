//! POST /v1/completions (http-surface.md 2.3): read, check, tokenise, run.

use std::sync::Arc;

use limits::{ApiError, Ranged};

use crate::fields::{COMPLETIONS, FieldReport, SHARED, sort_out};
use crate::generation::{Generation, HeadFacts, bool_of, logprobs_of};
use crate::json::{Object, Raw};
use crate::reply::{Reply, name_fields};
use crate::respond::{Answer, Api};
use crate::state::ServerState;
use crate::submit::{Asks, Prompt, submit};

/// Tokens when the request names none.
const DEFAULT_MAX_TOKENS: u32 = 16;

/// A prompt as it was sent.
enum RawPrompt {
    Text(String),
    Ids(Vec<u32>),
}

/// Answers a completion request.
pub async fn handle(
    state: Arc<ServerState>,
    body: &str,
    head: HeadFacts,
) -> Result<Reply, ApiError> {
    let mut object = Raw::root(body).object()?;
    head.note_request_id(&object);
    let mut report = FieldReport::default();
    sort_out(
        &mut object,
        &[SHARED, COMPLETIONS],
        head.unknown_fields,
        &mut report,
    )?;
    if !object.has("prompt") {
        return Err(ApiError::missing("prompt"));
    }
    let names_asked = object.has("return_tokens_as_token_ids");
    let generation = Generation::read(&mut object, &state, &head, &mut report)?;
    let echo = bool_of(&mut object, "echo", false)?;
    let add_special = bool_of(&mut object, "add_special_tokens", true)?;
    let logprobs = object
        .take("logprobs")
        .map(|raw| logprobs_of(&raw, state.config.limits.max_logprobs))
        .transpose()?;
    let prompts = read_prompts(&mut object, &state)?;
    generation.check_combinations(
        logprobs.is_some(),
        names_asked && generation.tokens_as_ids,
        echo,
    )?;

    let (model, words) = (Arc::clone(&state.model), generation.bad_words.clone());
    let text_job = move || {
        let tokenizer = &model.tokenizer;
        let mut tokenised = Vec::with_capacity(prompts.len());
        for (path, prompt) in prompts {
            tokenised.push(match prompt {
                RawPrompt::Text(text) => Prompt {
                    ids: tokenizer.encode(&text, add_special)?.into(),
                    text,
                    path,
                },
                RawPrompt::Ids(ids) => Prompt {
                    text: if echo {
                        tokenizer.decode(&ids, false)
                    } else {
                        String::new()
                    },
                    ids: ids.into(),
                    path,
                },
            });
        }
        Ok((tokenised, tokenizer.bad_word_sequences(&words)?))
    };
    let (prompts, bad_words) = state.text.run(text_job).await?;
    // Echo with logprobs scores the prompt too.
    let prompt_k = [generation.prompt_logprobs, logprobs.filter(|_| echo)]
        .into_iter()
        .flatten();
    let prompt_k = prompt_k.reduce(|a, b| if a < 0 || b < 0 { -1 } else { a.max(b) });
    let asks = Asks {
        logprobs,
        prompt_logprobs: prompt_k,
        default_max_tokens: Some(DEFAULT_MAX_TOKENS),
    };
    let choices = submit(&state, &generation, asks, (&prompts, bad_words), &head)?;
    let stream = generation.stream;
    let answer = Answer {
        state,
        api: Api::Completions,
        generation,
        prompts,
        logprobs,
        echo,
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

/// One string, a list of strings, one list of ids, or a list of such lists; with the path of each prompt.
fn read_prompts(
    object: &mut Object<'_>,
    state: &ServerState,
) -> Result<Vec<(String, RawPrompt)>, ApiError> {
    let raw = object
        .take("prompt")
        .ok_or_else(|| ApiError::missing("prompt"))?;
    let text = |raw: &Raw<'_>| -> Result<(String, RawPrompt), ApiError> {
        let prompt = raw.string()?.into_owned();
        if prompt.is_empty() && state.model.tokenizer.bos_token_id().is_none() {
            return Err(crate::generation::empty_prompt(raw.path()));
        }
        Ok((raw.path().to_owned(), RawPrompt::Text(prompt)))
    };
    let max_ids = state.max_model_len() as usize;
    let ids = |raw: &Raw<'_>| -> Result<(String, RawPrompt), ApiError> {
        // One more than the context is read, so that the error can say how long the prompt is at least.
        let ids = raw.token_ids(state.vocab_size(), 1, usize::MAX, None)?;
        if ids.len() > max_ids {
            return Err(ApiError::context_length(
                raw.path(),
                max_ids as u64,
                ids.len() as u64,
                1,
            ));
        }
        Ok((raw.path().to_owned(), RawPrompt::Ids(ids)))
    };
    match raw.kind() {
        "a string" => Ok(vec![text(&raw)?]),
        "an array" => {
            let first = raw.array()?.next();
            let Some(first) = first else {
                return Err(ApiError::below(Ranged::Array, "prompt", 0_usize, 1_usize));
            };
            if first.kind() == "a number" {
                return Ok(vec![ids(&raw)?]);
            }
            let max = state.config.limits.max_prompts as usize;
            let items = raw.array_of(1, max, limits::MAX_PROMPTS.flag)?;
            match first.kind() {
                "a string" => items.iter().map(text).collect(),
                "an array" => items.iter().map(ids).collect(),
                _ => Err(first.type_error("a string, a token id or an array of token ids")),
            }
        }
        _ => Err(raw.type_error("a string or an array")),
    }
}

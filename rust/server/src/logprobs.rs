//! Logprobs as JSON (http-surface.md 3.4). Numbers never become NaN or Infinity.

use engine_client::TokenLogprobs;
use serde_json::{Map, Value, json};
use text::{ChoiceText, TextOptions, TokenNames, Tokenizer, printable_logprob};

use crate::choice::ChoiceToken;

fn number(value: f32) -> Value {
    Value::from(f64::from(printable_logprob(value)))
}

/// The `logprobs` of a completions choice, growing token by token.
#[derive(Debug, Default)]
pub struct CompletionLogprobs {
    tokens: Vec<Value>,
    token_logprobs: Vec<Value>,
    top_logprobs: Vec<Value>,
    text_offset: Vec<Value>,
}

impl CompletionLogprobs {
    /// Adds output tokens; `shift` code points of echoed text stand before them.
    pub fn push_output(
        &mut self,
        tokenizer: &Tokenizer,
        names: TokenNames,
        tokens: &[ChoiceToken],
        shift: u32,
    ) {
        for token in tokens {
            if let Some(logprobs) = &token.logprobs {
                self.push(
                    tokenizer,
                    names,
                    token.id,
                    Some(logprobs),
                    token.text_offset + shift,
                );
            }
        }
    }

    /// Adds an echoed prompt; `scores` are those of its tokens from the second on.
    pub fn push_prompt(
        &mut self,
        tokenizer: &Tokenizer,
        names: TokenNames,
        ids: &[u32],
        scores: &[TokenLogprobs],
    ) {
        let options = TextOptions {
            skip_special_tokens: false,
            ..TextOptions::default()
        };
        let mut text = ChoiceText::new(tokenizer.clone(), options);
        let mut shown = String::new();
        for (place, id) in ids.iter().enumerate() {
            let effect = text.push(*id, &mut shown);
            let score = place.checked_sub(1).and_then(|at| scores.get(at));
            self.push(tokenizer, names, *id, score, effect.text_offset);
        }
    }

    fn push(
        &mut self,
        tokenizer: &Tokenizer,
        names: TokenNames,
        id: u32,
        logprobs: Option<&TokenLogprobs>,
        offset: u32,
    ) {
        self.tokens.push(tokenizer.token_name(id, names).into());
        self.text_offset.push(offset.into());
        let Some(logprobs) = logprobs else {
            self.token_logprobs.push(Value::Null);
            self.top_logprobs.push(Value::Null);
            return;
        };
        self.token_logprobs.push(number(logprobs.value));
        let map =
            tokenizer.top_logprob_map((id, logprobs.value), logprobs.top.iter().copied(), names);
        self.top_logprobs.push(
            map.into_iter()
                .map(|(name, value)| (name, number(value)))
                .collect::<Map<_, _>>()
                .into(),
        );
    }

    /// The JSON object.
    pub fn into_value(self) -> Value {
        json!({
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs,
            "text_offset": self.text_offset,
        })
    }
}

/// The entries of chat's `logprobs.content`.
pub fn chat_content(
    tokenizer: &Tokenizer,
    names: TokenNames,
    tokens: &[ChoiceToken],
) -> Vec<Value> {
    let entry = |id: u32, value: f32| json!({ "token": tokenizer.token_name(id, names), "logprob": number(value), "bytes": tokenizer.token_bytes(id) });
    tokens
        .iter()
        .filter_map(|token| token.logprobs.as_ref().map(|logprobs| (token.id, logprobs)))
        .map(|(id, logprobs)| {
            let mut content = entry(id, logprobs.value);
            content["top_logprobs"] = logprobs
                .top
                .iter()
                .map(|(id, value)| entry(*id, *value))
                .collect();
            content
        })
        .collect()
}

/// `prompt_logprobs`: null, then a map for each prompt token with the `k` likeliest ids and the true one.
pub fn prompt_logprobs(
    tokenizer: &Tokenizer,
    ids: &[u32],
    scores: &[TokenLogprobs],
    k: Option<usize>,
) -> Value {
    let rank_of = |rank: u32| {
        if rank == 0 {
            Value::Null
        } else {
            Value::from(rank)
        }
    };
    let entry = |id: u32, value: f32, rank: Value| {
        let decoded = tokenizer.token_name(id, TokenNames::Text);
        (
            id.to_string(),
            json!({ "logprob": number(value), "rank": rank, "decoded_token": decoded }),
        )
    };
    let mut list = vec![Value::Null];
    for (id, score) in ids.iter().skip(1).zip(scores) {
        let mut map = Map::new();
        let own = entry(*id, score.value, rank_of(score.rank));
        map.insert(own.0, own.1);
        let top = score.top.iter().take(k.unwrap_or(usize::MAX)).enumerate();
        for (place, (top_id, value)) in top.filter(|(_, (top_id, _))| top_id != id) {
            let (key, value) = entry(*top_id, *value, Value::from(place + 1));
            map.insert(key, value);
        }
        list.push(map.into());
    }
    list.into()
}

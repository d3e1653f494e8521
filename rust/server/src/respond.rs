//! The answer of a generation route, whole or as a stream (http-surface.md 3.1 to 3.6).

use std::fmt::Write;
use std::time::Duration;

use bytes::Bytes;
use engine_client::TokenLogprobs;
use hyper::StatusCode;
use limits::ApiError;
use serde_json::{Map, Value, json};
use text::TokenNames;
use tokio::sync::mpsc;

use std::sync::Arc;

use crate::choice::{ChoiceEnd, ChoiceEvent, ChoiceToken, Choices, StopReason};
use crate::fields::FieldReport;
use crate::generation::Generation;
use crate::logprobs::{CompletionLogprobs, chat_content, prompt_logprobs};
use crate::reply::{Reply, error_body, event_stream, json_reply};
use crate::state::{ServerState, unix_now};
use crate::submit::Prompt;

/// Chunks a connection may lag behind; further tokens merge in their request's queue.
const STREAM_CHUNKS: usize = 4;

/// Which of the two APIs is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// /v1/completions.
    Completions,
    /// /v1/chat/completions.
    Chat,
}

/// Everything an answer depends on but the tokens.
#[derive(Debug)]
pub struct Answer {
    /// The server.
    pub state: Arc<ServerState>,
    /// The API.
    pub api: Api,
    /// Checked fields.
    pub generation: Generation,
    /// Prompts.
    pub prompts: Vec<Prompt>,
    /// Whether output logprobs were asked for.
    pub logprobs: Option<i32>,
    /// Whether the prompt comes back (completions).
    pub echo: bool,
    /// Fields that did nothing.
    pub report: FieldReport,
    /// Time of the answer.
    pub created: u64,
}

/// What has come for one choice.
#[derive(Debug, Default)]
struct Collected {
    text: String,
    tokens: Vec<ChoiceToken>,
    scores: Vec<TokenLogprobs>,
    end: Option<Box<ChoiceEnd>>,
}

impl Answer {
    /// The creation time of an answer that begins now.
    pub fn now() -> u64 {
        unix_now()
    }

    fn id(&self) -> String {
        let prefix = if self.api == Api::Chat {
            "chatcmpl"
        } else {
            "cmpl"
        };
        format!("{prefix}-{}", self.generation.request_id)
    }

    fn names(&self) -> TokenNames {
        if self.generation.tokens_as_ids {
            TokenNames::Ids
        } else {
            TokenNames::Text
        }
    }

    fn prompt_of(&self, choice: usize) -> &Prompt {
        &self.prompts[choice / self.generation.n as usize]
    }

    fn envelope(&self, object: &str) -> Map<String, Value> {
        let mut body = Map::new();
        body.insert("id".into(), self.id().into());
        body.insert("object".into(), object.into());
        body.insert("created".into(), self.created.into());
        body.insert("model".into(), self.generation.model.as_str().into());
        body.insert(
            "system_fingerprint".into(),
            self.state.config.fingerprint.as_str().into(),
        );
        body
    }

    /// Reads all choices to their ends and answers with one body.
    pub async fn whole(self, mut choices: Choices) -> Result<Reply, ApiError> {
        let mut collected: Vec<Collected> = (0..self.prompts.len() * self.generation.n as usize)
            .map(|_| Collected::default())
            .collect();
        while let Some((index, event)) = choices.next().await {
            let choice = &mut collected[index];
            match event {
                ChoiceEvent::Prompt(chunk) => choice.scores.extend(chunk.tokens),
                ChoiceEvent::Delta(text, tokens) => {
                    choice.text.push_str(&text);
                    choice.tokens.extend(tokens);
                }
                ChoiceEvent::End(end) => choice.end = Some(end),
            }
        }
        let ends: Vec<&ChoiceEnd> = collected
            .iter()
            .filter_map(|choice| choice.end.as_deref())
            .collect();
        if let Some(error) = total_failure(&ends) {
            return Err(error);
        }
        let mut body = self.envelope(if self.api == Api::Chat {
            "chat.completion"
        } else {
            "text_completion"
        });
        let usage = usage(
            &ends,
            self.generation.n,
            self.state.config.prompt_tokens_details,
        );
        let timings = self
            .generation
            .include_timings
            .then(|| timings(&ends, self.generation.n));
        body.insert(
            "choices".into(),
            collected
                .iter()
                .enumerate()
                .map(|(index, choice)| self.choice(index, choice))
                .collect(),
        );
        body.insert("usage".into(), usage);
        if let Some(timings) = timings {
            body.insert("timings".into(), timings);
        }
        self.add_extras(&mut body, &collected);
        Ok(json_reply(StatusCode::OK, &body.into()))
    }

    fn add_extras(&self, body: &mut Map<String, Value>, collected: &[Collected]) {
        if self.api == Api::Chat {
            if self.generation.return_token_ids {
                body.insert(
                    "prompt_token_ids".into(),
                    self.prompts[0].ids.to_vec().into(),
                );
            }
            if let (Some(_), Some(first)) = (self.generation.prompt_logprobs, collected.first()) {
                body.insert(
                    "prompt_logprobs".into(),
                    self.prompt_scores(0, &first.scores),
                );
            }
        }
        if let Some(metadata) = &self.generation.metadata {
            body.insert("metadata".into(), metadata.clone());
        }
        if !self.report.ignored.is_empty() {
            body.insert("ignored_fields".into(), self.report.ignored.clone().into());
        }
    }

    fn prompt_scores(&self, choice: usize, scores: &[TokenLogprobs]) -> Value {
        let k = self
            .generation
            .prompt_logprobs
            .and_then(|k| usize::try_from(k).ok());
        prompt_logprobs(
            &self.state.model.tokenizer,
            &self.prompt_of(choice).ids,
            scores,
            k,
        )
    }

    fn choice(&self, index: usize, collected: &Collected) -> Value {
        let tokenizer = &self.state.model.tokenizer;
        let mut choice = Map::new();
        choice.insert("index".into(), index.into());
        match self.api {
            Api::Chat => {
                choice.insert(
                    "message".into(),
                    json!({ "role": "assistant", "content": collected.text, "refusal": null }),
                );
                let content = || json!({ "content": chat_content(tokenizer, self.names(), &collected.tokens), "refusal": null });
                choice.insert(
                    "logprobs".into(),
                    self.logprobs.map_or(Value::Null, |_| content()),
                );
            }
            Api::Completions => {
                let prompt = self.prompt_of(index);
                let echoed = if self.echo { prompt.text.as_str() } else { "" };
                choice.insert("text".into(), format!("{echoed}{}", collected.text).into());
                choice.insert(
                    "logprobs".into(),
                    self.logprobs
                        .map_or(Value::Null, |_| self.completion_logprobs(prompt, collected)),
                );
                if self.generation.prompt_logprobs.is_some() {
                    choice.insert(
                        "prompt_logprobs".into(),
                        self.prompt_scores(index, &collected.scores),
                    );
                }
                if self.generation.return_token_ids {
                    choice.insert("prompt_token_ids".into(), prompt.ids.to_vec().into());
                }
            }
        }
        if self.generation.return_token_ids {
            choice.insert(
                "token_ids".into(),
                collected.tokens.iter().map(|token| token.id).collect(),
            );
        }
        if let Some(end) = &collected.end {
            choice.insert("finish_reason".into(), end.finish_reason.into());
            choice.insert("stop_reason".into(), stop_value(&end.stop_reason));
            if let Some(error) = &end.error {
                choice.insert(
                    "error".into(),
                    error_body(error, &self.generation.request_id)["error"].take(),
                );
            }
        }
        choice.into()
    }

    fn completion_logprobs(&self, prompt: &Prompt, collected: &Collected) -> Value {
        let tokenizer = &self.state.model.tokenizer;
        let mut logprobs = CompletionLogprobs::default();
        let mut shift = 0;
        if self.echo {
            logprobs.push_prompt(tokenizer, self.names(), &prompt.ids, &collected.scores);
            shift = prompt.text.chars().count() as u32;
        }
        logprobs.push_output(tokenizer, self.names(), &collected.tokens, shift);
        logprobs.into_value()
    }

    // ---- streams ----------------------------------------------------------------------------------------------------

    /// Answers with a stream. What fails before the first event is an ordinary error.
    pub async fn stream(self, mut choices: Choices) -> Result<Reply, ApiError> {
        let keep_alive = self.state.config.keep_alive;
        // The head is sent with the first event, or when the first comment is due.
        let mut scores = Vec::new();
        let first = loop {
            match timeout(keep_alive, choices.next()).await {
                None => break None,
                Some(None) => return Err(ApiError::internal()),
                Some(Some((_, ChoiceEvent::Prompt(chunk)))) => scores.extend(chunk.tokens),
                Some(Some(event)) => break Some(event),
            }
        };
        if let (1, Some((_, ChoiceEvent::End(end)))) =
            (self.prompts.len() * self.generation.n as usize, &first)
            && let Some(error) = total_failure(&[end.as_ref()])
        {
            return Err(error);
        }
        let (sender, chunks) = mpsc::channel(STREAM_CHUNKS);
        let report = self.report.clone();
        let task = tokio::spawn(async move {
            let mut writer = StreamWriter::new(self, scores);
            // An error of the channel means that the client has left.
            let _ = writer.run(choices, first, &sender).await;
        });
        let mut reply = event_stream(chunks, task);
        crate::reply::name_fields(&mut reply, &report);
        Ok(reply)
    }
}

async fn timeout<T>(after: Duration, future: impl Future<Output = T>) -> Option<T> {
    if after.is_zero() {
        Some(future.await)
    } else {
        tokio::time::timeout(after, future).await.ok()
    }
}

/// The client has left.
struct ClientGone;

/// Writes the events of one stream into a reused buffer.
struct StreamWriter {
    answer: Answer,
    /// `data: {"id":...,"choices":[`: equal for all chunks.
    prefix: String,
    buffer: String,
    begun: Vec<bool>,
    ends: Vec<Option<Box<ChoiceEnd>>>,
    scores: Vec<Vec<TokenLogprobs>>,
    counts: Vec<u32>,
    told_ignored: bool,
}

impl StreamWriter {
    fn new(answer: Answer, first_scores: Vec<TokenLogprobs>) -> Self {
        let count = answer.prompts.len() * answer.generation.n as usize;
        let object = if answer.api == Api::Chat {
            "chat.completion.chunk"
        } else {
            "text_completion"
        };
        let mut envelope = Value::from(answer.envelope(object)).to_string();
        envelope.pop(); // its closing brace
        let mut scores: Vec<Vec<TokenLogprobs>> = vec![Vec::new(); count];
        scores[0] = first_scores;
        StreamWriter {
            prefix: format!("data: {envelope},\"choices\":["),
            buffer: String::with_capacity(4096),
            begun: vec![false; count],
            ends: vec![None; count],
            counts: vec![0; count],
            scores,
            told_ignored: answer.report.ignored.is_empty(),
            answer,
        }
    }

    async fn run(
        &mut self,
        mut choices: Choices,
        first: Option<(usize, ChoiceEvent)>,
        out: &mpsc::Sender<Bytes>,
    ) -> Result<(), ClientGone> {
        let keep_alive = self.answer.state.config.keep_alive;
        let mut next = first;
        if next.is_none() {
            self.buffer.push_str(": keep-alive\n\n");
        }
        loop {
            while let Some((index, event)) = next.take() {
                self.take(index, event);
                next = choices.try_next();
            }
            self.flush(out).await?;
            match timeout(keep_alive, choices.next()).await {
                None => self.buffer.push_str(": keep-alive\n\n"),
                Some(None) => break,
                Some(event) => next = event,
            }
        }
        self.close();
        self.flush(out).await
    }

    async fn flush(&mut self, out: &mpsc::Sender<Bytes>) -> Result<(), ClientGone> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let chunk = Bytes::copy_from_slice(self.buffer.as_bytes());
        self.buffer.clear();
        out.send(chunk).await.map_err(|_| ClientGone)
    }

    fn take(&mut self, index: usize, event: ChoiceEvent) {
        match event {
            ChoiceEvent::Prompt(chunk) => self.scores[index].extend(chunk.tokens),
            ChoiceEvent::Delta(text, tokens) => {
                self.counts[index] += tokens.len() as u32;
                self.begin(index);
                let wants_tokens =
                    self.answer.logprobs.is_some() || self.answer.generation.return_token_ids;
                // Half a character or a possible stop string: nothing to show yet.
                if !text.is_empty() || (wants_tokens && !tokens.is_empty()) {
                    self.delta(index, &text, &tokens);
                }
            }
            ChoiceEvent::End(end) => {
                // A failed choice among others ends with `error`; a failed request has its event in `close`.
                if end.error.is_none() || self.ends.len() > 1 {
                    self.begin(index);
                    self.finish(index, &end);
                }
                self.ends[index] = Some(end);
            }
        }
    }

    /// What precedes a choice's first delta: the role chunk, or the echo.
    fn begin(&mut self, index: usize) {
        if std::mem::replace(&mut self.begun[index], true) {
            return;
        }
        let prompt_ids = self
            .answer
            .generation
            .return_token_ids
            .then(|| self.answer.prompt_of(index).ids.to_vec());
        match self.answer.api {
            Api::Chat => {
                let mut delta = json!({ "role": "assistant", "content": "" });
                if let Some(ids) = prompt_ids {
                    delta["prompt_token_ids"] = ids.into();
                }
                let choice = json!({ "index": index, "delta": delta, "logprobs": null, "finish_reason": null });
                self.chunk(&choice.to_string());
            }
            Api::Completions if self.answer.echo => {
                let prompt = self.answer.prompt_of(index);
                let mut logprobs = Value::Null;
                if self.answer.logprobs.is_some() {
                    let mut echoed = CompletionLogprobs::default();
                    echoed.push_prompt(
                        &self.answer.state.model.tokenizer,
                        self.answer.names(),
                        &prompt.ids,
                        &self.scores[index],
                    );
                    logprobs = echoed.into_value();
                }
                let mut choice = json!({ "index": index, "text": prompt.text, "logprobs": logprobs, "finish_reason": null });
                if let Some(ids) = prompt_ids {
                    choice["prompt_token_ids"] = ids.into();
                }
                self.chunk(&choice.to_string());
            }
            Api::Completions => {}
        }
    }

    fn delta(&mut self, index: usize, text: &str, tokens: &[ChoiceToken]) {
        let tokenizer = &self.answer.state.model.tokenizer;
        let names = self.answer.names();
        let logprobs = match (self.answer.logprobs, self.answer.api) {
            (None, _) => Value::Null,
            (Some(_), Api::Chat) => {
                json!({ "content": chat_content(tokenizer, names, tokens), "refusal": null })
            }
            (Some(_), Api::Completions) => {
                let shift = if self.answer.echo {
                    self.answer.prompt_of(index).text.chars().count() as u32
                } else {
                    0
                };
                let mut logprobs = CompletionLogprobs::default();
                logprobs.push_output(tokenizer, names, tokens, shift);
                logprobs.into_value()
            }
        };
        let content = Value::from(text);
        let mut choice = match self.answer.api {
            Api::Chat => format!("{{\"index\":{index},\"delta\":{{\"content\":{content}}}"),
            Api::Completions => format!("{{\"index\":{index},\"text\":{content}"),
        };
        // Writing to a String cannot fail.
        let _ = write!(choice, ",\"logprobs\":{logprobs},\"finish_reason\":null");
        if self.answer.generation.return_token_ids {
            let ids: Value = tokens.iter().map(|token| token.id).collect();
            let _ = write!(choice, ",\"token_ids\":{ids}");
        }
        choice.push('}');
        self.chunk(&choice);
    }

    fn finish(&mut self, index: usize, end: &ChoiceEnd) {
        let mut choice = match self.answer.api {
            Api::Chat => json!({ "index": index, "delta": {}, "logprobs": null }),
            Api::Completions => json!({ "index": index, "text": "", "logprobs": null }),
        };
        choice["finish_reason"] = end.finish_reason.into();
        choice["stop_reason"] = stop_value(&end.stop_reason);
        if let Some(error) = &end.error {
            choice["error"] = error_body(error, &self.answer.generation.request_id)["error"].take();
        }
        self.chunk(&choice.to_string());
    }

    fn chunk(&mut self, choice: &str) {
        self.buffer.push_str(&self.prefix);
        self.buffer.push_str(choice);
        self.buffer.push(']');
        if self.answer.generation.include_usage {
            let usage = if self.answer.generation.continuous_usage {
                self.usage_so_far()
            } else {
                Value::Null
            };
            let _ = write!(self.buffer, ",\"usage\":{usage}");
        }
        if !std::mem::replace(&mut self.told_ignored, true) {
            let _ = write!(
                self.buffer,
                ",\"ignored_fields\":{}",
                Value::from(self.answer.report.ignored.clone())
            );
        }
        self.buffer.push_str("}\n\n");
    }

    fn usage_so_far(&self) -> Value {
        let prompt: usize = self
            .answer
            .prompts
            .iter()
            .map(|prompt| prompt.ids.len())
            .sum();
        let completion: u32 = self.counts.iter().sum();
        json!({ "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion as usize })
    }

    /// What follows the last choice's end.
    fn close(&mut self) {
        let ends: Vec<&ChoiceEnd> = self.ends.iter().filter_map(Option::as_deref).collect();
        if let Some(error) = total_failure(&ends) {
            let _ = write!(
                self.buffer,
                "data: {}\n\n",
                error_body(&error, &self.answer.generation.request_id)
            );
        } else if self.answer.generation.include_usage {
            let n = self.answer.generation.n;
            let usage = usage(&ends, n, self.answer.state.config.prompt_tokens_details);
            let _ = write!(self.buffer, "{}],\"usage\":{usage}", self.prefix);
            if self.answer.generation.include_timings {
                let _ = write!(self.buffer, ",\"timings\":{}", timings(&ends, n));
            }
            self.buffer.push_str("}\n\n");
        }
        self.buffer.push_str("data: [DONE]\n\n");
    }
}

/// The error of a request all of whose choices failed, or whose deadline passed before any token.
fn total_failure(ends: &[&ChoiceEnd]) -> Option<ApiError> {
    let late = |end: &&ChoiceEnd| {
        end.stop_reason == StopReason::Word("deadline".to_owned()) && end.completion_tokens == 0
    };
    if !ends.is_empty() && ends.iter().all(late) {
        return Some(ApiError::deadline_exceeded());
    }
    let all_failed = !ends.is_empty() && ends.iter().all(|end| end.error.is_some());
    all_failed.then(|| ends[0].error.clone()).flatten()
}

fn stop_value(reason: &StopReason) -> Value {
    match reason {
        StopReason::None => Value::Null,
        StopReason::Word(word) => word.as_str().into(),
        StopReason::Id(id) => (*id).into(),
    }
}

/// `usage`: each prompt counts once, whatever n.
fn usage(ends: &[&ChoiceEnd], n: u32, details: bool) -> Value {
    let firsts = || ends.iter().step_by(n as usize);
    let prompt: u32 = firsts().map(|end| end.usage.prompt_tokens).sum();
    let cached: u32 = firsts().map(|end| end.usage.cached_tokens).sum();
    let completion: u32 = ends.iter().map(|end| end.completion_tokens).sum();
    let mut usage = json!({ "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion });
    if details {
        usage["prompt_tokens_details"] = json!({ "cached_tokens": cached });
    }
    usage
}

fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

/// `timings`: spans over all choices, counts summed.
fn timings(ends: &[&ChoiceEnd], n: u32) -> Value {
    let longest = |pick: fn(&ChoiceEnd) -> Duration| {
        ends.iter().map(|end| pick(end)).max().unwrap_or_default()
    };
    let sum = |pick: fn(&ChoiceEnd) -> u32| ends.iter().map(|end| pick(end)).sum::<u32>();
    let prompt: u32 = ends
        .iter()
        .step_by(n as usize)
        .map(|end| end.usage.prompt_tokens)
        .sum();
    let (prefill, decode) = (
        longest(|end| end.times.prefill),
        longest(|end| end.times.decode),
    );
    let completion = sum(|end| end.completion_tokens);
    let per_second = |count: u32, span: Duration| {
        if span.is_zero() {
            Value::Null
        } else {
            (f64::from(count) / span.as_secs_f64()).into()
        }
    };
    let gaps = ends
        .iter()
        .map(|end| end.completion_tokens.saturating_sub(1))
        .max()
        .unwrap_or(0);
    json!({
        "queue_ms": milliseconds(longest(|end| end.times.queue)),
        "prefill_ms": milliseconds(prefill),
        "decode_ms": milliseconds(decode),
        "total_ms": milliseconds(longest(|end| end.times.total)),
        "ttft_ms": ends.iter().filter_map(|end| end.times.ttft).min().map(milliseconds),
        "time_per_output_token_ms": (gaps > 0).then(|| milliseconds(decode / gaps)),
        "prompt_tokens": prompt,
        "cached_tokens": sum(|end| end.usage.cached_tokens),
        "computed_tokens": sum(|end| end.usage.computed_tokens),
        "recomputed_tokens": sum(|end| end.usage.recomputed_tokens),
        "preemptions": sum(|end| end.usage.preemptions),
        "completion_tokens": completion,
        "drafted_tokens": 0,
        "accepted_tokens": 0,
        "prompt_tokens_per_second": per_second(prompt, prefill),
        "tokens_per_second": per_second(completion, decode),
    })
}

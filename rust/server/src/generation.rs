//! The generation fields that completions and chat share: read, checked, defaults filled (http-surface.md 2.2, 2.9).

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use limits::{ApiError, ErrorKind, Ranged};
use serde_json::Value;

use crate::fields::{FieldReport, STREAM_OPTIONS, UnknownFields, sort_out};
use crate::json::{Object, Raw};
use crate::state::ServerState;

/// Below this a temperature is greedy.
const GREEDY_BELOW: f64 = 1e-5;

/// What the request's head brought along.
#[derive(Clone, Debug)]
pub struct HeadFacts {
    /// The body was complete then.
    pub arrival: Instant,
    /// The head was read then: deadlines count from here.
    pub head_read: Instant,
    /// `X-Request-Id`, or a generated id.
    pub request_id: String,
    /// The body's `request_id`, which wins; whoever makes the answer reads it here.
    pub body_request_id: Arc<OnceLock<String>>,
    /// `Proa-Deadline-Ms`.
    pub deadline_ms: Option<u64>,
    /// Policy for unknown fields, the header's word included.
    pub unknown_fields: UnknownFields,
}

impl HeadFacts {
    /// Makes a valid `request_id` of the body the one that the answer carries, an error's as well. A bad one is told
    /// in its turn, when the field is read.
    pub fn note_request_id(&self, body: &Object<'_>) {
        let sent = body.entries().find(|(name, _)| *name == "request_id");
        if let Some(Ok(id)) = sent.map(|(_, value)| value.string())
            && is_request_id(&id)
        {
            tracing::debug!(proxy_request_id = self.request_id, request_id = %id, "the body names the request");
            // It is set once: a body has one such field.
            let _ = self.body_request_id.set(id.into_owned());
        }
    }
}

/// Shared fields of a request, checked.
#[derive(Clone, Debug)]
pub struct Generation {
    /// Name the response uses.
    pub model: String,
    /// Id of the request, without prefix.
    pub request_id: String,
    /// 0 = greedy.
    pub temperature: f32,
    /// 1 = off.
    pub top_p: f32,
    /// 0 = off.
    pub top_k: u32,
    /// 0 = off.
    pub min_p: f32,
    /// 0 = off.
    pub presence_penalty: f32,
    /// 0 = off.
    pub frequency_penalty: f32,
    /// 1 = off.
    pub repetition_penalty: f32,
    /// None = to be drawn.
    pub seed: Option<i64>,
    /// Choices per prompt.
    pub n: u32,
    /// None = the route's default.
    pub max_tokens: Option<u32>,
    /// Output tokens before which nothing ends a choice.
    pub min_tokens: u32,
    /// Stop strings.
    pub stop: Vec<String>,
    /// Stop ids of the user.
    pub stop_token_ids: Vec<u32>,
    /// Whether what stopped is kept.
    pub include_stop: bool,
    /// Whether the model's end tokens do not stop.
    pub ignore_eos: bool,
    /// Whether special tokens are left out of the text.
    pub skip_special_tokens: bool,
    /// Ids and the values added to their logits.
    pub logit_bias: Vec<(u32, f32)>,
    /// None = all.
    pub allowed_token_ids: Option<Vec<u32>>,
    /// Word sequences that must not occur.
    pub bad_words: Vec<String>,
    /// None = none; -1 = the vocabulary.
    pub prompt_logprobs: Option<i32>,
    /// Lower runs first.
    pub priority: i64,
    /// Part of every block hash.
    pub cache_salt: Option<String>,
    /// When the request must have ended.
    pub deadline: Option<Instant>,
    /// Returned as it came.
    pub metadata: Option<Value>,
    /// Whether token ids are told.
    pub return_token_ids: bool,
    /// Whether logprob strings are `token_id:N`.
    pub tokens_as_ids: bool,
    /// Whether `timings` is told.
    pub include_timings: bool,
    /// Whether the answer is a stream.
    pub stream: bool,
    /// Whether a stream ends with a usage chunk.
    pub include_usage: bool,
    /// Whether every chunk has usage so far.
    pub continuous_usage: bool,
}

/// Largest k of logprobs the engine gives; -1 = the vocabulary.
pub fn logprobs_of(raw: &Raw<'_>, max_logprobs: i64) -> Result<i32, ApiError> {
    let flag = limits::MAX_LOGPROBS.flag;
    let whole = max_logprobs < 0;
    let (min, max) = if whole {
        (-1, i128::from(i32::MAX))
    } else {
        (0, i128::from(max_logprobs))
    };
    Ok(raw.integer(min, max, flag)? as i32)
}

impl Generation {
    /// Reads the shared fields out of a body whose unknown and refused fields have been sorted out.
    pub fn read(
        object: &mut Object<'_>,
        state: &ServerState,
        head: &HeadFacts,
        report: &mut FieldReport,
    ) -> Result<Self, ApiError> {
        let limits = &state.config.limits;
        let defaults = &state.model.defaults;
        let vocab = state.vocab_size();
        let model = object
            .take("model")
            .map(|raw| raw.string().map(|name| name.into_owned()))
            .transpose()?;
        let model = state.resolve_model(model.as_deref())?;
        let decimal = |object: &mut Object<'_>,
                       name: &str,
                       min: f64,
                       max: f64,
                       default: Option<f64>,
                       neutral: f64| {
            object
                .take(name)
                .map_or(Ok(default.unwrap_or(neutral)), |raw| raw.decimal(min, max))
        };
        let temperature = decimal(object, "temperature", 0.0, 2.0, defaults.temperature, 1.0)?;
        let top_p = decimal(object, "top_p", 0.0, 1.0, defaults.top_p, 1.0)?;
        let top_k = object
            .take("top_k")
            .map(|raw| raw.integer(-1, i128::from(i32::MAX), None))
            .transpose()?;
        let top_k = top_k
            .unwrap_or_else(|| i128::from(defaults.top_k.unwrap_or(0)))
            .max(0) as u32;
        let min_p = decimal(object, "min_p", 0.0, 1.0, defaults.min_p, 0.0)?;
        let presence_penalty = decimal(
            object,
            "presence_penalty",
            -2.0,
            2.0,
            defaults.presence_penalty,
            0.0,
        )?;
        let frequency_penalty = decimal(
            object,
            "frequency_penalty",
            -2.0,
            2.0,
            defaults.frequency_penalty,
            0.0,
        )?;
        let smallest = f64::from(f32::MIN_POSITIVE);
        let repetition_penalty = decimal(
            object,
            "repetition_penalty",
            smallest,
            100.0,
            defaults.repetition_penalty,
            1.0,
        )?;
        let seed = object
            .take("seed")
            .map(|raw| raw.integer(i128::from(i64::MIN), i128::from(i64::MAX), None))
            .transpose()?;
        let max_n = i128::from(limits.max_n);
        let n = object
            .take("n")
            .map_or(Ok(1), |raw| raw.integer(1, max_n, limits::MAX_N.flag))? as u32;
        let min_tokens = object
            .take("min_tokens")
            .map_or(Ok(0), |raw| raw.integer(0, i128::from(i32::MAX), None))?
            as u32;
        let max_tokens = object
            .take("max_tokens")
            .map(|raw| raw.integer(0, i128::from(i32::MAX), None))
            .transpose()?;
        let stream = bool_of(object, "stream", false)?;
        let options = read_stream_options(object, state, stream, head.unknown_fields, report)?;
        Ok(Generation {
            model,
            temperature: if temperature < GREEDY_BELOW {
                0.0
            } else {
                temperature as f32
            },
            top_p: top_p as f32,
            top_k,
            min_p: min_p as f32,
            presence_penalty: presence_penalty as f32,
            frequency_penalty: frequency_penalty as f32,
            repetition_penalty: repetition_penalty as f32,
            seed: seed.map(|seed| seed as i64).filter(|seed| *seed != -1),
            n,
            max_tokens: max_tokens.map(|tokens| tokens as u32),
            min_tokens,
            stop: read_stop(object, state)?,
            stop_token_ids: ids_of(
                object,
                "stop_token_ids",
                vocab,
                0,
                limits.max_stop_ids,
                limits::MAX_STOP_IDS.flag,
            )?
            .unwrap_or_default(),
            include_stop: bool_of(object, "include_stop_str_in_output", false)?,
            ignore_eos: bool_of(object, "ignore_eos", false)?,
            skip_special_tokens: bool_of(object, "skip_special_tokens", true)?,
            logit_bias: read_logit_bias(object, vocab, limits.max_logit_bias)?,
            allowed_token_ids: ids_of(
                object,
                "allowed_token_ids",
                vocab,
                1,
                i64::from(vocab),
                None,
            )?,
            bad_words: read_bad_words(object, limits.max_bad_words)?,
            prompt_logprobs: object
                .take("prompt_logprobs")
                .map(|raw| logprobs_of(&raw, limits.max_logprobs))
                .transpose()?,
            priority: read_priority(object, state)?,
            cache_salt: string_of(
                object,
                "cache_salt",
                1,
                limits::MAX_CACHE_SALT_BYTES.value(),
            )?,
            deadline: read_deadline(object, state, head)?,
            request_id: read_request_id(object)?.unwrap_or_else(|| head.request_id.clone()),
            metadata: read_metadata(object, limits.max_json_nodes)?,
            return_token_ids: bool_of(object, "return_token_ids", false)?,
            tokens_as_ids: bool_of(
                object,
                "return_tokens_as_token_ids",
                state.config.tokens_as_ids,
            )?,
            include_timings: bool_of(object, "include_timings", state.config.include_timings)?,
            stream,
            include_usage: options.0,
            continuous_usage: options.1,
        })
        .and_then(|generation| {
            for (name, max) in [
                ("user", limits::MAX_USER_BYTES.value()),
                ("safety_identifier", 128),
            ] {
                if let Some(user) = string_of(object, name, 0, max)? {
                    tracing::info!(request_id = generation.request_id, "{name}={user:?}");
                }
            }
            Ok(generation)
        })
    }

    /// Combinations that contradict each other (2.9); `scores_output` = output logprobs were asked for.
    pub fn check_combinations(
        &self,
        scores_output: bool,
        tokens_as_ids_asked: bool,
        echo: bool,
    ) -> Result<(), ApiError> {
        if self.prompt_logprobs.is_some() && self.stream {
            return Err(ApiError::incompatible(
                "prompt_logprobs",
                "stream",
                "the block would precede every chunk",
            ));
        }
        if let Some(max_tokens) = self.max_tokens {
            if self.min_tokens > max_tokens {
                return Err(ApiError::incompatible(
                    "min_tokens",
                    "max_tokens",
                    "it is the larger of the two",
                ));
            }
            if max_tokens == 0 && !echo && self.prompt_logprobs.is_none() {
                return Err(ApiError::incompatible(
                    "max_tokens",
                    "echo",
                    "0 tokens need 'echo' or 'prompt_logprobs'",
                ));
            }
        }
        if tokens_as_ids_asked && !scores_output && self.prompt_logprobs.is_none() {
            return Err(ApiError::incompatible(
                "return_tokens_as_token_ids",
                "logprobs",
                "there are no logprobs to name tokens in",
            ));
        }
        Ok(())
    }
}

pub(crate) fn bool_of(
    object: &mut Object<'_>,
    name: &str,
    default: bool,
) -> Result<bool, ApiError> {
    object.take(name).map_or(Ok(default), |raw| raw.boolean())
}

fn string_of(
    object: &mut Object<'_>,
    name: &str,
    min: usize,
    max: i64,
) -> Result<Option<String>, ApiError> {
    object
        .take(name)
        .map(|raw| {
            raw.string_of(min, max as usize, None)
                .map(|text| text.into_owned())
        })
        .transpose()
}

fn ids_of(
    object: &mut Object<'_>,
    name: &str,
    vocab: u32,
    min: usize,
    max: i64,
    flag: Option<&'static str>,
) -> Result<Option<Vec<u32>>, ApiError> {
    object
        .take(name)
        .map(|raw| raw.token_ids(vocab, min, max as usize, flag))
        .transpose()
}

fn read_stop(object: &mut Object<'_>, state: &ServerState) -> Result<Vec<String>, ApiError> {
    let Some(raw) = object.take("stop") else {
        return Ok(Vec::new());
    };
    let limits = &state.config.limits;
    let one = |raw: &Raw<'_>| {
        raw.string_of(
            1,
            limits.max_stop_bytes as usize,
            limits::MAX_STOP_BYTES.flag,
        )
        .map(|text| text.into_owned())
    };
    match raw.kind() {
        "a string" => Ok(vec![one(&raw)?]),
        "an array" => raw
            .array_of(
                0,
                limits.max_stop_strings as usize,
                limits::MAX_STOP_STRINGS.flag,
            )?
            .iter()
            .map(one)
            .collect(),
        _ => Err(raw.type_error("a string or an array of strings")),
    }
}

fn read_logit_bias(
    object: &mut Object<'_>,
    vocab: u32,
    max: i64,
) -> Result<Vec<(u32, f32)>, ApiError> {
    let Some(raw) = object.take("logit_bias") else {
        return Ok(Vec::new());
    };
    let entries = raw.object()?;
    if entries.len() > max as usize {
        return Err(ApiError::above(
            Ranged::Object,
            "logit_bias",
            entries.len(),
            max,
            limits::MAX_LOGIT_BIAS.flag,
        ));
    }
    let mut bias: Vec<(u32, f32)> = Vec::with_capacity(entries.len());
    for (key, value) in entries.entries() {
        let path = format!("logit_bias.{key}");
        let digits = key.strip_prefix('-').unwrap_or(key);
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(ApiError::invalid_value(&path, "the key is no token id"));
        }
        let id = key.parse::<i128>().unwrap_or(i128::MAX);
        let id = u32::try_from(id)
            .ok()
            .filter(|id| *id < vocab)
            .ok_or_else(|| ApiError::token_id_out_of_range(&path, id, vocab))?;
        let value = value.decimal(-100.0, 100.0)? as f32;
        if bias.iter().any(|(other, _)| *other == id) {
            return Err(ApiError::invalid_value(&path, "the id stands twice"));
        }
        bias.push((id, value));
    }
    Ok(bias)
}

fn read_bad_words(object: &mut Object<'_>, max: i64) -> Result<Vec<String>, ApiError> {
    let Some(raw) = object.take("bad_words") else {
        return Ok(Vec::new());
    };
    let words = raw.array_of(0, max as usize, limits::MAX_BAD_WORDS.flag)?;
    words
        .iter()
        .map(|word| {
            word.string_of(1, limits::MAX_STOP_BYTES.value() as usize, None)
                .map(|text| text.into_owned())
        })
        .collect()
}

fn read_priority(object: &mut Object<'_>, state: &ServerState) -> Result<i64, ApiError> {
    let Some(raw) = object.take("priority") else {
        return Ok(0);
    };
    let priority = raw.integer(i128::from(i64::MIN), i128::from(i64::MAX), None)? as i64;
    if priority != 0 && !state.config.priorities {
        let message = "'priority' is not supported under the policy fcfs; start the server with --scheduling-policy priority.";
        return Err(ApiError::not_supported(Some("priority"), message));
    }
    Ok(priority)
}

fn read_deadline(
    object: &mut Object<'_>,
    state: &ServerState,
    head: &HeadFacts,
) -> Result<Option<Instant>, ApiError> {
    let limits = &state.config.limits;
    let max_ms = limits.max_deadline_s.saturating_mul(1000);
    let asked = object
        .take("deadline_ms")
        .map(|raw| raw.integer(1, i128::from(max_ms), limits::MAX_DEADLINE_S.flag))
        .transpose()?;
    let default = limits
        .default_deadline_s
        .map(|seconds| seconds as u64 * 1000);
    let smallest = asked
        .map(|ms| ms as u64)
        .into_iter()
        .chain(head.deadline_ms)
        .min()
        .or(default);
    Ok(smallest.map(|ms| head.head_read + Duration::from_millis(ms)))
}

/// Whether `id` may be a request id: 1..256 visible ASCII characters.
pub fn is_request_id(id: &str) -> bool {
    (1..=limits::MAX_REQUEST_ID_BYTES.value() as usize).contains(&id.len())
        && id.bytes().all(|byte| byte.is_ascii_graphic())
}

fn read_request_id(object: &mut Object<'_>) -> Result<Option<String>, ApiError> {
    let Some(raw) = object.take("request_id") else {
        return Ok(None);
    };
    let id = raw.string_of(1, limits::MAX_REQUEST_ID_BYTES.value() as usize, None)?;
    if !is_request_id(&id) {
        return Err(ApiError::invalid_value(
            "request_id",
            "only visible ASCII characters are allowed",
        ));
    }
    Ok(Some(id.into_owned()))
}

/// At most 16 keys of 1..64 characters, string values of up to 512.
fn read_metadata(object: &mut Object<'_>, max_nodes: i64) -> Result<Option<Value>, ApiError> {
    let Some(raw) = object.take("metadata") else {
        return Ok(None);
    };
    let entries = raw.object()?;
    if entries.len() > 16 {
        return Err(ApiError::above(
            Ranged::Object,
            "metadata",
            entries.len(),
            16,
            None,
        ));
    }
    for (key, value) in entries.entries() {
        if key.is_empty() || key.chars().count() > 64 {
            return Err(ApiError::invalid_value(
                &format!("metadata.{key}"),
                "a key has 1 to 64 characters",
            ));
        }
        let length = value.string()?.chars().count();
        if length > 512 {
            return Err(ApiError::above(
                Ranged::String,
                value.path(),
                length,
                512,
                None,
            ));
        }
    }
    raw.tree(max_nodes as usize).map(Some)
}

/// (include_usage, continuous_usage_stats).
fn read_stream_options(
    object: &mut Object<'_>,
    state: &ServerState,
    stream: bool,
    unknown: UnknownFields,
    report: &mut FieldReport,
) -> Result<(bool, bool), ApiError> {
    let forced = state.config.force_include_usage;
    let Some(raw) = object.take("stream_options") else {
        return Ok((forced, false));
    };
    let mut options = raw.object()?;
    sort_out(&mut options, &[STREAM_OPTIONS], unknown, report)?;
    if !stream {
        return Err(ApiError::incompatible(
            "stream_options",
            "stream",
            "without 'stream: true' there is no stream",
        ));
    }
    let include_usage = bool_of(&mut options, "include_usage", forced)?;
    let continuous = bool_of(&mut options, "continuous_usage_stats", false)?;
    if continuous && !include_usage {
        let reason = "it needs 'include_usage'";
        return Err(ApiError::incompatible(
            "stream_options.continuous_usage_stats",
            "stream_options.include_usage",
            reason,
        ));
    }
    Ok((include_usage, continuous))
}

/// The error of a request that the context cannot hold.
pub fn check_context(
    param: &str,
    context: u32,
    prompt: usize,
    max_tokens: u32,
) -> Result<(), ApiError> {
    if prompt as u64 + u64::from(max_tokens) > u64::from(context) {
        return Err(ApiError::context_length(
            param,
            u64::from(context),
            prompt as u64,
            u64::from(max_tokens),
        ));
    }
    Ok(())
}

/// The error of a prompt without tokens.
pub fn empty_prompt(param: &str) -> ApiError {
    ApiError::new(
        ErrorKind::InvalidValue,
        format!("Invalid '{param}': the prompt has no tokens."),
    )
    .with_code("empty_prompt")
    .with_param(param)
}

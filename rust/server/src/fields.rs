//! Which fields each route knows, and what becomes of them: the one table behind the validators and /v1/capabilities.
//!
//! There are three classes and no fourth: honoured, inert (accepted, because nothing a client can observe depends on
//! it), refused (except for neutral values, which ask for nothing).

use limits::{ApiError, nearest_name};

use crate::json::{Object, Raw};

/// Values of a refused field that ask for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neutral {
    /// None but null.
    Nothing,
    /// `false`, `0`, `""`, `[]` or `{}`.
    Empty,
    /// `["text"]`.
    TextOnly,
    /// A number equal to `n`, or 1 without it.
    SameAsN,
    /// `{"type":"text"}`.
    PlainText,
    /// `auto`, `default`.
    AnyTier,
}

/// What becomes of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Does what its row says.
    Honoured,
    /// Accepted and named in `Proa-Inert-Fields`; the reason.
    Inert(&'static str),
    /// 400 `not_supported`, the reason; neutral values pass.
    Refused(Neutral, &'static str),
}

/// A field of a route.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// What becomes of it.
    pub class: Class,
}

const fn honoured(name: &'static str) -> Field {
    Field {
        name,
        class: Class::Honoured,
    }
}

const fn inert(name: &'static str, reason: &'static str) -> Field {
    Field {
        name,
        class: Class::Inert(reason),
    }
}

const fn refused(name: &'static str, neutral: Neutral, reason: &'static str) -> Field {
    Field {
        name,
        class: Class::Refused(neutral, reason),
    }
}

const LATER: &str = "it is planned for a later release";
const NEVER: &str = "this server does not offer it";
const GRAMMAR: &str = "structured output is not built yet";
const BEAMS: &str = "beam search is not built yet";
const TOOLS: &str = "tool calling is not built yet";

/// Generation fields of completions and chat (http-surface.md 2.2).
pub const SHARED: &[Field] = &[
    honoured("model"),
    honoured("temperature"),
    honoured("top_p"),
    honoured("top_k"),
    honoured("min_p"),
    honoured("presence_penalty"),
    honoured("frequency_penalty"),
    honoured("repetition_penalty"),
    honoured("seed"),
    honoured("n"),
    refused("best_of", Neutral::SameAsN, NEVER),
    honoured("min_tokens"),
    honoured("max_tokens"),
    honoured("stop"),
    honoured("stop_token_ids"),
    honoured("include_stop_str_in_output"),
    honoured("ignore_eos"),
    honoured("skip_special_tokens"),
    inert(
        "spaces_between_special_tokens",
        "tokens are put together byte by byte, so no blanks are added or left out",
    ),
    honoured("logit_bias"),
    honoured("allowed_token_ids"),
    honoured("bad_words"),
    honoured("prompt_logprobs"),
    refused("logprob_token_ids", Neutral::Nothing, LATER),
    refused("use_beam_search", Neutral::Empty, BEAMS),
    refused("length_penalty", Neutral::SameAsN, BEAMS),
    refused("early_stopping", Neutral::Empty, BEAMS),
    refused("structured_outputs", Neutral::Nothing, GRAMMAR),
    refused("response_format", Neutral::PlainText, GRAMMAR),
    honoured("priority"),
    honoured("cache_salt"),
    honoured("deadline_ms"),
    honoured("request_id"),
    honoured("user"),
    honoured("safety_identifier"),
    honoured("metadata"),
    honoured("return_token_ids"),
    honoured("return_tokens_as_token_ids"),
    honoured("include_timings"),
    honoured("stream"),
    honoured("stream_options"),
    refused("stream_interval", Neutral::SameAsN, LATER),
    refused("truncate_prompt_tokens", Neutral::Nothing, LATER),
    refused("truncation_side", Neutral::Nothing, LATER),
    refused("session_id", Neutral::Nothing, LATER),
    refused("repetition_detection", Neutral::Nothing, LATER),
    refused("thinking_token_budget", Neutral::Nothing, LATER),
    inert(
        "prompt_cache_key",
        "the prefix cache is keyed by content, so reuse needs no hint",
    ),
    inert("prompt_cache_retention", "retention is never promised"),
    inert(
        "prompt_cache_options",
        "the prefix cache is keyed by content, so reuse needs no hint",
    ),
    refused("service_tier", Neutral::AnyTier, "one tier exists"),
    refused("store", Neutral::Empty, NEVER),
    refused("kv_transfer_params", Neutral::Nothing, LATER),
    refused("logits_processors", Neutral::Empty, NEVER),
    refused("vllm_xargs", Neutral::Empty, NEVER),
    refused("ec_transfer_params", Neutral::Empty, NEVER),
    refused("prompt_embeds", Neutral::Empty, NEVER),
    refused("documents", Neutral::Empty, NEVER),
    refused("mm_processor_kwargs", Neutral::Empty, NEVER),
    refused("media_io_kwargs", Neutral::Empty, NEVER),
    refused("watermarking", Neutral::Empty, NEVER),
    refused("routed_experts_prompt_start", Neutral::Empty, NEVER),
    refused("return_prompt_text", Neutral::Empty, NEVER),
    refused("moderation", Neutral::Empty, NEVER),
    refused("return_token_offsets", Neutral::Empty, NEVER),
    refused("mm_payload", Neutral::Empty, NEVER),
    refused("return_mm_kwargs", Neutral::Empty, NEVER),
];

/// Fields of completions alone (2.3).
pub const COMPLETIONS: &[Field] = &[
    honoured("prompt"),
    honoured("echo"),
    honoured("logprobs"),
    honoured("add_special_tokens"),
    refused("suffix", Neutral::Empty, NEVER),
];

/// Fields of chat alone (2.4).
pub const CHAT: &[Field] = &[
    honoured("messages"),
    honoured("max_completion_tokens"),
    honoured("logprobs"),
    honoured("top_logprobs"),
    refused("tools", Neutral::Nothing, TOOLS),
    refused("tool_choice", Neutral::Nothing, TOOLS),
    inert("parallel_tool_calls", "without tools no call can occur"),
    refused(
        "reasoning_effort",
        Neutral::Nothing,
        "the model's template reads no reasoning effort",
    ),
    refused(
        "include_reasoning",
        Neutral::Nothing,
        "reasoning parsers are not built yet",
    ),
    refused(
        "verbosity",
        Neutral::Nothing,
        "the model's template reads no verbosity",
    ),
    honoured("chat_template_kwargs"),
    refused(
        "chat_template",
        Neutral::Nothing,
        "templates in requests are planned for a later release",
    ),
    honoured("continue_final_message"),
    honoured("add_generation_prompt"),
    honoured("add_special_tokens"),
    inert("prediction", "a hint for speed; nothing is predicted"),
    refused("echo", Neutral::Empty, NEVER),
    refused("modalities", Neutral::TextOnly, NEVER),
    refused("audio", Neutral::Nothing, NEVER),
    refused("web_search_options", Neutral::Nothing, NEVER),
    refused("functions", Neutral::Empty, "use 'tools'"),
    refused("function_call", Neutral::Nothing, "use 'tool_choice'"),
];

/// Fields of `stream_options`.
pub const STREAM_OPTIONS: &[Field] = &[
    honoured("include_usage"),
    honoured("continuous_usage_stats"),
    refused(
        "include_progress",
        Neutral::Empty,
        "progress comments are not built yet",
    ),
    refused("resumable", Neutral::Empty, LATER),
    refused("include_obfuscation", Neutral::Empty, NEVER),
];

/// Fields of /tokenize.
pub const TOKENIZE: &[Field] = &[
    honoured("model"),
    honoured("prompt"),
    honoured("messages"),
    refused("tools", Neutral::Empty, TOOLS),
    honoured("add_generation_prompt"),
    honoured("continue_final_message"),
    honoured("add_special_tokens"),
    honoured("chat_template_kwargs"),
    honoured("return_token_strs"),
];

/// Fields of /detokenize.
pub const DETOKENIZE: &[Field] = &[
    honoured("model"),
    honoured("tokens"),
    honoured("skip_special_tokens"),
];

/// Names of other servers for fields of ours.
const FOREIGN: &[(&str, &str)] = &[
    ("n_predict", "max_tokens"),
    ("max_new_tokens", "max_tokens"),
    ("min_new_tokens", "min_tokens"),
    ("repeat_penalty", "repetition_penalty"),
    ("rid", "request_id"),
    ("no_stop_trim", "include_stop_str_in_output"),
    ("separate_reasoning", "include_reasoning"),
    ("return_progress", "stream_options.include_progress"),
    ("guided_json", "structured_outputs.json"),
    ("guided_regex", "structured_outputs.regex"),
    ("guided_choice", "structured_outputs.choice"),
    ("guided_grammar", "structured_outputs.grammar"),
    (
        "guided_whitespace_pattern",
        "structured_outputs.whitespace_pattern",
    ),
];

/// Unknown fields that are refused even under `Proa-Unknown-Fields: report`: skipping them changes what the output means.
const NEVER_RELAXED: &[&str] = &[
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "guided_decoding_backend",
    "guided_whitespace_pattern",
    "grammar",
    "json_schema",
    "regex",
    "ebnf",
    "structural_tag",
    "stop_regex",
];

/// What happens to unknown fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownFields {
    /// 400.
    #[default]
    Error,
    /// Skipped and named in the reply.
    Report,
}

/// Fields of one request that did nothing, to be named in the reply.
#[derive(Clone, Debug, Default)]
pub struct FieldReport {
    /// Paths of inert fields that were sent.
    pub inert: Vec<String>,
    /// Paths of unknown fields that were skipped.
    pub ignored: Vec<String>,
}

/// Sorts out the fields of an object: unknown ones are refused or reported, inert ones reported, refused ones refused
/// unless neutral. What is left is honoured.
pub fn sort_out(
    object: &mut Object<'_>,
    known: &[&[Field]],
    unknown: UnknownFields,
    report: &mut FieldReport,
) -> Result<(), ApiError> {
    let find = |name: &str| {
        known
            .iter()
            .flat_map(|fields| fields.iter())
            .find(|field| field.name == name)
    };
    let mut first_error = None;
    for (name, value) in object.entries() {
        if find(name).is_some() {
            continue;
        }
        let path = object.path_of(name);
        if value.is_null() || (unknown == UnknownFields::Report && !NEVER_RELAXED.contains(&name)) {
            report.ignored.push(path);
        } else {
            let names = known
                .iter()
                .flat_map(|fields| fields.iter())
                .map(|field| field.name);
            let foreign = FOREIGN
                .iter()
                .find(|(theirs, _)| *theirs == name)
                .map(|(_, ours)| *ours);
            let hint = foreign.or_else(|| nearest_name(name, names));
            first_error = first_error.or(Some(ApiError::unknown_field(&path, hint)));
        }
    }
    if let Some(error) = first_error {
        return Err(error);
    }
    let n = object
        .entries()
        .find(|(name, _)| *name == "n")
        .map_or("1", |(_, value)| value.text())
        .to_owned();
    for (name, value) in object.entries() {
        if value.is_null() {
            continue;
        }
        match find(name).map(|field| field.class) {
            Some(Class::Inert(_)) => report.inert.push(object.path_of(name)),
            Some(Class::Refused(neutral, reason)) if !is_neutral(value, neutral, &n) => {
                let message = format!("'{}' is not supported: {reason}.", object.path_of(name));
                return Err(ApiError::not_supported(
                    Some(&object.path_of(name)),
                    message,
                ));
            }
            _ => {}
        }
    }
    object.retain(|name, _| find(name).is_some_and(|field| field.class == Class::Honoured));
    Ok(())
}

fn is_neutral(value: &Raw<'_>, neutral: Neutral, n: &str) -> bool {
    let text: String = value
        .text()
        .chars()
        .filter(|c| !c.is_ascii_whitespace())
        .collect();
    match neutral {
        Neutral::Nothing => false,
        Neutral::Empty => matches!(text.as_str(), "false" | "0" | "0.0" | "\"\"" | "[]" | "{}"),
        Neutral::TextOnly => text == "[\"text\"]",
        Neutral::SameAsN => text == n || text == "1" && n == "1" || text == "1.0",
        Neutral::PlainText => text == "{\"type\":\"text\"}",
        Neutral::AnyTier => matches!(text.as_str(), "\"auto\"" | "\"default\""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::check;

    fn sort(body: &str, unknown: UnknownFields) -> Result<FieldReport, ApiError> {
        let mut object = Raw::root(check(body.as_bytes(), 128)?).object()?;
        let mut report = FieldReport::default();
        sort_out(&mut object, &[SHARED, COMPLETIONS], unknown, &mut report)?;
        Ok(report)
    }

    #[test]
    fn unknown_names_get_a_hint() {
        let error = sort(r#"{"prompt":"a","temprature":1}"#, UnknownFields::Error).unwrap_err();
        assert_eq!(error.code, "unknown_parameter");
        assert!(
            error.message.contains("Did you mean 'temperature'?"),
            "{}",
            error.message
        );
        let error = sort(r#"{"guided_json":{}}"#, UnknownFields::Report).unwrap_err();
        assert!(error.message.contains("structured_outputs.json"));
        let error = sort(r#"{"n_predict":4}"#, UnknownFields::Error).unwrap_err();
        assert!(error.message.contains("'max_tokens'"));
    }

    #[test]
    fn reported_inert_and_null_fields_are_named() {
        let report = sort(
            r#"{"foo":null,"bar":1,"prompt_cache_key":"x"}"#,
            UnknownFields::Report,
        )
        .unwrap();
        assert_eq!(
            (report.inert, report.ignored),
            (
                vec!["prompt_cache_key".to_owned()],
                vec!["foo".to_owned(), "bar".to_owned()]
            )
        );
    }

    #[test]
    fn refused_fields_pass_with_neutral_values_only() {
        for body in [
            r#"{"suffix":""}"#,
            r#"{"store":false}"#,
            r#"{"n":2,"best_of":2}"#,
            r#"{"response_format":{"type":"text"}}"#,
            r#"{"service_tier":"auto"}"#,
        ] {
            assert!(sort(body, UnknownFields::Error).is_ok(), "{body}");
        }
        for body in [
            r#"{"suffix":"x"}"#,
            r#"{"store":true}"#,
            r#"{"n":2,"best_of":3}"#,
            r#"{"use_beam_search":true}"#,
            r#"{"service_tier":"flex"}"#,
        ] {
            assert_eq!(
                sort(body, UnknownFields::Error).unwrap_err().code,
                "not_supported",
                "{body}"
            );
        }
    }

    #[test]
    fn no_name_stands_twice_in_a_route() {
        for table in [[SHARED, COMPLETIONS], [SHARED, CHAT]] {
            let mut names: Vec<_> = table
                .iter()
                .flat_map(|fields| fields.iter())
                .map(|field| field.name)
                .collect();
            names.sort_unstable();
            assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
        }
    }
}

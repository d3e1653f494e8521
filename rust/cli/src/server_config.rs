//! The settings as the server and the engine's client want them.
//!
//! Reads settings by name and converts units; decides nothing.

use std::ffi::OsString;
use std::time::Duration;

use engine_client::{ClientConfig, EngineCommand};
use limits::{LIMITS, LimitValues};
use server::{ServerConfig, UnknownFields};

use crate::engine_command::CONFIG_FD;
use crate::python::Python;
use crate::report::Phases;
use crate::settings::Settings;

/// Text threads when none are asked for: as many as cores, but few, because tokenising is short.
const MAX_AUTO_TEXT_WORKERS: usize = 4;

/// What the server is told.
pub fn server_config(
    settings: &Settings,
    served_names: Vec<String>,
    fingerprint: String,
    phases: &Phases,
) -> ServerConfig {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let workers = settings
        .count("text_workers")
        .map(|count| count.unsigned_abs() as usize);
    let startup = phases
        .ended()
        .iter()
        .map(|(phase, took)| serde_json::json!({"phase": phase, "ms": took.as_secs_f64() * 1e3}))
        .collect();
    ServerConfig {
        served_names,
        unknown_fields: match settings.text("unknown_fields") {
            Some("report") => UnknownFields::Report,
            _ => UnknownFields::Error,
        },
        priorities: settings.text("scheduling_policy") == Some("priority"),
        // The request's seed field is signed as well: the bits are what counts.
        seed: settings.count("seed").map(|seed| seed as u64),
        keep_alive: Duration::from_secs(
            settings
                .count("sse_keep_alive_interval")
                .unwrap_or(15)
                .unsigned_abs(),
        ),
        prompt_tokens_details: settings.switch("enable_prompt_tokens_details"),
        force_include_usage: settings.switch("enable_force_include_usage"),
        include_timings: settings.switch("enable_per_request_metrics"),
        tokens_as_ids: settings.switch("return_tokens_as_token_ids"),
        shutdown_timeout: Duration::from_secs_f64(settings.number("shutdown_timeout")),
        fingerprint,
        startup: serde_json::Value::Array(startup),
        text_workers: workers.unwrap_or(cores.min(MAX_AUTO_TEXT_WORKERS)),
        limits: limit_values(settings),
    }
}

/// Every limit that has a flag, with the value in force.
pub fn limit_values(settings: &Settings) -> LimitValues {
    let mut values = LimitValues::default();
    for limit in LIMITS.iter().filter(|limit| limit.flag.is_some()) {
        // -1 of the context means that memory decides, which is the unset value.
        let given = settings
            .count(limit.name)
            .filter(|value| limit.check(*value).is_ok());
        if let Some(value) = given {
            values.store(limit.name, value);
        }
    }
    values
}

/// The engine reads its level from the environment, in Python's words.
pub fn engine_log_level(settings: &Settings) -> (OsString, OsString) {
    let level = match settings.text("log_level").unwrap_or("info") {
        "trace" => "debug",
        "warn" => "warning",
        other => other,
    };
    ("PROA_LOG_LEVEL".into(), level.into())
}

/// What the engine's client is told: how to start the engine, and when to give it up.
pub fn client_config(
    settings: &Settings,
    python: &Python,
    document: String,
    tokenizer_vocab_size: u32,
) -> ClientConfig {
    let arguments = ["-m", "proa.engine", "--config-fd", &CONFIG_FD.to_string()];
    let limit = |name: &str| {
        settings
            .count(name)
            .map(|value| value.unsigned_abs() as usize)
    };
    ClientConfig {
        command: Some(EngineCommand {
            program: python.program().into(),
            arguments: arguments.iter().map(Into::into).collect(),
            environment: vec![engine_log_level(settings)],
            document,
        }),
        start_timeout: Duration::from_secs_f64(settings.number("engine_start_timeout_s")),
        watchdog: Duration::from_secs_f64(settings.number("watchdog_s")),
        max_restarts: settings
            .count("max_engine_restarts")
            .unwrap_or(5)
            .unsigned_abs() as u32,
        tokenizer_vocab_size,
        max_queued_requests: limit("max_num_queued_reqs").unwrap_or(2048),
        max_queued_tokens: limit("max_num_queued_tokens"),
        max_stream_queue: limit("max_stream_queue").unwrap_or(256),
        ..ClientConfig::default()
    }
}

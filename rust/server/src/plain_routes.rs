//! Routes without a request body: models, probes, version, metrics, capabilities, block audit.

use std::sync::Arc;

use engine_client::EngineState;
use hyper::StatusCode;
use limits::{ApiError, LIMITS};
use metrics::Format;
use serde_json::{Map, Value, json};

use crate::fields::{
    CHAT, COMPLETIONS, Class, DETOKENIZE, Field, SHARED, STREAM_OPTIONS, TOKENIZE,
};
use crate::reply::{Reply, full, json_reply};
use crate::state::{ServerState, unix_now};

/// The revision this was built from.
const COMMIT: &str = match option_env!("PROA_COMMIT") {
    Some(commit) => commit,
    None => "unknown",
};

/// GET /v1/models.
pub fn models(state: &ServerState, started: u64) -> Reply {
    let data: Vec<Value> = state
        .config
        .served_names
        .iter()
        .map(|name| model_entry(state, name, started))
        .collect();
    json_reply(StatusCode::OK, &json!({ "object": "list", "data": data }))
}

/// GET /v1/models/{id}.
pub fn model(state: &ServerState, name: &str, started: u64) -> Result<Reply, ApiError> {
    let name = state.resolve_model(Some(name))?;
    Ok(json_reply(
        StatusCode::OK,
        &model_entry(state, &name, started),
    ))
}

fn model_entry(state: &ServerState, name: &str, started: u64) -> Value {
    json!({
        "id": name,
        "object": "model",
        "created": started,
        "owned_by": "proa",
        "root": state.config.served_names[0],
        "parent": null,
        "max_model_len": state.max_model_len(),
    })
}

/// The engine's state as one word.
fn status_word(state: &ServerState) -> &'static str {
    if state.is_draining() {
        return "draining";
    }
    match state.engine.status().state {
        EngineState::Loading { .. } => "starting",
        EngineState::Ready => "ready",
        EngineState::Stale => "stale",
        EngineState::Restarting { .. } => "restarting",
        EngineState::Failed(_) => "failed",
        EngineState::Stopping => "draining",
    }
}

/// GET /health: the front end serves and the engine has not been given up.
pub fn health(state: &ServerState) -> Reply {
    let failed = matches!(state.engine.status().state, EngineState::Failed(_));
    let status = if failed {
        StatusCode::SERVICE_UNAVAILABLE
    } else {
        StatusCode::OK
    };
    json_reply(status, &json!({ "status": status_word(state) }))
}

/// GET /ready: a model answers.
pub fn ready(state: &ServerState) -> Reply {
    let engine = state.engine.status();
    if engine.state == EngineState::Ready && !state.is_draining() {
        return json_reply(StatusCode::OK, &json!({ "status": "ready" }));
    }
    let (phase, progress) = match &engine.state {
        EngineState::Loading { phase, progress } => {
            (Value::from(phase.as_str()), Value::from(*progress))
        }
        _ => (Value::Null, Value::Null),
    };
    let body = json!({ "status": status_word(state), "phase": phase, "progress": progress });
    let mut reply = json_reply(StatusCode::SERVICE_UNAVAILABLE, &body);
    if let Some(ms) = engine.refusal().and_then(|error| error.retry_after_ms) {
        reply.headers_mut().insert(
            hyper::header::RETRY_AFTER,
            ms.div_ceil(1000).clamp(1, 60).into(),
        );
    }
    reply
}

/// GET /version.
pub fn version() -> Reply {
    json_reply(
        StatusCode::OK,
        &json!({ "version": env!("CARGO_PKG_VERSION"), "commit": COMMIT, "api": 1 }),
    )
}

/// GET /metrics.
pub fn metrics(state: &ServerState, accept: Option<&str>) -> Reply {
    let format = Format::of_accept(accept);
    full(
        StatusCode::OK,
        format.content_type(),
        state.metrics.render(format),
    )
}

/// POST /v1/block_audit.
pub async fn block_audit(state: Arc<ServerState>) -> Result<Reply, ApiError> {
    let counts = json_of(
        &state
            .engine
            .utility("block_audit", wire::Map::default())
            .await?,
    );
    let mut entry = json!({ "engine": 0 });
    if let (Value::Object(entry), Value::Object(counts)) = (&mut entry, counts) {
        entry.extend(counts);
    }
    Ok(json_reply(StatusCode::OK, &json!({ "engines": [entry] })))
}

/// A wire value as JSON; bytes become their length, since no route shows them.
pub fn json_of(value: &wire::Value) -> Value {
    match value {
        wire::Value::Nil => Value::Null,
        wire::Value::Bool(truth) => (*truth).into(),
        wire::Value::Int(int) => {
            i64::try_from(*int).map_or_else(|_| Value::from(int.to_string()), Value::from)
        }
        wire::Value::Float(float) => (*float).into(),
        wire::Value::Str(text) => text.as_str().into(),
        wire::Value::Bin(bytes) => json!({ "bytes": bytes.len() }),
        wire::Value::List(items) => items.iter().map(json_of).collect(),
        wire::Value::Map(map) => map_of(map),
    }
}

fn map_of(map: &wire::Map) -> Value {
    Value::Object(
        map.0
            .iter()
            .map(|(key, value)| (key.clone(), json_of(value)))
            .collect(),
    )
}

fn field_table(tables: &[&[Field]]) -> Value {
    let entry = |field: &Field| {
        let value = match field.class {
            Class::Honoured => json!({ "class": "honoured" }),
            Class::Inert(reason) => json!({ "class": "inert", "reason": reason }),
            Class::Refused(_, reason) => {
                json!({ "class": "refused", "code": "not_supported", "reason": reason })
            }
        };
        (field.name.to_owned(), value)
    };
    Value::Object(
        tables
            .iter()
            .flat_map(|fields| fields.iter())
            .map(entry)
            .collect(),
    )
}

/// GET /v1/capabilities: fields by route, limits, the start-up report, the engine's choices with reasons.
pub fn capabilities(state: &ServerState) -> Reply {
    let route = |tables: &[&[Field]]| json!({ "methods": ["POST"], "role": "user", "fields": field_table(tables) });
    let routes = json!({
        "/v1/completions": route(&[SHARED, COMPLETIONS]),
        "/v1/chat/completions": route(&[SHARED, CHAT]),
        "/tokenize": route(&[TOKENIZE]),
        "/detokenize": route(&[DETOKENIZE]),
    });
    let limits: Map<String, Value> = LIMITS
        .iter()
        .map(|limit| {
            let entry = json!({ "value": state.config.limits.get(limit.name), "flag": limit.flag, "unit": limit.unit });
            (limit.name.to_owned(), entry)
        })
        .collect();
    let engine = state.engine.facts().map_or(Value::Null, |facts| {
        json!({
            "version": facts.engine_version,
            "device": facts.device,
            "max_model_len": facts.max_model_len,
            "vocab_size": facts.vocab_size,
            "block_size": facts.block_size,
            "num_blocks": facts.num_blocks,
            "max_num_seqs": facts.max_num_seqs,
            "max_num_batched_tokens": facts.max_num_batched_tokens,
            "max_logprobs": facts.max_logprobs,
            "cache_dtype": facts.cache.cache_dtype,
            "prefix_caching": facts.cache.enable_prefix_caching,
            "features": facts.capabilities.iter().map(|(name, c)| (name.clone(), json!({ "ok": c.ok, "reason": c.reason }))).collect::<Map<_, _>>(),
        })
    });
    let chat = state.model.template.as_ref().map_or_else(
        || json!({ "ok": false, "reason": "the model has no chat template" }),
        |template| json!({ "ok": true, "template": template.origin(), "variables": template.variables() }),
    );
    let facts = state.engine.facts();
    let kernels: Vec<Value> = facts
        .iter()
        .flat_map(|facts| facts.kernels.iter().map(map_of))
        .collect();
    let mut startup = state.config.startup.as_array().cloned().unwrap_or_default();
    startup.extend(
        facts
            .iter()
            .flat_map(|facts| facts.startup.iter().map(map_of)),
    );
    let body = json!({
        "object": "capabilities",
        "proa": { "version": env!("CARGO_PKG_VERSION"), "commit": COMMIT, "release": 0 },
        "model": {
            "id": state.config.served_names[0],
            "root": state.config.served_names[0],
            "architecture": state.model.config.architecture,
            "vocab_size": state.vocab_size(),
            "max_model_len": state.max_model_len(),
            "input": ["text"],
            "output": ["text"],
        },
        "time": unix_now(),
        "routes": routes,
        "stream_options": field_table(&[STREAM_OPTIONS]),
        "limits": limits,
        "chat": chat,
        "engine": engine,
        "kernels": kernels,
        "startup": startup,
        "exclusions": [{
            "fields": ["prompt_logprobs", "stream"],
            "reason": "the block would precede every chunk",
        }],
    });
    json_reply(StatusCode::OK, &body)
}

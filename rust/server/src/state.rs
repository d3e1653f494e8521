//! What every route of a server can see.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use chat::ChatTemplate;
use engine_client::EngineClient;
use limits::{ApiError, LimitValues};
use metrics::Metrics;
use model_files::{GenerationDefaults, ModelConfig};
use serde_json::Value;
use text::Tokenizer;

use crate::fields::UnknownFields;
use crate::text_pool::TextPool;

/// What the server is told once.
#[derive(Debug)]
pub struct ServerConfig {
    /// Accepted model names; the first is echoed.
    pub served_names: Vec<String>,
    /// Policy for unknown fields.
    pub unknown_fields: UnknownFields,
    /// Whether `priority` may be used.
    pub priorities: bool,
    /// Seed of requests without one: this plus the arrival number; None = from the OS.
    pub seed: Option<u64>,
    /// Silence after which a stream gets a comment; zero = never.
    pub keep_alive: Duration,
    /// Whether `cached_tokens` is told.
    pub prompt_tokens_details: bool,
    /// Whether `usage` comes in every stream.
    pub force_include_usage: bool,
    /// Default of `include_timings`.
    pub include_timings: bool,
    /// Default of `return_tokens_as_token_ids`.
    pub tokens_as_ids: bool,
    /// Time that open requests have after the signal to end.
    pub shutdown_timeout: Duration,
    /// `fp` part of `system_fingerprint`: `proa-VERSION-HASH8`.
    pub fingerprint: String,
    /// The front end's part of the start-up report, for /v1/capabilities.
    pub startup: Value,
    /// Threads of the text pool.
    pub text_workers: usize,
    /// Effective limits.
    pub limits: LimitValues,
}

/// The model as the front end sees it.
#[derive(Debug)]
pub struct ServedModel {
    /// Text to ids and back.
    pub tokenizer: Tokenizer,
    /// None = the model has no chat template: chat is refused.
    pub template: Option<ChatTemplate>,
    /// Shape.
    pub config: ModelConfig,
    /// Sampling defaults in force (neutral under `--generation-config none`).
    pub defaults: GenerationDefaults,
}

/// Shared by all connections.
#[derive(Debug)]
pub struct ServerState {
    /// Configuration.
    pub config: ServerConfig,
    /// The model.
    pub model: Arc<ServedModel>,
    /// The engine.
    pub engine: EngineClient,
    /// All series.
    pub metrics: Arc<Metrics>,
    /// Threads for text.
    pub text: TextPool,
    draining: AtomicBool,
    arrivals: AtomicU64,
}

impl ServerState {
    /// The state of a server that has not begun to listen.
    pub fn new(
        config: ServerConfig,
        model: ServedModel,
        engine: EngineClient,
        metrics: Arc<Metrics>,
    ) -> std::io::Result<Self> {
        let text = TextPool::new(config.text_workers, limits::MAX_TEXT_JOBS.value() as usize)?;
        Ok(ServerState {
            config,
            model: Arc::new(model),
            engine,
            metrics,
            text,
            draining: AtomicBool::new(false),
            arrivals: AtomicU64::new(0),
        })
    }

    /// Whether the server is ending.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    pub(crate) fn start_draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
        self.engine.refuse_new();
    }

    /// Context in force: the engine's once it is ready, the model's own before.
    pub fn max_model_len(&self) -> u32 {
        self.engine.facts().map_or_else(
            || u32::try_from(self.model.config.context_length).unwrap_or(u32::MAX),
            |facts| facts.max_model_len,
        )
    }

    /// Ids a request may name.
    pub fn vocab_size(&self) -> u32 {
        self.model.tokenizer.num_ids()
    }

    /// The name a request is answered under.
    pub fn resolve_model(&self, name: Option<&str>) -> Result<String, ApiError> {
        match name {
            None => Ok(self.config.served_names[0].clone()),
            Some(name) if self.config.served_names.iter().any(|served| served == name) => {
                Ok(name.to_owned())
            }
            Some(name) => Err(ApiError::model_not_found(name, &self.config.served_names)),
        }
    }

    /// A seed for a request that has none.
    pub fn draw_seed(&self) -> Result<i64, ApiError> {
        let arrival = self.arrivals.fetch_add(1, Ordering::Relaxed);
        if let Some(seed) = self.config.seed {
            return Ok(seed.wrapping_add(arrival) as i64);
        }
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes).map_err(|_| ApiError::internal())?;
        Ok(i64::from_le_bytes(bytes))
    }
}

/// Seconds since the epoch, for `created`.
pub fn unix_now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |elapsed| elapsed.as_secs())
}

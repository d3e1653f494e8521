//! What the client is told once.

use std::ffi::OsString;
use std::time::Duration;

/// How to start the engine process.
#[derive(Clone, Debug)]
pub struct EngineCommand {
    /// Program and arguments; `--config-fd 3` is among them.
    pub program: OsString,
    /// Arguments.
    pub arguments: Vec<OsString>,
    /// Environment variables added to the front end's own.
    pub environment: Vec<(OsString, OsString)>,
    /// The configuration document. Every `{connect}` in it is replaced by the socket's address, `{parent_pid}` by the
    /// front end's process id.
    pub document: String,
}

/// Behaviour of the client (wire.md sections 1, 2 and 7).
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// None: no child is started, an engine is expected to connect by itself (tests, `proa frontend`).
    pub command: Option<EngineCommand>,
    /// Longest silence either side keeps.
    pub heartbeat: Duration,
    /// From the start, or the last loading message, to ready.
    pub start_timeout: Duration,
    /// A step or a silence longer than this, with work pending, gets the engine replaced.
    pub watchdog: Duration,
    /// Deaths within ten minutes after which the engine is given up.
    pub max_restarts: u32,
    /// Ids the tokenizer knows; an engine with a smaller vocabulary is refused.
    pub tokenizer_vocab_size: u32,
    /// Most queued requests; more are answered 429.
    pub max_queued_requests: usize,
    /// Most prompt tokens of queued requests; None = four times the KV pool.
    pub max_queued_tokens: Option<usize>,
    /// Batches queued per request before further ones merge.
    pub max_stream_queue: usize,
}

impl Default for ClientConfig {
    fn default() -> Self {
        ClientConfig {
            command: None,
            heartbeat: Duration::from_millis(1000),
            start_timeout: Duration::from_secs(600),
            watchdog: Duration::from_secs(30),
            max_restarts: 5,
            tokenizer_vocab_size: 0,
            max_queued_requests: 2048,
            max_queued_tokens: None,
            max_stream_queue: 256,
        }
    }
}

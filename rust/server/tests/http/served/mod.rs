//! A whole server for tests: real sockets, a scripted engine, a tokenizer whose first 256 ids are the bytes.

mod client;
mod model;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use engine_client::{ClientConfig, EngineClient, EngineState};
use limits::LimitValues;
use metrics::Metrics;
use mock_engine::{MockConfig, MockEngine, MockHandle, MockRequest, Script};
use proa_server::{ServerConfig, ServerState, UnknownFields, serve};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub use client::{Answer, exchange, request_text};
pub use model::{IM_END, NUM_IDS, bytes_of};

/// Longest wait for anything that must happen.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A serving server.
pub struct Served {
    /// Where it listens.
    pub address: SocketAddr,
    /// Its state.
    pub state: Arc<ServerState>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
    _engine: Option<MockHandle>,
}

/// What a test wants to differ.
pub struct Wishes {
    /// The engine; None = none connects.
    pub engine: Option<MockConfig>,
    /// Limits in force.
    pub limits: LimitValues,
    /// Most queued requests.
    pub max_queued: usize,
    /// Silence before a comment.
    pub keep_alive: Duration,
    /// Time of the drain.
    pub shutdown_timeout: Duration,
}

impl Default for Wishes {
    fn default() -> Self {
        Wishes {
            engine: Some(engine(Script::echo)),
            limits: LimitValues::default(),
            max_queued: 2048,
            keep_alive: Duration::from_secs(15),
            shutdown_timeout: Duration::from_secs(20),
        }
    }
}

/// An engine that plays `script`.
pub fn engine(script: impl Fn(&MockRequest) -> Script + Send + Sync + 'static) -> MockConfig {
    MockConfig {
        vocab_size: NUM_IDS,
        script: Arc::new(script),
        ..MockConfig::default()
    }
}

/// A server whose engine plays `script`.
pub async fn scripted(script: impl Fn(&MockRequest) -> Script + Send + Sync + 'static) -> Served {
    start(Wishes {
        engine: Some(engine(script)),
        ..Wishes::default()
    })
    .await
}

/// A server that answers with its prompt again and again.
pub async fn echoing() -> Served {
    start(Wishes::default()).await
}

/// Starts a server, and waits for its engine where there is one.
pub async fn start(wishes: Wishes) -> Served {
    let metrics = Arc::new(Metrics::new("proa", "m", "0", "mock").unwrap());
    let client_config = ClientConfig {
        heartbeat: Duration::from_millis(200),
        tokenizer_vocab_size: NUM_IDS,
        max_queued_requests: wishes.max_queued,
        ..ClientConfig::default()
    };
    let client = EngineClient::start(client_config, Arc::clone(&metrics)).unwrap();
    let engine = wishes
        .engine
        .map(|config| MockEngine::spawn(config, client.address()));
    if engine.is_some() {
        let mut watch = client.watch();
        let ready = watch.wait_for(|status| status.state == EngineState::Ready);
        tokio::time::timeout(PATIENCE, ready)
            .await
            .unwrap()
            .unwrap();
    }
    let config = ServerConfig {
        served_names: vec!["m".to_owned(), "alias/of-m".to_owned()],
        unknown_fields: UnknownFields::Error,
        priorities: false,
        seed: Some(1),
        keep_alive: wishes.keep_alive,
        prompt_tokens_details: true,
        force_include_usage: false,
        include_timings: false,
        tokens_as_ids: false,
        shutdown_timeout: wishes.shutdown_timeout,
        fingerprint: "proa-0-00000000".to_owned(),
        startup: Value::Null,
        text_workers: 2,
        limits: wishes.limits,
    };
    let state = Arc::new(ServerState::new(config, model::open(), client, metrics).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel();
    let task = tokio::spawn(serve(
        listener,
        Arc::clone(&state),
        async move {
            // A dropped sender is a signal as well.
            let _ = stopped.await;
        },
        std::future::pending(),
    ));
    Served {
        address,
        state,
        stop: Some(stop),
        task,
        _engine: engine,
    }
}

impl Served {
    /// POSTs JSON text.
    pub async fn post(&self, path: &str, body: &str) -> Answer {
        exchange(
            self.address,
            &request_text("POST", path, &["Content-Type: application/json"], body),
        )
        .await
    }

    /// GETs a path.
    pub async fn get(&self, path: &str) -> Answer {
        exchange(self.address, &request_text("GET", path, &[], "")).await
    }

    /// POSTs a completion with prompt `a`, or the one in `fields`, and the fields.
    pub async fn complete(&self, fields: &str) -> Answer {
        self.post("/v1/completions", &completion(fields)).await
    }

    /// POSTs a chat of one user message `a` with the fields.
    pub async fn chat(&self, fields: &str) -> Answer {
        let comma = if fields.is_empty() { "" } else { "," };
        let body = format!(r#"{{"messages":[{{"role":"user","content":"a"}}]{comma}{fields}}}"#);
        self.post("/v1/chat/completions", &body).await
    }

    /// Sends the signal to end.
    pub fn signal(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }

    /// Waits until `serve` has returned.
    pub async fn ended(&mut self) {
        tokio::time::timeout(PATIENCE, &mut self.task)
            .await
            .expect("the server ends in time")
            .unwrap();
    }

    /// Waits until the engine's client has no request open.
    pub async fn idle(&self) {
        let wait = async {
            while self.state.engine.num_open() > 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, wait)
            .await
            .expect("all requests end");
    }
}

/// The body of a completion: prompt `a` unless `fields` names one.
pub fn completion(fields: &str) -> String {
    let comma = if fields.is_empty() { "" } else { "," };
    if fields.contains("\"prompt\"") {
        format!("{{{fields}}}")
    } else {
        format!(r#"{{"prompt":"a"{comma}{fields}}}"#)
    }
}

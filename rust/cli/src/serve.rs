//! `proa serve`: binds the port, opens the model, starts the engine and the server, and sees all of them to their end.
//!
//! Owns the order of a start, the signals, and the exit code. What a request is lies in `server`, what an engine does in
//! `engine-client`.

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use engine_client::{EngineClient, EngineState, EngineStatus};
use metrics::Metrics;
use server::{ServedModel, ServerState};
use tokio::sync::watch;
use tokio::task::JoinSet;
use wire::ShutdownMode;

use crate::engine_config::{self, EngineConfig, EnginePlace};
use crate::python::{Python, VERSION};
use crate::report::{self, Phases};
use crate::server_config::{client_config, server_config};
use crate::settings::{Refusal, Settings};
use crate::signals::Signals;
use crate::{EXIT_DONE, EXIT_GAVE_UP, fingerprint, listen, model, served_model};

/// Threads of the async runtime: sockets and small replies, no work in proportion to a text.
const MAX_IO_THREADS: usize = 8;
/// What an engine that holds no request is given to end by itself.
const ENGINE_STOP: Duration = Duration::from_secs(5);

/// Serves until a signal or the engine ends it, and returns the exit code.
pub fn run(settings: &Settings, python: &Python, mut phases: Phases) -> Result<i32, Refusal> {
    // What can be refused at once is one line on stderr, without a report before it.
    model::check(settings.text("model"))?;
    let listeners = listen::bind(settings)?;
    phases.end("arguments");
    for listener in &listeners {
        // An address that was just bound can be asked for.
        let address = listener
            .local_addr()
            .map_err(|error| Refusal(error.to_string()))?;
        eprintln!(
            "proa: listening on {}; the model is loading",
            listen::url(address)
        );
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cores.clamp(1, MAX_IO_THREADS))
        .thread_name("proa-io")
        .enable_all()
        .build()
        .map_err(|error| Refusal(format!("the runtime did not start: {error}")))?;
    let code = runtime.block_on(start(settings.clone(), python.clone(), listeners, phases));
    // A start that was interrupted may still be opening files on a blocking thread: the process's end ends it.
    runtime.shutdown_background();
    code
}

/// What the front end knows before the engine starts.
struct Prepared {
    path: PathBuf,
    model: ServedModel,
    weights: [u8; 32],
    phases: Phases,
}

fn prepare(settings: &Settings, python: &Python, mut phases: Phases) -> Result<Prepared, Refusal> {
    python.check_version()?;
    phases.end("python");
    let path = model::resolve(settings.text("model"), python)?;
    phases.end("resolve");
    let (model, weights) = served_model::open(settings, &path, &mut phases)?;
    Ok(Prepared {
        path,
        model,
        weights,
        phases,
    })
}

async fn start(
    settings: Settings,
    python: Python,
    listeners: Vec<TcpListener>,
    phases: Phases,
) -> Result<i32, Refusal> {
    let mut signals = Signals::listen().map_err(|error| Refusal(format!("signals: {error}")))?;
    let opening = {
        let (settings, python) = (settings.clone(), python.clone());
        tokio::task::spawn_blocking(move || prepare(&settings, &python, phases))
    };
    let prepared = tokio::select! {
        prepared = opening => prepared.map_err(|error| Refusal(format!("opening the model failed: {error}")))??,
        name = signals.next() => {
            tracing::info!("{name} before the start was complete");
            return Ok(EXIT_DONE);
        }
    };
    let running = Running::begin(&settings, &python, prepared, listeners)?;
    Ok(running.watch(&settings, signals).await)
}

/// A started engine with its server.
struct Running {
    engine: EngineClient,
    url: String,
    served_name: String,
    phases: Phases,
    stop: watch::Sender<bool>,
    hurry: watch::Sender<bool>,
    servers: JoinSet<()>,
}

impl Running {
    fn begin(
        settings: &Settings,
        python: &Python,
        prepared: Prepared,
        listeners: Vec<TcpListener>,
    ) -> Result<Running, Refusal> {
        let Prepared {
            path,
            model,
            weights,
            mut phases,
        } = prepared;
        let names = served_names(settings, &path);
        let served_name = names[0].clone();
        let namespace = settings.text("metrics_namespace").unwrap_or("proa");
        let metrics = Metrics::new(
            namespace,
            &served_name,
            VERSION,
            &engine_config::device(settings),
        )
        .map_err(|error| {
            Refusal(format!(
                "--metrics-namespace: '{}' is no namespace",
                error.0
            ))
        })?;
        let metrics = Arc::new(metrics);
        let vocab_size = model.tokenizer.num_ids();
        let place = EnginePlace {
            connect: "{connect}",
            model_path: &path,
            engine_index: 0,
            tokenizer_vocab_size: Some(vocab_size),
            parent_pid: std::process::id(),
        };
        let engine_config = EngineConfig::new(settings, &place)?;
        let client = client_config(settings, python, engine_config.to_json(), vocab_size);
        let engine = EngineClient::start(client, Arc::clone(&metrics)).map_err(Refusal)?;
        phases.end("spawn");
        let fingerprint = fingerprint::fingerprint(weights, &engine_config);
        let config = server_config(settings, names, fingerprint, &phases);
        let state = ServerState::new(config, model, engine.clone(), metrics)
            .map_err(|error| Refusal(format!("the text threads did not start: {error}")))?;
        let state = Arc::new(state);
        let (stop, hurry) = (watch::Sender::new(false), watch::Sender::new(false));
        let mut servers = JoinSet::new();
        let mut url = String::new();
        for listener in listeners {
            let listener = tokio::net::TcpListener::from_std(listener)
                .map_err(|error| Refusal(error.to_string()))?;
            if url.is_empty() {
                url = listen::url(
                    listener
                        .local_addr()
                        .map_err(|error| Refusal(error.to_string()))?,
                );
            }
            servers.spawn(server::serve(
                listener,
                Arc::clone(&state),
                until_true(stop.subscribe()),
                until_true(hurry.subscribe()),
            ));
        }
        Ok(Running {
            engine,
            url,
            served_name,
            phases,
            stop,
            hurry,
            servers,
        })
    }

    /// Follows the engine until it is given up, a server ends, or a signal comes; returns the exit code.
    async fn watch(mut self, settings: &Settings, mut signals: Signals) -> i32 {
        let mut statuses = self.engine.watch();
        let mut announced = 0;
        loop {
            let status = statuses.borrow_and_update().clone();
            if let EngineState::Failed(fatal) = &status.state {
                eprintln!("proa: {}", fatal.message());
                return fatal.exit_code();
            }
            if status.state == EngineState::Ready && status.starts != announced {
                announced = status.starts;
                self.announce(&status);
            }
            tokio::select! {
                changed = statuses.changed() => if changed.is_err() {
                    eprintln!("proa: the engine's thread ended");
                    return EXIT_GAVE_UP;
                },
                ended = self.servers.join_next() => {
                    eprintln!("proa: the server ended: {ended:?}");
                    return EXIT_GAVE_UP;
                }
                name = signals.next() => return self.drain(settings, name, signals).await,
            }
        }
    }

    fn announce(&self, status: &EngineStatus) {
        if let Some(facts) = self.engine.facts() {
            report::log_engine(&facts, status);
        }
        let after = match status.starts {
            1 => format!("ready after {:.1} s", self.phases.total().as_secs_f64()),
            _ => "ready again".to_string(),
        };
        let url = &self.url;
        eprintln!(
            "proa: {after}: {} on {url} (try: curl {url}/v1/models)",
            self.served_name
        );
    }

    /// Lets running requests end, refuses new ones, then ends the engine. A second signal ends at once.
    async fn drain(mut self, settings: &Settings, name: &str, mut signals: Signals) -> i32 {
        let delay = Duration::from_secs_f64(settings.number("drain_delay_s"));
        let again = tokio::select! {
            () = tokio::time::sleep(delay) => None,
            again = signals.next() => Some(again),
        };
        // Sending fails only when the servers are gone, which is what it asks for.
        let _ = self.stop.send(true);
        tracing::info!(
            "{name}: draining, for at most {} s",
            settings.number("shutdown_timeout")
        );
        let again = match again {
            Some(again) => Some(again),
            None => tokio::select! {
                () = all_ended(&mut self.servers) => None,
                again = signals.next() => Some(again),
            },
        };
        if let Some(again) = again {
            tracing::info!("{again}: ending at once");
            let _ = self.hurry.send(true);
            all_ended(&mut self.servers).await;
        }
        self.engine.shutdown(ShutdownMode::Now, ENGINE_STOP).await;
        EXIT_DONE
    }
}

async fn all_ended(servers: &mut JoinSet<()>) {
    while let Some(ended) = servers.join_next().await {
        if let Err(error) = ended {
            tracing::error!("a server ended badly: {error}");
        }
    }
}

fn served_names(settings: &Settings, path: &std::path::Path) -> Vec<String> {
    let mut names = settings.texts("served_model_name");
    if names.is_empty() {
        names.push(model::default_name(settings.text("model"), path));
    }
    names
}

async fn until_true(mut flag: watch::Receiver<bool>) {
    // An error means that the sender is gone, and with it whoever would have wanted the server to go on.
    let _ = flag.wait_for(|stop| *stop).await;
}

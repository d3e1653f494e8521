//! The handle that routes hold, and what all threads share.

use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use limits::{AbortCause, ApiError, ErrorKind};
use metrics::{EngineMetrics, Metrics};
use tokio::sync::{oneshot, watch};
use wire::{EngineFacts, Map, ShutdownMode, Value};

use crate::config::ClientConfig;
use crate::io::{Command, IoThread, UtilityCall};
use crate::open_requests::{OpenRequests, QueueLimits};
use crate::output::{Ended, OutputStream};
use crate::process::{ChildHandle, supervise};
use crate::record::{EndOf, Record};
use crate::request::EngineRequest;
use crate::socket::SocketFolder;
use crate::status::{EngineState, EngineStatus};
use crate::wake::Wake;

const UTILITY_TIMEOUT: Duration = Duration::from_secs(30);
/// For methods that move weights.
const LONG_UTILITY_TIMEOUT: Duration = Duration::from_secs(600);
/// Queued prompt tokens allowed by default, in KV pools.
const QUEUED_POOLS: usize = 4;

/// What the I/O thread and the routes share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub config: ClientConfig,
    pub registry: Arc<Metrics>,
    pub metrics: Arc<EngineMetrics>,
    pub open: OpenRequests,
    pub status: watch::Sender<EngineStatus>,
    pub facts: Mutex<Option<Arc<EngineFacts>>>,
    pub child: ChildHandle,
    pub wake: Wake,
    pub address: String,
    commands: OnceLock<Sender<Command>>,
}

impl Shared {
    /// Hands a command to the I/O thread. After that thread's end there is nobody to tell, and nothing left to do.
    pub fn command(&self, command: Command) {
        if let Some(sender) = self.commands.get()
            && sender.send(command).is_ok()
        {
            self.wake.signal();
        }
    }

    /// Vocabulary of the engine that is or was ready.
    pub fn vocab_size(&self) -> u32 {
        self.facts().map_or(u32::MAX, |facts| facts.vocab_size)
    }

    pub fn facts(&self) -> Option<Arc<EngineFacts>> {
        self.facts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Ends a request from the engine's side; the waker is that of its reader.
    pub fn finish(&self, record: &Record, end: EndOf) -> Option<Waker> {
        self.open.lock().remove(record.key);
        let mut state = record.lock();
        let ended = record.end(&mut state, &self.metrics, end)?;
        state.pending.push_end(ended)
    }

    /// Ends a request from the reader's side and tells the engine; the first end counts.
    pub fn end_early(&self, record: &Record, cause: AbortCause) -> Ended {
        self.open.lock().remove(record.key);
        let mut state = record.lock();
        match record.end(&mut state, &self.metrics, EndOf::abort(cause)) {
            Some(ended) => {
                self.command(Command::Abort(record.key, cause));
                ended
            }
            None => state
                .ended
                .clone()
                .unwrap_or_else(|| unreachable!("a record that cannot be ended has ended")),
        }
    }

    pub fn set_state(&self, state: EngineState) {
        self.status.send_if_modified(|status| {
            let changed = status.state != state;
            status.state = state;
            changed
        });
    }
}

/// A handle on the engine; cheap to clone.
#[derive(Clone, Debug)]
pub struct EngineClient {
    shared: Arc<Shared>,
}

impl EngineClient {
    /// Binds the socket, starts the I/O thread and, with a command, the engine.
    ///
    /// # Errors
    /// One line when the socket or a thread cannot be made.
    pub fn start(config: ClientConfig, registry: Arc<Metrics>) -> Result<Self, String> {
        let folder = SocketFolder::create()
            .map_err(|error| format!("cannot make a folder for the socket: {error}"))?;
        let wake = Wake::new().map_err(|error| format!("cannot make an eventfd: {error}"))?;
        let address = folder.address();
        let state = EngineState::Loading {
            phase: "config".to_owned(),
            progress: None,
        };
        let command = config.command.clone();
        let shared = Arc::new(Shared {
            metrics: registry.engine(0),
            registry,
            config,
            open: OpenRequests::default(),
            status: watch::Sender::new(EngineStatus {
                state,
                pid: 0,
                starts: 0,
            }),
            facts: Mutex::default(),
            child: ChildHandle::default(),
            wake,
            address: address.clone(),
            commands: OnceLock::new(),
        });
        let (sender, receiver) = mpsc::channel();
        let _ = shared.commands.set(sender.clone());
        let (orders, spawner_orders) = mpsc::channel();
        let io = IoThread::bind(Arc::clone(&shared), folder, receiver, orders)?;
        thread::Builder::new()
            .name("proa-wire".to_owned())
            .spawn(move || io.run())
            .map_err(|error| format!("cannot start a thread: {error}"))?;
        if let Some(command) = command {
            let shared = Arc::clone(&shared);
            thread::Builder::new()
                .name("proa-spawner".to_owned())
                .spawn(move || {
                    supervise(
                        &command,
                        &address,
                        &shared.child,
                        &spawner_orders,
                        |event| shared.command(Command::Child(event)),
                    );
                })
                .map_err(|error| format!("cannot start a thread: {error}"))?;
        }
        Ok(EngineClient { shared })
    }

    /// Accepts a request, or says why not.
    ///
    /// # Errors
    /// `EngineUnavailable`, `ShuttingDown` or `QueueFull`.
    pub fn submit(&self, request: EngineRequest) -> Result<OutputStream, ApiError> {
        let mut streams = self.submit_all(vec![request])?;
        Ok(streams.remove(0))
    }

    /// Accepts all of some requests, or none of them.
    ///
    /// # Errors
    /// As [`EngineClient::submit`].
    pub fn submit_all(&self, requests: Vec<EngineRequest>) -> Result<Vec<OutputStream>, ApiError> {
        let shared = &self.shared;
        if let Some(refusal) = shared.status.borrow().refusal() {
            let reason = if refusal.kind == ErrorKind::ShuttingDown {
                "draining"
            } else {
                "not_ready"
            };
            shared.registry.front_end.reject(reason);
            return Err(refusal);
        }
        let tokens = requests
            .iter()
            .map(|request| request.prompt_ids.len())
            .sum();
        let records: Vec<Arc<Record>> = {
            let mut table = shared.open.lock();
            if let Err((error, reason)) =
                table.check_room(requests.len(), tokens, self.queue_limits())
            {
                shared.registry.front_end.reject(reason);
                return Err(ApiError {
                    retry_after_ms: Some(1000),
                    ..error
                });
            }
            requests
                .into_iter()
                .map(|request| {
                    let record = Arc::new(Record::new(
                        table.draw_key(),
                        request,
                        shared.config.max_stream_queue,
                    ));
                    table.insert(Arc::clone(&record));
                    record
                })
                .collect()
        };
        for record in &records {
            record.count_accepted(&shared.metrics);
        }
        shared.command(Command::Add(records.clone()));
        let stream = |record: Arc<Record>| {
            let deadline = record.request.deadline;
            OutputStream::new(Arc::clone(shared), record, deadline)
        };
        Ok(records.into_iter().map(stream).collect())
    }

    fn queue_limits(&self) -> QueueLimits {
        let config = &self.shared.config;
        let pool = self
            .shared
            .facts()
            .map_or(usize::MAX / QUEUED_POOLS, |facts| {
                facts.num_blocks as usize * facts.block_size as usize
            });
        QueueLimits {
            requests: config.max_queued_requests,
            tokens: config.max_queued_tokens.unwrap_or(pool * QUEUED_POOLS),
        }
    }

    /// Address that an engine connects to.
    pub fn address(&self) -> &str {
        &self.shared.address
    }

    /// Queued requests and their prompt tokens.
    pub fn queued(&self) -> (usize, usize) {
        self.shared.open.lock().queued()
    }

    /// Open requests.
    pub fn num_open(&self) -> usize {
        self.shared.open.lock().len()
    }

    /// What the engine is doing now.
    pub fn status(&self) -> EngineStatus {
        self.shared.status.borrow().clone()
    }

    /// Every change of the status.
    pub fn watch(&self) -> watch::Receiver<EngineStatus> {
        self.shared.status.subscribe()
    }

    /// What the engine said when it became ready; kept while a replacement starts.
    pub fn facts(&self) -> Option<Arc<EngineFacts>> {
        self.shared.facts()
    }

    /// Calls a method of the engine (wire.md section 3, Utility).
    ///
    /// # Errors
    /// What the engine answered, `EngineLost` when it died, `EngineUnavailable` when it is not ready, `Internal` after
    /// the time-out.
    pub async fn utility(&self, method: &str, args: Map) -> Result<Value, ApiError> {
        if let Some(refusal) = self.status().refusal() {
            return Err(refusal);
        }
        let (reply, answer) = oneshot::channel();
        let timeout = match method {
            "sleep" | "wake_up" | "load_lora" => LONG_UTILITY_TIMEOUT,
            _ => UTILITY_TIMEOUT,
        };
        let deadline = Instant::now() + timeout;
        self.shared.command(Command::Utility(UtilityCall {
            method: method.to_owned(),
            args,
            reply,
            deadline,
        }));
        answer
            .await
            .unwrap_or_else(|_| Err(ApiError::new(ErrorKind::EngineLost, "The engine is gone.")))
    }

    /// From now on requests are refused with `ShuttingDown`; open ones go on.
    pub fn refuse_new(&self) {
        self.shared.set_state(EngineState::Stopping);
    }

    /// Asks the engine to end, kills it after `deadline`, and returns when it has been reaped.
    pub async fn shutdown(&self, mode: ShutdownMode, deadline: Duration) {
        self.refuse_new();
        let (reply, ended) = oneshot::channel();
        self.shared.command(Command::Shutdown {
            mode,
            deadline,
            reply,
        });
        // An error means that the I/O thread has ended, and with it the child.
        let _ = ended.await;
    }
}

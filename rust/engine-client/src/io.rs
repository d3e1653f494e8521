//! The I/O thread: the ROUTER, the handshake, heartbeats, liveness, and every message in and out.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use limits::{AbortCause, ApiError, EndCause, ErrorKind};
use tokio::sync::oneshot;
use wire::{
    Abort, AddRequests, Direction, EngineFacts, EngineFailed, Hello, Identity, Map, Message, Ready,
    Shutdown, ShutdownMode, Stats, Utility, UtilityReply, Value, decode, encode,
};

use crate::client::Shared;
use crate::death::DeathPolicy;
use crate::dispatch::{EngineMemory, clear_gauges, dispatch};
use crate::process::{ChildEvent, SpawnerOrder};
use crate::record::{EndOf, SharedRecord};
use crate::socket::SocketFolder;
use crate::status::{EngineState, Fatal};

/// Most keys of one Abort.
const MAX_ABORT_KEYS: usize = 1024;
/// Heartbeats without a message after which an engine counts as stale.
const STALE_HEARTBEATS: u32 = 3;
/// Shortest step that counts as stale.
const STALE_STEP: Duration = Duration::from_secs(5);
/// Bad StepOutputs within ten seconds after which the engine is replaced.
const MAX_BAD_OUTPUTS: usize = 3;
const BAD_OUTPUTS_WINDOW: Duration = Duration::from_secs(10);
/// Time the engine has beyond a Shutdown's deadline.
const KILL_GRACE: Duration = Duration::from_secs(1);

/// A call on its way.
#[derive(Debug)]
pub(crate) struct UtilityCall {
    pub method: String,
    pub args: Map,
    pub reply: oneshot::Sender<Result<Value, ApiError>>,
    pub deadline: Instant,
}

/// What other threads ask of this one.
#[derive(Debug)]
pub(crate) enum Command {
    Add(Vec<SharedRecord>),
    Abort(u64, AbortCause),
    Utility(UtilityCall),
    Shutdown {
        mode: ShutdownMode,
        deadline: Duration,
        reply: oneshot::Sender<()>,
    },
    Child(ChildEvent),
}

/// The engine process at the other end.
#[derive(Debug)]
struct Peer {
    identity: Identity,
    minor: u16,
    ready: bool,
    last_message: Instant,
    step_age: Duration,
    longest_step: Duration,
    bad_outputs: Vec<Instant>,
    memory: EngineMemory,
    failed: Option<EngineFailed>,
}

/// State of the I/O thread.
pub(crate) struct IoThread {
    shared: Arc<Shared>,
    socket: zmq::Socket,
    _folder: SocketFolder,
    commands: Receiver<Command>,
    orders: Sender<SpawnerOrder>,
    peer: Option<Peer>,
    policy: DeathPolicy,
    calls: HashMap<u64, UtilityCall>,
    next_call: u64,
    last_sent: Instant,
    start_at: Instant,
    loading_since: Instant,
    killed_as_hung: bool,
    stopping: Option<(Instant, oneshot::Sender<()>)>,
    ended: bool,
}

impl IoThread {
    pub fn bind(
        shared: Arc<Shared>,
        folder: SocketFolder,
        commands: Receiver<Command>,
        orders: Sender<SpawnerOrder>,
    ) -> Result<Self, String> {
        let fail = |error: zmq::Error| format!("cannot bind the engine's socket: {error}");
        let socket = zmq::Context::new().socket(zmq::ROUTER).map_err(fail)?;
        socket.set_router_mandatory(true).map_err(fail)?;
        // Nothing is dropped for lack of room: admission bounds what is sent, the engine what it sends.
        socket.set_sndhwm(0).map_err(fail)?;
        socket.set_rcvhwm(0).map_err(fail)?;
        socket.set_linger(0).map_err(fail)?;
        socket.bind(&folder.address()).map_err(fail)?;
        let now = Instant::now();
        Ok(IoThread {
            policy: DeathPolicy::new(shared.config.max_restarts),
            shared,
            socket,
            _folder: folder,
            commands,
            orders,
            peer: None,
            calls: HashMap::new(),
            next_call: 0,
            last_sent: now,
            start_at: now,
            loading_since: now,
            killed_as_hung: false,
            stopping: None,
            ended: false,
        })
    }

    /// Runs until the engine has been shut down.
    pub fn run(mut self) {
        let interval = (self.shared.config.heartbeat / 4).as_millis().max(1) as i64;
        while !self.ended {
            let mut items = [
                self.socket.as_poll_item(zmq::POLLIN),
                zmq::PollItem::from_fd(self.shared.wake.fd(), zmq::POLLIN),
            ];
            if let Err(error) = zmq::poll(&mut items, interval) {
                tracing::error!("polling the engine's socket failed: {error}");
            }
            self.shared.wake.drain();
            self.receive();
            self.take_commands();
            self.keep_time();
        }
    }

    // ---- outgoing ---------------------------------------------------------------------------------------------------

    fn send(&mut self, message: &Message) {
        let Some(peer) = &self.peer else { return };
        let mut frames = vec![peer.identity.to_bytes().to_vec()];
        frames.extend(encode(message));
        if let Err(error) = self.socket.send_multipart(frames, zmq::DONTWAIT) {
            // The process is gone or going: its end is noticed by the spawner.
            tracing::warn!("the engine did not take a message: {error}");
        }
        self.last_sent = Instant::now();
    }

    fn take_commands(&mut self) {
        let mut adds = AddRequests::default();
        let mut aborts = Abort::default();
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Add(records) => self.add(&records, &mut adds),
                Command::Abort(key, cause) => {
                    aborts.push(key, cause);
                    if aborts.request_key.len() == MAX_ABORT_KEYS {
                        // Keys of this batch may still stand in `adds`: they must arrive first.
                        self.flush(&mut adds, &mut aborts);
                    }
                }
                Command::Utility(call) => {
                    self.flush(&mut adds, &mut aborts);
                    self.call(call);
                }
                Command::Shutdown {
                    mode,
                    deadline,
                    reply,
                } => {
                    self.flush(&mut adds, &mut aborts);
                    self.shut_down(mode, deadline, reply);
                }
                Command::Child(event) => self.on_child(event),
            }
        }
        self.flush(&mut adds, &mut aborts);
    }

    fn flush(&mut self, adds: &mut AddRequests, aborts: &mut Abort) {
        if !adds.is_empty() {
            self.send(&Message::AddRequests(Box::new(std::mem::take(adds))));
        }
        if !aborts.request_key.is_empty() {
            self.send(&Message::Abort(std::mem::take(aborts)));
        }
    }

    fn add(&mut self, records: &[SharedRecord], adds: &mut AddRequests) {
        for record in records {
            if self.peer.as_ref().is_some_and(|peer| peer.ready) {
                adds.push(&record.request.row(record.key));
            } else {
                // The engine died between acceptance and here.
                self.lose(record);
            }
        }
    }

    fn call(&mut self, call: UtilityCall) {
        self.next_call += 1;
        let message = Utility {
            call_id: self.next_call,
            method: call.method.clone(),
            args: call.args.clone(),
        };
        self.calls.insert(self.next_call, call);
        self.send(&Message::Utility(message));
    }

    fn shut_down(&mut self, mode: ShutdownMode, deadline: Duration, reply: oneshot::Sender<()>) {
        self.shared.set_state(EngineState::Stopping);
        self.stopping = Some((Instant::now() + deadline + KILL_GRACE, reply));
        if self.shared.config.command.is_none() || self.shared.status.borrow().pid == 0 {
            self.send(&Message::Shutdown(Shutdown {
                mode,
                deadline_ms: deadline.as_millis() as u32,
            }));
            return self.finish_stop();
        }
        if self.peer.is_some() {
            self.send(&Message::Shutdown(Shutdown {
                mode,
                deadline_ms: deadline.as_millis() as u32,
            }));
        } else {
            self.shared.child.signal(libc::SIGKILL);
        }
    }

    fn finish_stop(&mut self) {
        // Send errors mean that the other side has gone already.
        let _ = self.orders.send(SpawnerOrder::Stop);
        self.end_all(
            || ApiError::new(ErrorKind::ShuttingDown, "The server is shutting down."),
            EndCause::Shutdown,
        );
        if let Some((_, reply)) = self.stopping.take() {
            let _ = reply.send(());
        }
        self.ended = true;
    }

    // ---- incoming ---------------------------------------------------------------------------------------------------

    fn receive(&mut self) {
        while let Ok(frames) = self.socket.recv_multipart(zmq::DONTWAIT) {
            let Some((identity, frames)) = frames.split_first() else {
                continue;
            };
            let received = Instant::now();
            match Identity::from_bytes(identity) {
                Some(identity) if frames.len() == 1 && frames[0].is_empty() => {
                    self.on_knock(identity)
                }
                Some(identity)
                    if self
                        .peer
                        .as_ref()
                        .is_some_and(|peer| peer.identity == identity) =>
                {
                    self.on_message(frames, received);
                }
                // A stranger, or a process that has been replaced.
                _ => self.shared.metrics.bad_frame(false, "kind").add(1),
            }
        }
    }

    fn on_knock(&mut self, identity: Identity) {
        if self
            .peer
            .as_ref()
            .is_some_and(|peer| peer.identity != identity)
            && self.shared.config.command.is_some()
        {
            return self.shared.metrics.bad_frame(false, "kind").add(1);
        }
        if self
            .peer
            .as_ref()
            .is_some_and(|peer| peer.identity != identity)
        {
            self.on_death("it knocked again as a new process");
        }
        let now = Instant::now();
        self.peer = Some(Peer {
            identity,
            minor: 0,
            ready: false,
            last_message: now,
            step_age: Duration::ZERO,
            longest_step: Duration::ZERO,
            bad_outputs: Vec::new(),
            memory: EngineMemory::default(),
            failed: None,
        });
        self.loading_since = now;
        let hello = Hello {
            protocol_major: wire::PROTOCOL_MAJOR,
            protocol_minor: wire::PROTOCOL_MINOR,
            frontend_version: env!("CARGO_PKG_VERSION").to_owned(),
            engine_index: identity.engine_index,
            heartbeat_ms: self.shared.config.heartbeat.as_millis() as u32,
            nonce: [0; 16],
            proof: None,
        };
        self.send(&Message::Hello(hello));
    }

    fn on_message(&mut self, frames: &[Vec<u8>], received: Instant) {
        let Some(peer) = &mut self.peer else { return };
        peer.last_message = received;
        match decode(Direction::FromEngine, peer.minor, frames) {
            Ok(Message::Ready(ready)) => self.on_ready(ready),
            Ok(Message::StepOutputs(outputs)) if peer.ready => {
                if let Stats::Present(stats) = &outputs.stats {
                    peer.longest_step = peer.longest_step.max(peer.step_age);
                    peer.step_age = Duration::from_millis(u64::from(stats.step_age_ms));
                }
                dispatch(&self.shared, &mut peer.memory, &outputs, received);
            }
            Ok(Message::UtilityReply(reply)) => self.on_reply(reply),
            Ok(Message::EngineFailed(failed)) => {
                tracing::error!(
                    "the engine failed ({}): {}",
                    failed.kind.label(),
                    failed.cause
                );
                tracing::debug!("{}", failed.traceback);
                peer.failed = Some(failed);
            }
            Ok(_) => self.shared.metrics.bad_frame(false, "kind").add(1),
            Err(fault) => {
                tracing::warn!("{fault}");
                self.shared
                    .metrics
                    .bad_frame(false, fault.reason.label())
                    .add(1);
                if fault.kind == Some(wire::Kind::StepOutputs) {
                    self.on_lost_outputs(received);
                }
            }
        }
    }

    fn on_ready(&mut self, ready: Ready) {
        let Some(peer) = &mut self.peer else { return };
        self.loading_since = Instant::now();
        if ready.protocol_major != wire::PROTOCOL_MAJOR {
            let versions = format!(
                "the engine speaks wire protocol {}, this front end {}",
                ready.protocol_major,
                wire::PROTOCOL_MAJOR
            );
            return self.give_up(Fatal::Refused(versions));
        }
        peer.minor = ready.protocol_minor;
        let Some(facts) = ready.facts else {
            return self.shared.set_state_unless_stopping(EngineState::Loading {
                phase: ready.phase,
                progress: ready.progress,
            });
        };
        if facts.vocab_size < self.shared.config.tokenizer_vocab_size {
            let sizes = format!(
                "the engine's vocabulary has {} ids, the tokenizer needs {}",
                facts.vocab_size, self.shared.config.tokenizer_vocab_size
            );
            return self.give_up(Fatal::Refused(sizes));
        }
        peer.ready = true;
        self.publish_ready(*facts);
    }

    fn publish_ready(&mut self, facts: EngineFacts) {
        let metrics = &self.shared.metrics;
        metrics.engine_up.set(1.0);
        metrics
            .engine_start_seconds
            .set(self.start_at.elapsed().as_secs_f64());
        *metrics
            .cache_config
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner) = cache_labels(&facts);
        *self
            .shared
            .facts
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner) = Some(Arc::new(facts));
        self.shared.set_state_unless_stopping(EngineState::Ready);
    }

    fn on_reply(&mut self, reply: UtilityReply) {
        let Some(call) = self.calls.remove(&reply.call_id) else {
            return self.shared.metrics.bad_frame(false, "kind").add(1);
        };
        let result = reply.result.map_err(|error| {
            ApiError::new(
                ErrorKind::from_name(&error.kind).unwrap_or(ErrorKind::Internal),
                error.message,
            )
        });
        // An error means that the caller no longer waits.
        let _ = call.reply.send(result);
    }

    /// A StepOutputs was dropped whole, and with it tokens: every open request ends, and a third time is one too many.
    fn on_lost_outputs(&mut self, now: Instant) {
        let error = || {
            ApiError::new(
                ErrorKind::Internal,
                "A message of the engine could not be read.",
            )
        };
        let keys = self.end_all(error, EndCause::Internal);
        let mut aborts = Abort::default();
        for key in keys {
            aborts.push(key, AbortCause::Internal);
        }
        self.flush(&mut AddRequests::default(), &mut aborts);
        let Some(peer) = &mut self.peer else { return };
        peer.bad_outputs
            .retain(|at| now.saturating_duration_since(*at) < BAD_OUTPUTS_WINDOW);
        peer.bad_outputs.push(now);
        if peer.bad_outputs.len() >= MAX_BAD_OUTPUTS {
            tracing::error!(
                "three unreadable messages within {} s: the engine is replaced",
                BAD_OUTPUTS_WINDOW.as_secs()
            );
            self.shared.child.signal(libc::SIGKILL);
        }
    }

    // ---- life and death ---------------------------------------------------------------------------------------------

    fn on_child(&mut self, event: ChildEvent) {
        match event {
            ChildEvent::Started { pid } => {
                self.start_at = Instant::now();
                self.loading_since = self.start_at;
                self.killed_as_hung = false;
                self.shared.status.send_modify(|status| {
                    status.pid = pid;
                    status.starts += 1;
                });
                self.shared.set_state_unless_stopping(EngineState::Loading {
                    phase: "config".to_owned(),
                    progress: None,
                });
            }
            ChildEvent::Ended { status, exit_code } => {
                // Its last words may have arrived after the last look at the socket.
                self.receive();
                self.shared.status.send_modify(|status| status.pid = 0);
                let failed = self.peer.as_ref().and_then(|peer| peer.failed.clone());
                let was_ready = self.peer.as_ref().is_some_and(|peer| peer.ready);
                self.on_death(&status);
                if self.stopping.is_some() {
                    return self.finish_stop();
                }
                if matches!(self.shared.status.borrow().state, EngineState::Failed(_)) {
                    return; // given up before, and the spawner told so
                }
                self.decide_restart(&status, exit_code, failed, was_ready);
            }
        }
    }

    fn decide_restart(
        &mut self,
        status: &str,
        exit_code: Option<i32>,
        failed: Option<EngineFailed>,
        was_ready: bool,
    ) {
        let line = failed.as_ref().map_or_else(
            || format!("the engine ended with {status}"),
            |failed| failed.cause.clone(),
        );
        let refused = failed
            .as_ref()
            .is_some_and(|failed| !failed.kind.is_retried());
        if refused || (!was_ready && exit_code == Some(2)) {
            return self.give_up(Fatal::Refused(line));
        }
        let cause = usize::from(self.killed_as_hung);
        match self.policy.on_death(Instant::now()) {
            Some(wait) => {
                tracing::warn!("{line}; starting a new one in {} s", wait.as_secs());
                self.shared.metrics.engine_restarts[cause].add(1);
                self.shared
                    .set_state_unless_stopping(EngineState::Restarting { retry_in: wait });
                let _ = self.orders.send(SpawnerOrder::Restart(wait));
            }
            None => self.give_up(Fatal::TooManyDeaths(format!(
                "the engine died too often; last: {line}"
            ))),
        }
    }

    fn give_up(&mut self, fatal: Fatal) {
        tracing::error!("{}", fatal.message());
        self.shared.child.signal(libc::SIGKILL);
        let _ = self.orders.send(SpawnerOrder::Stop);
        self.on_death("given up");
        self.shared
            .set_state_unless_stopping(EngineState::Failed(fatal));
    }

    /// Everything that was open at the engine ends here, at once.
    fn on_death(&mut self, status: &str) {
        if self.peer.take().is_some() {
            tracing::error!("the engine is gone: {status}");
        }
        clear_gauges(&self.shared.metrics);
        self.end_all(engine_lost, EndCause::EngineFailed);
        for (_, call) in self.calls.drain() {
            let _ = call.reply.send(Err(engine_lost()));
        }
    }

    fn lose(&self, record: &SharedRecord) {
        if let Some(waker) = self.shared.finish(
            record,
            EndOf::failure(EndCause::EngineFailed, engine_lost()),
        ) {
            waker.wake();
        }
    }

    fn end_all(&self, error: impl Fn() -> ApiError, cause: EndCause) -> Vec<u64> {
        let records = self.shared.open.lock().take_all();
        for record in &records {
            if let Some(waker) = self.shared.finish(record, EndOf::failure(cause, error())) {
                waker.wake();
            }
        }
        records.iter().map(|record| record.key).collect()
    }

    fn keep_time(&mut self) {
        let now = Instant::now();
        let config = &self.shared.config;
        let late: Vec<u64> = self
            .calls
            .iter()
            .filter(|(_, call)| now >= call.deadline)
            .map(|(id, _)| *id)
            .collect();
        for id in late {
            if let Some(call) = self.calls.remove(&id) {
                let _ = call.reply.send(Err(ApiError::new(
                    ErrorKind::Internal,
                    "The engine did not answer in time.",
                )));
            }
        }
        if let Some((kill_at, _)) = &self.stopping
            && now >= *kill_at
        {
            self.shared.child.signal(libc::SIGKILL);
        }
        let ready = self.peer.as_ref().is_some_and(|peer| peer.ready);
        let loading = self.shared.status.borrow().pid != 0 && !ready;
        if loading && now.saturating_duration_since(self.loading_since) > config.start_timeout {
            self.kill_as_hung("it did not become ready in time");
        } else if ready {
            if now.saturating_duration_since(self.last_sent) >= config.heartbeat {
                self.send(&Message::Abort(Abort::default()));
            }
            self.check_life(now);
        }
    }

    fn check_life(&mut self, now: Instant) {
        let Some(peer) = &self.peer else { return };
        let config = &self.shared.config;
        let silence = now.saturating_duration_since(peer.last_message);
        // On a CPU a step may take seconds; what has been seen before is no surprise.
        let long_step = STALE_STEP.max(peer.longest_step * 4);
        let is_stale = silence > config.heartbeat * STALE_HEARTBEATS || peer.step_age > long_step;
        let has_work = self.shared.open.lock().len() > 0 || !self.calls.is_empty();
        let is_hung = has_work
            && (silence > config.watchdog || peer.step_age > config.watchdog.max(long_step));
        if is_hung && config.command.is_some() {
            return self.kill_as_hung("it was silent, or in one step, for too long");
        }
        self.shared.set_state_unless_stopping(if is_stale {
            EngineState::Stale
        } else {
            EngineState::Ready
        });
    }

    fn kill_as_hung(&mut self, why: &str) {
        if !self.killed_as_hung {
            tracing::error!("the engine is killed: {why}");
            self.killed_as_hung = true;
            self.shared.child.signal(libc::SIGKILL);
        }
    }
}

impl Shared {
    /// A server that is stopping stays so, whatever the engine does.
    fn set_state_unless_stopping(&self, state: EngineState) {
        if self.status.borrow().state != EngineState::Stopping {
            self.set_state(state);
        }
    }
}

fn engine_lost() -> ApiError {
    ApiError {
        retry_after_ms: Some(2000),
        ..ApiError::new(
            ErrorKind::EngineLost,
            "The engine died while it worked on the request.",
        )
    }
}

/// Labels of `cache_config_info`.
fn cache_labels(facts: &EngineFacts) -> String {
    let cache = &facts.cache;
    let text = |value: Option<String>| value.unwrap_or_else(|| "None".to_owned());
    let python_bool = |value: bool| if value { "True" } else { "False" };
    [
        format!("num_gpu_blocks=\"{}\"", facts.num_blocks),
        format!("block_size=\"{}\"", facts.block_size),
        format!("cache_dtype=\"{}\"", cache.cache_dtype),
        format!(
            "gpu_memory_utilization=\"{}\"",
            cache.gpu_memory_utilization
        ),
        format!(
            "enable_prefix_caching=\"{}\"",
            python_bool(cache.enable_prefix_caching)
        ),
        format!(
            "prefix_caching_hash_algo=\"{}\"",
            cache.prefix_caching_hash_algo
        ),
        format!(
            "num_cpu_blocks=\"{}\"",
            text(cache.num_cpu_blocks.map(|n| n.to_string()))
        ),
        format!(
            "kv_offloading_backend=\"{}\"",
            text(cache.kv_offloading_backend.clone())
        ),
        format!(
            "kv_offloading_size=\"{}\"",
            text(cache.kv_offloading_size.map(|n| n.to_string()))
        ),
    ]
    .join(",")
}

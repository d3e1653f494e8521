//! The I/O thread: the ROUTER, the handshake, heartbeats, liveness, and every message in and out.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use limits::{AbortCause, ApiError, EndCause, ErrorKind};
use tokio::sync::oneshot;
use wire::{
    Abort, AddRequests, Direction, EngineFacts, EngineFailed, Hello, Identity, Map, Message, Ready,
    Shutdown, ShutdownMode, Stats, Utility, UtilityReply, Value, decode, encode,
};

use crate::cache_info::cache_labels;
use crate::client::Shared;
use crate::death::DeathPolicy;
use crate::dispatch::{EngineMemory, clear_gauges, dispatch};
use crate::life::{LifeRules, Pulse, Verdict};
use crate::process::{ChildEvent, SpawnerOrder};
use crate::record::{EndOf, SharedRecord};
use crate::socket::SocketFolder;
use crate::status::{EngineState, Fatal};

/// The one engine of this release.
const ENGINE_INDEX: u16 = 0;
/// Most keys of one Abort.
const MAX_ABORT_KEYS: usize = 1024;
/// Messages read between two looks at the commands, so that a busy engine cannot keep aborts from being sent.
const MAX_MESSAGES_PER_TURN: usize = 64;
/// Bad StepOutputs within ten seconds after which the engine is replaced.
const MAX_BAD_OUTPUTS: usize = 3;
const BAD_OUTPUTS_WINDOW: Duration = Duration::from_secs(10);
/// Time the engine has beyond a Shutdown's deadline.
const KILL_GRACE: Duration = Duration::from_secs(1);
/// Time a process has to end by itself after its EngineFailed.
const FAILED_GRACE: Duration = Duration::from_secs(2);

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
    pulse: Pulse,
    bad_outputs: Vec<Instant>,
    memory: EngineMemory,
    failed: Option<(EngineFailed, Instant)>,
}

impl Peer {
    fn new(identity: Identity, now: Instant) -> Self {
        Peer {
            identity,
            minor: 0,
            ready: false,
            pulse: Pulse::new(now),
            bad_outputs: Vec::new(),
            memory: EngineMemory::new(identity.incarnation),
            failed: None,
        }
    }

    fn serves(&self) -> bool {
        self.ready && self.failed.is_none()
    }
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
        socket
            .set_maxmsgsize(wire::MAX_MESSAGE_BYTES as i64)
            .map_err(fail)?;
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
            // What is left over is found by the next poll.
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
            if record.lock().ended.is_some() {
                continue; // it fell with an engine that died before this one was ready
            }
            if self.peer.as_ref().is_some_and(Peer::serves) {
                adds.push(&record.request.row(record.key));
            } else {
                // The engine died between acceptance and here.
                self.lose(record);
            }
        }
    }

    fn call(&mut self, call: UtilityCall) {
        if !self.peer.as_ref().is_some_and(Peer::serves) {
            let _ = call.reply.send(Err(engine_lost())); // an error: the caller no longer waits
            return;
        }
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
        // Send errors mean that the other side has gone already. The order before the signal: a child that is just being
        // started meets one of the two.
        let _ = self.orders.send(SpawnerOrder::Stop);
        self.shared.child.signal(libc::SIGKILL);
        self.end_all(shutting_down, EndCause::Shutdown);
        if let Some((_, reply)) = self.stopping.take() {
            let _ = reply.send(());
        }
        self.ended = true;
    }

    // ---- incoming ---------------------------------------------------------------------------------------------------

    /// Reads what has come, up to a bound; true = there may be more.
    fn receive(&mut self) -> bool {
        for _ in 0..MAX_MESSAGES_PER_TURN {
            let Ok(frames) = self.socket.recv_multipart(zmq::DONTWAIT) else {
                return false;
            };
            let Some((identity, frames)) = frames.split_first() else {
                continue;
            };
            match Identity::from_bytes(identity) {
                Some(identity) if frames.len() == 1 && frames[0].is_empty() => {
                    self.on_knock(identity)
                }
                Some(identity) if self.peer_is(identity) => self.on_frames(frames),
                // A stranger, or a process that has been replaced.
                _ => self.shared.metrics.bad_frame(false, "kind").add(1),
            }
        }
        true
    }

    fn peer_is(&self, identity: Identity) -> bool {
        self.peer
            .as_ref()
            .is_some_and(|peer| peer.identity == identity)
    }

    fn on_knock(&mut self, identity: Identity) {
        if identity.engine_index != ENGINE_INDEX
            || (self.peer.is_some()
                && !self.peer_is(identity)
                && self.shared.config.command.is_some())
        {
            return self.shared.metrics.bad_frame(false, "kind").add(1);
        }
        let now = Instant::now();
        let is_waiting = self.peer_is(identity) && !self.peer.as_ref().is_some_and(|p| p.ready);
        if !is_waiting {
            if self.peer.is_some() {
                self.on_death("it knocked again");
            }
            self.peer = Some(Peer::new(identity, now));
        }
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

    /// Takes one message of the engine. Its faults are found by the decoder; should a fault get past it, this thread goes
    /// on all the same, for every request depends on it.
    fn on_frames(&mut self, frames: &[Vec<u8>]) {
        let received = Instant::now();
        let taken = catch_unwind(AssertUnwindSafe(|| self.on_message(frames, received)));
        if taken.is_err() {
            tracing::error!("taking a message of the engine panicked: it is dropped");
            self.shared.metrics.bad_frame(false, "columns").add(1);
            self.on_lost_outputs(received);
        }
    }

    fn on_message(&mut self, frames: &[Vec<u8>], received: Instant) {
        let Some(peer) = &mut self.peer else { return };
        peer.pulse.hear(received);
        match decode(Direction::FromEngine, peer.minor, frames) {
            Ok(Message::Ready(ready)) if !peer.ready => self.on_ready(ready),
            Ok(Message::StepOutputs(outputs)) if peer.ready => {
                if let Stats::Present(stats) = &outputs.stats {
                    let age = Duration::from_millis(u64::from(stats.step_age_ms));
                    peer.pulse.note_step_age(age);
                }
                dispatch(&self.shared, &mut peer.memory, &outputs, received);
            }
            Ok(Message::UtilityReply(reply)) => self.on_reply(reply),
            Ok(Message::EngineFailed(failed)) => self.on_failed(failed, received),
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

    /// The engine's last word: what is open ends now, without waiting for the process to be reaped.
    fn on_failed(&mut self, failed: EngineFailed, now: Instant) {
        tracing::error!(
            "the engine failed ({}): {}",
            failed.kind.label(),
            failed.cause
        );
        tracing::debug!("{}", failed.traceback);
        let is_retried = failed.kind.is_retried();
        let cause = failed.cause.clone();
        self.lose_all();
        if self.shared.config.command.is_none() {
            return if is_retried {
                self.on_death(&cause);
                self.shared
                    .set_state_unless_stopping(EngineState::Restarting {
                        retry_in: Duration::ZERO,
                    });
            } else {
                self.give_up(Fatal::Refused(cause));
            };
        }
        if let Some(peer) = &mut self.peer {
            peer.failed = Some((failed, now));
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
        peer.pulse = Pulse::new(Instant::now());
        peer.pulse.set_device(&facts.device);
        self.publish_ready(*facts);
    }

    fn publish_ready(&mut self, facts: EngineFacts) {
        let metrics = &self.shared.metrics;
        metrics.become_ready(facts.max_model_len);
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
                while self.receive() {}
                self.shared.status.send_modify(|status| status.pid = 0);
                let failed = self.peer.as_ref().and_then(|peer| peer.failed.clone());
                let failed = failed.map(|(failed, _)| failed);
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
        let _ = self.orders.send(SpawnerOrder::Stop); // an error: the spawner has ended, and with it the child
        self.shared.child.signal(libc::SIGKILL);
        self.on_death("given up");
        self.shared
            .set_state_unless_stopping(EngineState::Failed(fatal));
    }

    /// Everything that was open at the engine ends here, at once.
    fn on_death(&mut self, status: &str) {
        if self.peer.take().is_some() {
            if self.stopping.is_some() {
                tracing::info!("the engine has ended: {status}");
            } else {
                tracing::error!("the engine is gone: {status}");
            }
        }
        self.lose_all();
    }

    /// Every open request and call ends with `engine_lost`, or with `shutting_down` when the end was asked for.
    fn lose_all(&mut self) {
        clear_gauges(&self.shared.metrics);
        // Said first, so that nobody who learns of a lost request still sees an engine that serves.
        if self.shared.status.borrow().refusal().is_none() {
            self.shared
                .set_state_unless_stopping(EngineState::Restarting {
                    retry_in: Duration::ZERO,
                });
        }
        if self.stopping.is_some() {
            self.end_all(shutting_down, EndCause::Shutdown);
        } else {
            self.end_all(engine_lost, EndCause::EngineFailed);
        }
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
        let failed_at = self.peer.as_ref().and_then(|peer| peer.failed.as_ref());
        if let Some((_, at)) = failed_at {
            if now.saturating_duration_since(*at) >= FAILED_GRACE {
                self.shared.child.signal(libc::SIGKILL);
            }
            return;
        }
        let ready = self.peer.as_ref().is_some_and(Peer::serves);
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
        let rules = LifeRules {
            heartbeat: config.heartbeat,
            watchdog: config.watchdog,
            // Without a child there is nobody to kill: an engine that connects by itself is stale for as long as it hangs.
            can_hang: config.command.is_some()
                && self.calls.is_empty()
                && self.shared.open.lock().len() > 0,
        };
        let state = match peer.pulse.judge(now, rules) {
            Verdict::Alive => EngineState::Ready,
            Verdict::Stale => EngineState::Stale,
            Verdict::Hung => {
                return self.kill_as_hung("it was silent, or in one step, for too long");
            }
        };
        self.shared.set_state_unless_stopping(state);
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
    /// A server that is stopping, or has given its engine up, stays so, whatever the engine does.
    fn set_state_unless_stopping(&self, state: EngineState) {
        let is_final = matches!(
            self.status.borrow().state,
            EngineState::Stopping | EngineState::Failed(_)
        );
        if !is_final {
            self.set_state(state);
        }
    }
}

fn shutting_down() -> ApiError {
    ApiError {
        retry_after_ms: Some(1000),
        ..ApiError::new(ErrorKind::ShuttingDown, "The server is shutting down.")
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

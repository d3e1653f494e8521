//! The scripted engine's loop.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use limits::{FailureKind, Finish};
use wire::{
    AddRequests, Cache, Direction, EngineFacts, EngineFailed, Identity, Map, Message, Ready, Rows,
    SampledLogprobs, SchedulerStats, Stats, StepOutputs, Utility, UtilityError, UtilityReply,
    Value, decode, encode,
};

use crate::script::{Fault, MockConfig, MockRequest, Script};

const KNOCK_INTERVAL: Duration = Duration::from_secs(1);
const BLOCK_SIZE: u32 = 16;

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Shutdown,
    Refused,
    Died,
}

/// A running request.
struct Live {
    request: MockRequest,
    script: Script,
    given: usize,
    waited: u32,
    prefilled: bool,
}

/// A scripted engine.
pub struct MockEngine {
    config: MockConfig,
    socket: zmq::Socket,
    identity: Identity,
    heartbeat: Duration,
    running: Vec<Live>,
    waiting: VecDeque<Live>,
    step: u64,
    seq: u64,
    stamps: Vec<(u64, u8)>,
    began: Instant,
}

/// A scripted engine on a thread of its own; dropping the handle stops it.
pub struct MockHandle {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for MockHandle {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the scripted engine has been printed; the test that drops the handle goes on.
            let _ = thread.join();
        }
    }
}

impl MockEngine {
    /// Plays against the front end at `address` on a thread, until Shutdown, a deadly fault, or the handle's drop.
    pub fn spawn(config: MockConfig, address: &str) -> MockHandle {
        let (address, stop) = (address.to_owned(), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            MockEngine::connect(config, &address).run(&stopped);
        });
        MockHandle {
            stop,
            thread: Some(thread),
        }
    }

    /// Plays on this thread; the exit code of a process that did so. A deadly fault ends the process by SIGABRT.
    pub fn run_process(config: MockConfig, address: &str) -> i32 {
        match MockEngine::connect(config, address).run(&AtomicBool::new(false)) {
            End::Shutdown => 0,
            End::Refused => 2,
            End::Died => std::process::abort(),
        }
    }

    fn connect(config: MockConfig, address: &str) -> Self {
        let incarnation = std::process::id() as u64 ^ unique() << 32 | 1;
        let identity = Identity {
            engine_index: 0,
            incarnation,
        };
        let socket = zmq::Context::new()
            .socket(zmq::DEALER)
            .expect("a DEALER socket");
        socket
            .set_identity(&identity.to_bytes())
            .expect("an identity");
        socket.set_linger(100).expect("a linger time");
        socket.connect(address).expect("an address to connect to");
        MockEngine {
            config,
            socket,
            identity,
            heartbeat: Duration::from_secs(1),
            running: Vec::new(),
            waiting: VecDeque::new(),
            step: 0,
            seq: 0,
            stamps: Vec::new(),
            began: Instant::now(),
        }
    }

    fn send(&self, message: &Message) {
        // The front end may be gone: its own tests notice.
        let _ = self.socket.send_multipart(encode(message), 0);
    }

    fn ready(&self, phase: &str, facts: Option<Box<EngineFacts>>) -> Message {
        Message::Ready(Ready {
            protocol_major: self.config.protocol_major,
            protocol_minor: wire::PROTOCOL_MINOR,
            engine_index: 0,
            incarnation: self.identity.incarnation,
            phase: phase.to_owned(),
            progress: None,
            facts,
        })
    }

    fn facts(&self) -> EngineFacts {
        let config = &self.config;
        EngineFacts {
            engine_version: env!("CARGO_PKG_VERSION").to_owned(),
            device: "mock".to_owned(),
            pid: std::process::id(),
            max_model_len: config.max_model_len,
            vocab_size: config.vocab_size,
            block_size: BLOCK_SIZE,
            num_blocks: 1 << 16,
            max_num_seqs: config.max_num_seqs,
            max_num_batched_tokens: 8192,
            max_logprobs: 20,
            cache: Cache {
                cache_dtype: "float32".to_owned(),
                gpu_memory_utilization: 0.92,
                enable_prefix_caching: true,
                prefix_caching_hash_algo: "sha256".to_owned(),
                ..Cache::default()
            },
            ..EngineFacts::default()
        }
    }

    fn run(mut self, stop: &AtomicBool) -> End {
        if !self.shake_hands(stop) {
            return End::Shutdown;
        }
        if let Some(line) = self.config.refuses_start.clone() {
            self.fail(FailureKind::StartConfig, line);
            return End::Refused;
        }
        self.load();
        let mut next_step = Instant::now();
        let mut last_sent = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            let busy = !self.running.is_empty() || !self.waiting.is_empty();
            let wait = if busy {
                next_step.saturating_duration_since(Instant::now())
            } else {
                self.heartbeat.min(Duration::from_millis(50))
            };
            let _ = self.socket.poll(zmq::POLLIN, wait.as_millis() as i64);
            while let Ok(frames) = self.socket.recv_multipart(zmq::DONTWAIT) {
                match decode(Direction::FromFrontEnd, 0, &frames) {
                    Ok(Message::Shutdown(_)) => return End::Shutdown,
                    Ok(message) => self.handle(message),
                    Err(fault) => panic!("the front end sent a bad frame: {fault}"),
                }
            }
            let busy = !self.running.is_empty() || !self.waiting.is_empty();
            if busy && Instant::now() >= next_step {
                next_step = Instant::now() + self.config.step_delay;
                if !self.play_step() {
                    return End::Died;
                }
                last_sent = Instant::now();
            } else if last_sent.elapsed() >= self.heartbeat {
                self.report();
                last_sent = Instant::now();
            }
        }
        End::Shutdown
    }

    fn shake_hands(&mut self, stop: &AtomicBool) -> bool {
        loop {
            if stop.load(Ordering::Relaxed) {
                return false;
            }
            let _ = self.socket.send("", zmq::DONTWAIT);
            if self
                .socket
                .poll(zmq::POLLIN, KNOCK_INTERVAL.as_millis() as i64)
                .unwrap_or(0)
                == 0
            {
                continue;
            }
            let frames = self.socket.recv_multipart(0).expect("frames after a poll");
            if let Ok(Message::Hello(hello)) = decode(Direction::FromFrontEnd, 0, &frames) {
                self.heartbeat = Duration::from_millis(u64::from(hello.heartbeat_ms));
                return true;
            }
        }
    }

    fn load(&mut self) {
        for (phase, lasts) in self.config.loading.clone() {
            self.send(&self.ready(phase, None));
            thread::sleep(lasts); // a phase is nothing but its length
        }
        self.send(&self.ready("warm_up", Some(Box::new(self.facts()))));
        self.report();
    }

    fn fail(&self, kind: FailureKind, cause: String) {
        self.send(&Message::EngineFailed(EngineFailed {
            cause,
            kind,
            traceback: String::new(),
            request_key: self.running.iter().map(|live| live.request.key).collect(),
        }));
    }

    fn handle(&mut self, message: Message) {
        match message {
            Message::AddRequests(add) => self.add(&add),
            Message::Abort(abort) => {
                self.running
                    .retain(|live| !abort.request_key.contains(&live.request.key));
                self.waiting
                    .retain(|live| !abort.request_key.contains(&live.request.key));
                self.report();
            }
            Message::Utility(call) => self.answer(&call),
            _ => {}
        }
    }

    fn add(&mut self, add: &AddRequests) {
        let columns = &add.columns;
        let (mut prompt_at, mut stop_at) = (0, 0);
        for row in 0..add.len() {
            let (prompt_len, stop_len) = (
                columns.prompt_len[row] as usize,
                usize::from(columns.stop_len[row]),
            );
            let request = MockRequest {
                key: columns.request_key[row],
                prompt_ids: columns.prompt_ids[prompt_at..prompt_at + prompt_len].to_vec(),
                max_tokens: columns.max_tokens[row],
                min_tokens: columns.min_tokens[row],
                stop_ids: columns.stop_ids[stop_at..stop_at + stop_len].to_vec(),
                stream_key: columns.stream_key[row],
                num_logprobs: columns.num_logprobs[row],
                num_prompt_logprobs: columns.num_prompt_logprobs[row],
                rare: add
                    .rare
                    .iter()
                    .find(|rare| rare.row as usize == row)
                    .cloned(),
            };
            prompt_at += prompt_len;
            stop_at += stop_len;
            let script = (self.config.script)(&request);
            self.stamps.push((request.key, wire::STAMP_QUEUED));
            self.waiting.push_back(Live {
                request,
                script,
                given: 0,
                waited: 0,
                prefilled: false,
            });
        }
    }

    fn answer(&self, call: &Utility) {
        let result = match call.method.as_str() {
            "block_audit" => {
                let used = i128::from(self.used_blocks());
                let total = 1_i128 << 16;
                let entries = [
                    ("held", used),
                    ("cached", 0),
                    ("free", total - used),
                    ("leaked", 0),
                ];
                Ok(Value::Map(
                    entries
                        .into_iter()
                        .map(|(name, count)| (name, Value::Int(count)))
                        .collect::<Map>(),
                ))
            }
            "is_paused" => Ok(Value::Bool(false)),
            method => Err(UtilityError {
                kind: "NotSupported".to_owned(),
                message: format!("this engine has no method {method}"),
            }),
        };
        self.send(&Message::UtilityReply(UtilityReply {
            call_id: call.call_id,
            result,
        }));
    }

    fn used_blocks(&self) -> u32 {
        let tokens = |live: &Live| live.request.prompt_ids.len() + live.given;
        self.running
            .iter()
            .map(|live| (tokens(live) as u32).div_ceil(BLOCK_SIZE))
            .sum()
    }

    fn stats(&mut self, rows: u32, tokens: u32) -> Stats {
        self.seq += 1;
        let backwards = self
            .config
            .faults
            .contains(&Fault::StatsBackwards(self.step));
        let steps = if backwards { 0 } else { self.step };
        let mut waiting_causes = [0; 8];
        waiting_causes[0] = self.waiting.len() as u32;
        Stats::Present(Box::new(SchedulerStats {
            incarnation: self.identity.incarnation,
            seq: self.seq,
            num_running: self.running.len() as u32,
            num_waiting: self.waiting.len() as u32,
            waiting_causes,
            kv_blocks_used: self.used_blocks(),
            kv_blocks_total: 1 << 16,
            step_num_tokens: tokens,
            step_num_rows: rows,
            num_steps: [0, 0, steps],
            ..SchedulerStats::default()
        }))
    }

    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64 + 1
    }

    fn report(&mut self) {
        let stats = self.stats(0, 0);
        let outputs = self.outputs(stats);
        self.send(&Message::StepOutputs(Box::new(outputs)));
    }

    fn outputs(&mut self, stats: Stats) -> StepOutputs {
        let now = self.now_ns();
        let mut outputs = StepOutputs {
            step_stamp_ns: now,
            stats,
            ..StepOutputs::default()
        };
        for (key, kind) in self.stamps.drain(..) {
            outputs.stamps.stamp_key.push(key);
            outputs.stamps.stamp_kind.push(kind);
            outputs.stamps.stamp_ns.push(now);
        }
        outputs
    }

    /// Plays one step; false when a fault ends the engine.
    fn play_step(&mut self) -> bool {
        self.step += 1;
        while self.running.len() < self.config.max_num_seqs as usize
            && let Some(live) = self.waiting.pop_front()
        {
            self.stamps
                .push((live.request.key, wire::STAMP_FIRST_SCHEDULED));
            self.running.push(live);
        }
        for fault in self.config.faults.clone() {
            match fault {
                Fault::Die(step) if step == self.step => return false,
                Fault::Fail(step) if step == self.step => {
                    self.fail(FailureKind::StepFailed, "the script says so".to_owned());
                    return false;
                }
                Fault::Freeze(step, lasts) if step == self.step => thread::sleep(lasts), // the fault is the silence
                Fault::LongStep(step, lasts) if step == self.step => self.dawdle(lasts),
                Fault::Garbage(step) if step == self.step => {
                    let _ = self.socket.send_multipart([&[0x82][..], &[0xc1]], 0);
                    return true;
                }
                _ => {}
            }
        }
        let rows = self.running.len() as u32;
        let mut outputs = self.play_rows();
        if self.config.faults.contains(&Fault::BadRow(self.step))
            && let Some(id) = outputs.rows.token_ids.first_mut()
        {
            *id = self.config.vocab_size;
        }
        let ended: Vec<u64> = finished_keys(&outputs.rows);
        self.running
            .retain(|live| !ended.contains(&live.request.key));
        outputs.stats = self.stats(rows, outputs.rows.token_ids.len() as u32);
        self.send(&Message::StepOutputs(Box::new(outputs)));
        true
    }

    /// A step that takes its time: nothing but heartbeats that tell its age.
    fn dawdle(&mut self, lasts: Duration) {
        let began = Instant::now();
        while began.elapsed() < lasts {
            thread::sleep(self.heartbeat.min(lasts)); // the fault is the time it takes
            let mut stats = self.stats(0, 0);
            if let Stats::Present(stats) = &mut stats {
                stats.step_age_ms = began.elapsed().as_millis() as u32;
            }
            let outputs = self.outputs(stats);
            self.send(&Message::StepOutputs(Box::new(outputs)));
        }
    }

    fn play_rows(&mut self) -> StepOutputs {
        for live in self.running.iter().filter(|live| live.gives_first()) {
            let preempted = (live.request.key, wire::STAMP_PREEMPTED);
            let count = live.script.preemptions as usize;
            self.stamps.extend(std::iter::repeat_n(preempted, count));
        }
        let mut outputs = self.outputs(Stats::Absent);
        let mut logprobs = SampledLogprobs::default();
        let mut asked = false;
        for live in &mut self.running {
            if live.waited < live.script.delay_steps {
                live.waited += 1;
                continue;
            }
            let Some((ids, finish, stop_token)) = live.advance() else {
                continue;
            };
            let row = outputs.rows.request_key.len() as u32;
            outputs.rows.request_key.push(live.request.key);
            outputs.rows.num_tokens.push(ids.len() as u16);
            outputs.rows.finish.push(finish as u8);
            outputs.rows.stop_token.push(stop_token);
            let k = live.request.num_logprobs;
            asked |= k >= 0;
            logprobs.lp_k.push(k);
            let first = live.given - ids.len();
            for (place, id) in ids.iter().enumerate().filter(|_| k >= 0) {
                push_logprob(&mut logprobs, &live.script, first + place, *id, k as usize);
            }
            outputs.rows.token_ids.extend(&ids);
            if !live.prefilled {
                live.prefilled = true;
                push_prefill(&mut outputs, row, live);
            }
            if !live.script.detail.is_empty() && finish.is_terminal() {
                outputs.details.push(wire::Detail {
                    row,
                    message: live.script.detail.clone(),
                });
            }
        }
        outputs.sampled_logprobs = asked.then_some(logprobs);
        outputs
    }
}

impl Live {
    /// Whether the next step gives its first token.
    fn gives_first(&self) -> bool {
        !self.prefilled && self.waited >= self.script.delay_steps
    }

    /// The tokens of this step and how they end the request; None when the script is used up without an end.
    fn advance(&mut self) -> Option<(Vec<u32>, Finish, i32)> {
        let mut ids = Vec::new();
        while ids.len() < self.script.tokens_per_step.max(1) {
            if self.given >= self.request.max_tokens as usize {
                return Some((ids, Finish::MaxTokens, wire::NO_STOP_TOKEN));
            }
            let Some(id) = self.script.tokens.get(self.given).copied() else {
                return Some((ids, self.script.finish, wire::NO_STOP_TOKEN));
            };
            self.given += 1;
            ids.push(id);
            if self.request.stop_ids.contains(&id) && self.given > self.request.min_tokens as usize
            {
                return Some((ids, Finish::StopToken, id as i32));
            }
        }
        let done = self.given >= self.request.max_tokens as usize;
        let spent = self.given >= self.script.tokens.len();
        let finish = if done {
            Finish::MaxTokens
        } else if spent {
            self.script.finish
        } else {
            Finish::NotFinished
        };
        Some((ids, finish, wire::NO_STOP_TOKEN))
    }
}

fn finished_keys(rows: &Rows) -> Vec<u64> {
    rows.request_key
        .iter()
        .zip(&rows.finish)
        .filter(|(_, finish)| **finish != 0)
        .map(|(key, _)| *key)
        .collect()
}

fn push_prefill(outputs: &mut StepOutputs, row: u32, live: &Live) {
    let prompt = live.request.prompt_ids.len() as u32;
    let prefill = &mut outputs.prefill;
    prefill.prefill_row.push(row);
    prefill
        .num_cached_device
        .push(live.script.cached.min(prompt));
    prefill
        .num_computed
        .push(prompt - live.script.cached.min(prompt));
    for none in [
        &mut prefill.num_cached_host,
        &mut prefill.num_cached_disk,
        &mut prefill.num_cached_peer,
        &mut prefill.num_cached_other,
    ] {
        none.push(0);
    }
    let k = live.request.num_prompt_logprobs;
    if k >= 0 && prompt > 1 {
        let chunks = &mut outputs.prompt_logprobs;
        chunks.plp_key.push(live.request.key);
        chunks.plp_start.push(1);
        chunks.plp_count.push(prompt - 1);
        chunks.plp_k.push(k);
        for id in &live.request.prompt_ids[1..] {
            chunks.plp_value.push(-1.0);
            chunks.plp_rank.push(1);
            for other in 0..k as u32 {
                chunks.plp_top_ids.push((id + other) % 1000);
                chunks.plp_top_values.push(-1.0 - other as f32);
            }
        }
    }
}

/// The token's own logprob from the script, and k top entries: the token first, then its successors, 1 apart.
fn push_logprob(out: &mut SampledLogprobs, script: &Script, place: usize, id: u32, k: usize) {
    let cycle = |len: usize| (len > 0).then(|| place % len);
    let value = cycle(script.logprobs.len()).map_or(-1.0, |at| script.logprobs[at]);
    out.lp_value.push(value);
    out.lp_rank
        .push(cycle(script.ranks.len()).map_or(1, |at| script.ranks[at]));
    for other in 0..k {
        out.lp_top_ids.push(id.saturating_sub(other as u32));
        out.lp_top_values.push(value - other as f32);
    }
}

fn unique() -> u64 {
    use std::sync::atomic::AtomicU64;
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

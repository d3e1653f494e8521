//! Random valid messages from a seed: every kind, every group, the borders of every integer width.

use limits::{AbortCause, FailureKind, Finish};
use proa_wire::*;

/// A small generator (SplitMix64); the tests need reproducible streams, not good ones.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn coin(&mut self) -> bool {
        self.below(2) == 0
    }

    /// A number of any width, often at a border of msgpack's integer forms.
    fn u64(&mut self) -> u64 {
        const BORDERS: [u64; 10] = [
            0,
            1,
            0x7f,
            0x80,
            0xff,
            0x100,
            0xffff,
            0x1_0000,
            0xffff_ffff,
            0x1_0000_0000,
        ];
        match self.below(3) {
            0 => BORDERS[self.below(BORDERS.len())],
            1 => self.next() >> self.below(64),
            _ => u64::MAX - BORDERS[self.below(BORDERS.len())],
        }
    }

    fn u32(&mut self) -> u32 {
        self.u64() as u32
    }

    fn i32(&mut self) -> i32 {
        self.u32() as i32
    }

    fn f32(&mut self) -> f32 {
        match self.below(8) {
            0 => f32::NAN,
            1 => f32::NEG_INFINITY,
            2 => f32::INFINITY,
            _ => f32::from_bits(self.u32() & 0xbf7f_ffff),
        }
    }

    fn f64(&mut self) -> f64 {
        f64::from_bits(self.u64() & 0xbfef_ffff_ffff_ffff)
    }

    fn string(&mut self) -> String {
        const CHARS: [char; 6] = ['a', '_', ' ', 'é', '水', '🦀'];
        let len = [0, 3, 31, 32, 300][self.below(5)];
        (0..self.below(len + 1))
            .map(|_| CHARS[self.below(CHARS.len())])
            .collect()
    }

    fn bytes(&mut self) -> Vec<u8> {
        let len = [0, 1, 255, 256, 300][self.below(5)];
        (0..len).map(|_| self.next() as u8).collect()
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.next() as u8)
    }

    fn list<T>(&mut self, len: usize, mut item: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..len).map(|_| item(self)).collect()
    }

    fn short<T>(&mut self, item: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let len = self.below(4);
        self.list(len, item)
    }

    fn maybe<T>(&mut self, item: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.coin().then(|| item(self))
    }

    fn value(&mut self, depth: usize) -> Value {
        match self.below(if depth < 4 { 9 } else { 7 }) {
            0 => Value::Nil,
            1 => Value::Bool(self.coin()),
            2 => Value::Int(self.u64().into()),
            3 => Value::Int((self.u64() as i64).into()),
            4 => Value::Float(self.f64()),
            5 => Value::Str(self.string()),
            6 => Value::Bin(self.bytes()),
            7 => {
                let len = [0, 2, 16][self.below(3)];
                Value::List(self.list(len, |random| random.value(depth + 2)))
            }
            _ => Value::Map(self.map(depth + 1)),
        }
    }

    fn map(&mut self, depth: usize) -> Map {
        let len = [0, 1, 3, 16][self.below(4)];
        Map((0..len)
            .map(|index| (format!("{index}{}", self.string()), self.value(depth + 1)))
            .collect())
    }

    fn named<T>(&mut self, mut item: impl FnMut(&mut Self) -> T) -> Vec<(String, T)> {
        (0..self.below(4))
            .map(|index| (format!("{index}{}", self.string()), item(self)))
            .collect()
    }

    /// Any message of any kind.
    pub fn message(&mut self) -> Message {
        match self.below(12) {
            0 => Message::Hello(self.hello()),
            1 | 2 => Message::AddRequests(Box::new(self.add())),
            3 => Message::Abort(self.abort()),
            4 => Message::Utility(Utility {
                call_id: self.u64(),
                method: self.string(),
                args: self.map(0),
            }),
            5 => Message::Shutdown(Shutdown {
                mode: if self.coin() {
                    ShutdownMode::Drain
                } else {
                    ShutdownMode::Now
                },
                deadline_ms: self.u32(),
            }),
            6 => Message::Ready(self.ready()),
            7 => Message::UtilityReply(self.reply()),
            8 => Message::EngineFailed(self.failed()),
            _ => Message::StepOutputs(Box::new(self.step())),
        }
    }

    fn hello(&mut self) -> Hello {
        Hello {
            protocol_major: self.u64() as u16,
            protocol_minor: 0,
            frontend_version: self.string(),
            engine_index: self.u64() as u16,
            heartbeat_ms: self.u32(),
            nonce: self.array(),
            proof: self.maybe(Self::array),
        }
    }

    fn rare(&mut self) -> Rare {
        let num_bias = self.below(4);
        Rare {
            row: 0,
            salt: self.maybe(Self::bytes),
            session: self.maybe(Self::bytes),
            lora: self.maybe(Self::string),
            grammar: self.maybe(|random| Grammar {
                kind: random.string(),
                text: if random.below(20) == 0 {
                    "x".repeat(70_000)
                } else {
                    random.string()
                },
                options: random.map(0),
            }),
            logit_bias: self.maybe(|random| LogitBias {
                ids: random.list(num_bias, Self::u32),
                values: random.list(num_bias, Self::f32),
            }),
            allowed_ids: self.maybe(|random| random.short(Self::u32)),
            bad_words: self.maybe(rare_bad_words),
            logprob_ids: self.maybe(|random| random.short(Self::u32)),
            beam: self.maybe(|random| Beam {
                width: random.u64() as u16,
                length_penalty: random.f64(),
                early_stopping: random.u64() as u8,
            }),
            repetition: self.maybe(|random| Repetition {
                min: random.u64() as u16,
                max: random.u64() as u16,
                count: random.u64() as u16,
            }),
            thinking_budget: self.maybe(Self::u32),
            pooling: self.maybe(|random| Pooling {
                task: random.string(),
                dimensions: random.u32(),
            }),
            media: self.maybe(|random| random.short(|random| random.value(1))),
            trace: self.maybe(Self::bytes),
            max_load_tokens: self.maybe(Self::u32),
        }
    }

    fn add(&mut self) -> AddRequests {
        let mut add = AddRequests::default();
        for _ in 0..self.below(5) {
            let rare = self.maybe(Self::rare);
            let (prompt_ids, stop_ids) = (self.short(Self::u32), self.short(Self::u32));
            add.push(&RequestRow {
                request_key: self.u64(),
                prompt_ids: &prompt_ids,
                num_emitted: self.u32(),
                max_tokens: self.u32(),
                min_tokens: self.u32(),
                temperature: self.f32(),
                top_p: self.f32(),
                min_p: self.f32(),
                presence_penalty: self.f32(),
                frequency_penalty: self.f32(),
                repetition_penalty: self.f32(),
                top_k: self.u32(),
                stream_key: self.u64(),
                num_logprobs: self.i32(),
                num_prompt_logprobs: self.i32(),
                stop_ids: &stop_ids,
                priority: self.u64() as i64,
                deadline_ms: self.u32(),
                flags: self.u32(),
                rare: rare.as_ref(),
            });
        }
        add
    }

    fn abort(&mut self) -> Abort {
        let mut abort = Abort::default();
        for _ in 0..self.below(4) {
            abort.push(
                self.u64(),
                AbortCause::ALL[self.below(AbortCause::ALL.len())],
            );
        }
        abort
    }

    fn ready(&mut self) -> Ready {
        Ready {
            protocol_major: self.u64() as u16,
            protocol_minor: 0,
            engine_index: self.u64() as u16,
            incarnation: self.u64(),
            phase: self.string(),
            progress: self.maybe(Self::f64),
            facts: self.maybe(|random| Box::new(random.facts())),
        }
    }

    fn facts(&mut self) -> EngineFacts {
        EngineFacts {
            engine_version: self.string(),
            device: self.string(),
            pid: self.u32(),
            clock_ns: self.u64(),
            max_model_len: self.u32(),
            vocab_size: self.u32(),
            block_size: self.u32(),
            num_blocks: self.u32(),
            max_num_seqs: self.u32(),
            max_num_batched_tokens: self.u32(),
            num_spec_tokens: self.u32(),
            max_logprobs: self.i32(),
            cache: Cache {
                cache_dtype: self.string(),
                gpu_memory_utilization: self.f64(),
                enable_prefix_caching: self.coin(),
                prefix_caching_hash_algo: self.string(),
                num_cpu_blocks: self.maybe(Self::u32),
                kv_offloading_backend: self.maybe(Self::string),
                kv_offloading_size: self.maybe(Self::u64),
            },
            identity_hash: self.array(),
            config_hash: self.array(),
            step_group: self.u32(),
            capabilities: self.named(|random| Capability {
                ok: random.coin(),
                reason: random.string(),
            }),
            kernels: self.short(|random| random.map(0)),
            startup: self.short(|random| random.map(0)),
            markers: self.short(|random| random.map(0)),
            proof: self.maybe(Self::array),
        }
    }

    fn reply(&mut self) -> UtilityReply {
        let result = match self.coin() {
            true => Ok(self.value(0)),
            false => Err(UtilityError {
                kind: self.string(),
                message: self.string(),
            }),
        };
        UtilityReply {
            call_id: self.u64(),
            result,
        }
    }

    fn failed(&mut self) -> EngineFailed {
        EngineFailed {
            cause: self.line(),
            kind: FailureKind::ALL[self.below(FailureKind::ALL.len())],
            traceback: self.string(),
            request_key: self.short(Self::u64),
        }
    }

    fn line(&mut self) -> String {
        self.string().chars().take(128).collect()
    }

    fn stats(&mut self) -> SchedulerStats {
        SchedulerStats {
            incarnation: self.u64(),
            seq: self.u64(),
            num_running: self.u32(),
            num_waiting: self.u32(),
            waiting_causes: std::array::from_fn(|_| self.u32()),
            kv_blocks_used: self.u32(),
            kv_blocks_total: self.u32(),
            sleep_state: self.u64() as u8,
            paused: self.coin(),
            step_age_ms: self.u32(),
            step_num_tokens: self.u32(),
            step_num_rows: self.u32(),
            num_steps: std::array::from_fn(|_| self.u64()),
            step_ns: std::array::from_fn(|_| self.u64()),
            prefix_queries: self.u64(),
            prefix_hits: self.u64(),
            external_queries: self.u64(),
            external_hits: self.u64(),
            resumed_queries: self.u64(),
            resumed_hits: self.u64(),
            mm_queries: self.u64(),
            mm_hits: self.u64(),
            recomputed_tokens: self.u64(),
            finished_row_tokens: self.u64(),
            num_corrupted: self.u64(),
            num_drafts: self.maybe(Self::u64),
            num_draft_tokens: self.maybe(Self::u64),
            num_accepted_tokens: self.maybe(Self::u64),
            accepted_per_pos: self.maybe(|random| random.short(Self::u64)),
            fallbacks: self.named(Self::u64),
            lora_slot_loads: self.maybe(Self::u64),
            lora_slot_evictions: self.maybe(Self::u64),
            lora_embedding_delta_skipped: self.maybe(Self::u64),
            eplb_rebalances_moved: self.maybe(Self::u64),
            eplb_rebalances_kept: self.maybe(Self::u64),
            eplb_expert_moves: self.maybe(Self::u64),
            eplb_rebalance_ns: self.maybe(Self::u64),
            eplb_balancedness: self.maybe(Self::f64),
            lora_running: self.maybe(|random| random.short(Self::string)),
            lora_waiting: self.maybe(|random| random.short(Self::string)),
            process_rss_bytes: self.maybe(Self::u64),
            process_cpu_ns: self.maybe(Self::u64),
            process_open_fds: self.maybe(Self::u64),
            grammar_compile_ns: self.short(Self::u64),
            kv_evicted_ns: self.short(|random| [random.u64(), random.u64()]),
            kv_reuse_gap_ns: self.short(Self::u64),
        }
    }

    fn step(&mut self) -> StepOutputs {
        let rows = self.rows();
        let n = rows.request_key.len();
        let sampled_logprobs = if n > 0 {
            self.maybe(|random| random.sampled_logprobs(&rows))
        } else {
            None
        };
        let stats = match self.coin() {
            true => Stats::Present(Box::new(self.stats())),
            false => Stats::Absent,
        };
        StepOutputs {
            step_stamp_ns: self.u64(),
            stats,
            details: self.short(|random| Detail {
                row: random.u32(),
                message: random.line(),
            }),
            sampled_logprobs,
            prompt_logprobs: self.prompt_logprobs(),
            prefill: if n > 0 {
                self.prefill(n)
            } else {
                Prefill::default()
            },
            stamps: {
                let q = self.below(4);
                Stamps {
                    stamp_key: self.list(q, Self::u64),
                    stamp_kind: self.list(q, |random| random.below(3) as u8),
                    stamp_ns: self.list(q, Self::u64),
                }
            },
            progress: {
                let q = self.below(3);
                Progress {
                    prog_key: self.list(q, Self::u64),
                    prog_reason: self.list(q, |random| random.u64() as u8),
                    prog_position: self.list(q, Self::u32),
                    prog_cached: self.list(q, Self::u32),
                    prog_computed: self.list(q, Self::u32),
                }
            },
            usage: {
                let q = self.below(3);
                Usage {
                    use_key: self.list(q, Self::u64),
                    use_recomputed: self.list(q, Self::u32),
                    use_drafted: self.list(q, Self::u32),
                    use_accepted: self.list(q, Self::u32),
                }
            },
            lp_ask_values: self.short(Self::f32),
            rows,
        }
    }

    fn rows(&mut self) -> Rows {
        let n = self.below(6);
        let num_tokens = self.list(n, |random| random.below(4) as u16);
        let tokens = num_tokens.iter().map(|count| usize::from(*count)).sum();
        Rows {
            request_key: self.list(n, Self::u64),
            token_ids: self.list(tokens, Self::u32),
            finish: self.list(n, |random| {
                Finish::ALL[random.below(Finish::ALL.len())] as u8
            }),
            stop_token: self.list(n, Self::i32),
            num_tokens,
        }
    }

    fn sampled_logprobs(&mut self, rows: &Rows) -> SampledLogprobs {
        let lp_k = self.list(rows.num_tokens.len(), |random| random.below(4) as i32 - 1);
        let (mut tokens, mut tops) = (0, 0);
        for (k, count) in lp_k.iter().zip(&rows.num_tokens).filter(|(k, _)| **k >= 0) {
            tokens += usize::from(*count);
            tops += usize::from(*count) * *k as usize;
        }
        SampledLogprobs {
            lp_k,
            lp_value: self.list(tokens, Self::f32),
            lp_rank: self.list(tokens, Self::u32),
            lp_top_ids: self.list(tops, Self::u32),
            lp_top_values: self.list(tops, Self::f32),
        }
    }

    fn prompt_logprobs(&mut self) -> PromptLogprobs {
        let q = self.below(3);
        let plp_count = self.list(q, |random| random.below(4) as u32);
        let plp_k = self.list(q, |random| random.below(3) as i32);
        let positions = plp_count.iter().sum::<u32>() as usize;
        let tops = plp_count
            .iter()
            .zip(&plp_k)
            .map(|(count, k)| *count as usize * *k as usize)
            .sum();
        PromptLogprobs {
            plp_key: self.list(q, Self::u64),
            plp_start: self.list(q, Self::u32),
            plp_value: self.list(positions, Self::f32),
            plp_rank: self.list(positions, Self::u32),
            plp_top_ids: self.list(tops, Self::u32),
            plp_top_values: self.list(tops, Self::f32),
            plp_count,
            plp_k,
        }
    }

    fn prefill(&mut self, num_rows: usize) -> Prefill {
        let p = self.below(3);
        Prefill {
            prefill_row: self.list(p, |random| random.below(num_rows) as u32),
            num_computed: self.list(p, Self::u32),
            num_cached_device: self.list(p, Self::u32),
            num_cached_host: self.list(p, Self::u32),
            num_cached_disk: self.list(p, Self::u32),
            num_cached_peer: self.list(p, Self::u32),
            num_cached_other: self.list(p, Self::u32),
        }
    }
}

fn rare_bad_words(random: &mut Random) -> BadWords {
    BadWords(random.short(|random| random.short(Random::u32)))
}

/// Changes, cuts, doubles or drops something in `frames`, up to four times.
pub fn mutate(random: &mut Random, frames: &mut Vec<Vec<u8>>) {
    for _ in 0..=random.below(4) {
        if frames.is_empty() {
            return;
        }
        // Most of what can go wrong lies in the body.
        let at = if random.coin() {
            1.min(frames.len() - 1)
        } else {
            random.below(frames.len())
        };
        let len = frames[at].len();
        match random.below(8) {
            0 => frames[at].truncate(random.below(len + 1)),
            1 => frames[at].push(random.next() as u8),
            2 => drop(frames.remove(at)),
            3 => frames.insert(at, frames[at].clone()),
            4 if len > 0 => {
                let from = random.below(len);
                let part = frames[at][from..(from + 1 + random.below(8)).min(len)].to_vec();
                let to = random.below(len + 1);
                frames[at].splice(to..to, part);
            }
            5 if len > 0 => {
                let index = random.below(len);
                frames[at][index] =
                    [0x00, 0x80, 0x90, 0xc0, 0xc1, 0xc4, 0xd4, 0xdd, 0xdf, 0xff][random.below(10)];
            }
            _ if len > 0 => {
                let index = random.below(len);
                frames[at][index] ^= 1 << random.below(8);
            }
            _ => frames[at].push(random.next() as u8),
        }
    }
}

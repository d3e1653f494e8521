//! StepOutputs: what a step gave, one group of columns per subject.

use crate::column::{ColumnSet, ColumnWriter, columns, same_length, sum_is};
use crate::fault::{Fault, mismatch, undecodable};
use crate::field::{Field, Item, record};
use crate::msgpack::{Reader, Writer};
use crate::sizes::MAX_LINE_BYTES;
use crate::stats::SchedulerStats;

columns! {
    /// The rows of the step: n requests that got tokens or ended.
    pub struct Rows {
        /// The request.
        request_key: u64,
        /// Tokens of the row in `token_ids`.
        num_tokens: u16,
        /// The tokens of all rows.
        token_ids: u32,
        /// Code of `limits::Finish`.
        finish: u8,
        /// The id that ended the request; -1 = none.
        stop_token: i32,
    }
}

columns! {
    /// Logprobs of the tokens of [`Rows`].
    pub struct SampledLogprobs {
        /// Per row: -1 none, else the number of top entries per token.
        lp_k: i32,
        /// Per token of rows with `lp_k` >= 0: logprob of the sampled token; any f32, NaN included.
        lp_value: f32,
        /// Per such token: its rank from 1; 0 = not ranked.
        lp_rank: u32,
        /// Per such token `lp_k` ids by falling logprob.
        lp_top_ids: u32,
        /// Their logprobs.
        lp_top_values: f32,
    }
}

columns! {
    /// Chunks of prompt logprobs, in order per request; position 0 is never sent.
    pub struct PromptLogprobs {
        /// The request.
        plp_key: u64,
        /// Prompt position of the chunk's first entry.
        plp_start: u32,
        /// Positions in the chunk.
        plp_count: u32,
        /// Top entries per position, 0 or more.
        plp_k: i32,
        /// Per position: logprob of the prompt's token.
        plp_value: f32,
        /// Per position: its rank from 1; 0 = not ranked.
        plp_rank: u32,
        /// Per position `plp_k` ids by falling logprob.
        plp_top_ids: u32,
        /// Their logprobs.
        plp_top_values: f32,
    }
}

columns! {
    /// Rows whose prefill completed in this step; the six counts sum to the prompt's length.
    pub struct Prefill {
        /// Index into [`Rows`].
        prefill_row: u32,
        /// Tokens computed.
        num_computed: u32,
        /// Tokens found on the device.
        num_cached_device: u32,
        /// Tokens loaded from host memory.
        num_cached_host: u32,
        /// Tokens loaded from disk.
        num_cached_disk: u32,
        /// Tokens loaded from a peer.
        num_cached_peer: u32,
        /// Tokens loaded from elsewhere.
        num_cached_other: u32,
    }
}

columns! {
    /// When requests were queued, first scheduled, preempted.
    pub struct Stamps {
        /// The request.
        stamp_key: u64,
        /// One of the `STAMP_*` values.
        stamp_kind: u8,
        /// Engine clock.
        stamp_ns: u64,
    }
}

columns! {
    /// Where requests that asked for progress stand.
    pub struct Progress {
        /// The request.
        prog_key: u64,
        /// 0..7 = queued, index into `limits::WAITING_CAUSES`; 255 = in prefill.
        prog_reason: u8,
        /// Place in the queue.
        prog_position: u32,
        /// Prompt tokens taken from the cache.
        prog_cached: u32,
        /// Prompt tokens computed.
        prog_computed: u32,
    }
}

columns! {
    /// What requests that ended in this step used.
    pub struct Usage {
        /// The request.
        use_key: u64,
        /// Tokens recomputed after preemption.
        use_recomputed: u32,
        /// Tokens drafted.
        use_drafted: u32,
        /// Drafted tokens accepted.
        use_accepted: u32,
    }
}

record! {
    /// Why a row ended with a finish code of 10 to 16.
    pub struct Detail {
        /// Index into [`Rows`].
        row: u32 => required,
        /// At most 512 bytes.
        message: String => required,
    }
}

impl Item for Detail {}

/// The snapshot of a message.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Stats {
    /// The message has none.
    #[default]
    Absent,
    /// A whole snapshot.
    Present(Box<SchedulerStats>),
    /// A field is missing, unknown or of the wrong type: to be counted, and the rows used.
    Faulty,
}

impl Field for Stats {
    /// Only [`Stats::Present`] is sent; the others have no form of their own.
    fn write(&self, out: &mut Writer) {
        match self {
            Stats::Present(stats) => stats.write(out),
            Stats::Absent | Stats::Faulty => out.nil(),
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Fault> {
        let mut whole = reader.clone();
        whole.skip()?;
        let stats = SchedulerStats::read(reader)
            .map_or(Stats::Faulty, |stats| Stats::Present(Box::new(stats)));
        *reader = whole;
        Ok(stats)
    }
}

/// What a step gave; without rows a change of gauges or the engine's heartbeat.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOutputs {
    /// Engine clock when the step's result was applied.
    pub step_stamp_ns: u64,
    /// The scheduler's snapshot.
    pub stats: Stats,
    /// Why rows failed.
    pub details: Vec<Detail>,
    /// The rows.
    pub rows: Rows,
    /// Logprobs of the rows' tokens; None if no row has any.
    pub sampled_logprobs: Option<SampledLogprobs>,
    /// Chunks of prompt logprobs.
    pub prompt_logprobs: PromptLogprobs,
    /// Rows whose prefill completed.
    pub prefill: Prefill,
    /// Queued, first scheduled, preempted.
    pub stamps: Stamps,
    /// Where requests stand.
    pub progress: Progress,
    /// What ended requests used.
    pub usage: Usage,
    /// Logprobs of the asked ids, one set per token of rows that asked; the receiver knows how many.
    pub lp_ask_values: Vec<f32>,
}

impl StepOutputs {
    /// Reads every group and checks lengths and sums. Body fields are filled by the caller.
    pub(crate) fn take<F: AsRef<[u8]>>(set: &mut ColumnSet<'_, F>) -> Result<Self, Fault> {
        let outputs = StepOutputs {
            rows: Rows::take(set)?.unwrap_or_default(),
            sampled_logprobs: SampledLogprobs::take(set)?,
            prompt_logprobs: PromptLogprobs::take(set)?.unwrap_or_default(),
            prefill: Prefill::take(set)?.unwrap_or_default(),
            stamps: Stamps::take(set)?.unwrap_or_default(),
            progress: Progress::take(set)?.unwrap_or_default(),
            usage: Usage::take(set)?.unwrap_or_default(),
            lp_ask_values: set.take("lp_ask_values")?.unwrap_or_default(),
            ..StepOutputs::default()
        };
        outputs.rows.check()?;
        if let Some(logprobs) = &outputs.sampled_logprobs {
            logprobs.check(&outputs.rows)?;
        }
        outputs.prompt_logprobs.check()?;
        outputs.check_sparse_groups()?;
        Ok(outputs)
    }

    pub(crate) fn put(&self, out: &mut ColumnWriter) {
        macro_rules! put {
            ($($group:ident),*) => {
                $(if !self.$group.is_empty() {
                    self.$group.put(out);
                })*
            };
        }
        put!(rows);
        if let Some(logprobs) = self
            .sampled_logprobs
            .as_ref()
            .filter(|group| !group.is_empty())
        {
            logprobs.put(out);
        }
        put!(prompt_logprobs, prefill, stamps, progress, usage);
        if !self.lp_ask_values.is_empty() {
            out.put("lp_ask_values", &self.lp_ask_values);
        }
    }

    fn check_sparse_groups(&self) -> Result<(), Fault> {
        let prefill = &self.prefill;
        same_length(
            prefill.prefill_row.len(),
            &[
                prefill.num_computed.len(),
                prefill.num_cached_device.len(),
                prefill.num_cached_host.len(),
                prefill.num_cached_disk.len(),
                prefill.num_cached_peer.len(),
                prefill.num_cached_other.len(),
            ],
        )?;
        let num_rows = self.rows.request_key.len();
        if prefill
            .prefill_row
            .iter()
            .any(|row| *row as usize >= num_rows)
        {
            return mismatch("a prefill entry belongs to no row");
        }
        let stamps = &self.stamps;
        same_length(
            stamps.stamp_key.len(),
            &[stamps.stamp_kind.len(), stamps.stamp_ns.len()],
        )?;
        let progress = &self.progress;
        same_length(
            progress.prog_key.len(),
            &[
                progress.prog_reason.len(),
                progress.prog_position.len(),
                progress.prog_cached.len(),
                progress.prog_computed.len(),
            ],
        )?;
        let usage = &self.usage;
        same_length(
            usage.use_key.len(),
            &[
                usage.use_recomputed.len(),
                usage.use_drafted.len(),
                usage.use_accepted.len(),
            ],
        )
    }
}

impl Rows {
    fn check(&self) -> Result<(), Fault> {
        same_length(
            self.request_key.len(),
            &[
                self.num_tokens.len(),
                self.finish.len(),
                self.stop_token.len(),
            ],
        )?;
        sum_is(
            self.num_tokens.iter().map(|count| u128::from(*count)).sum(),
            self.token_ids.len(),
        )
    }
}

impl SampledLogprobs {
    fn check(&self, rows: &Rows) -> Result<(), Fault> {
        same_length(rows.request_key.len(), &[self.lp_k.len()])?;
        let (mut tokens, mut tops) = (0, 0);
        for (k, count) in self.lp_k.iter().zip(&rows.num_tokens) {
            match u32::try_from(*k) {
                Ok(k) => {
                    tokens += u128::from(*count);
                    tops += u128::from(*count) * u128::from(k);
                }
                Err(_) if *k == -1 => {}
                Err(_) => return mismatch("lp_k is below -1"),
            }
        }
        sum_is(tokens, self.lp_value.len())?;
        sum_is(tokens, self.lp_rank.len())?;
        sum_is(tops, self.lp_top_ids.len())?;
        sum_is(tops, self.lp_top_values.len())
    }
}

impl PromptLogprobs {
    fn check(&self) -> Result<(), Fault> {
        same_length(
            self.plp_key.len(),
            &[self.plp_start.len(), self.plp_count.len(), self.plp_k.len()],
        )?;
        let (mut positions, mut tops) = (0, 0);
        for (k, count) in self.plp_k.iter().zip(&self.plp_count) {
            let Ok(k) = u32::try_from(*k) else {
                return mismatch("plp_k is below 0");
            };
            positions += u128::from(*count);
            tops += u128::from(*count) * u128::from(k);
        }
        sum_is(positions, self.plp_value.len())?;
        sum_is(positions, self.plp_rank.len())?;
        sum_is(tops, self.plp_top_ids.len())?;
        sum_is(tops, self.plp_top_values.len())
    }
}

impl Detail {
    pub(crate) fn check(&self) -> Result<(), Fault> {
        match self.message.len() {
            0..=MAX_LINE_BYTES => Ok(()),
            _ => undecodable("a details line is too long"),
        }
    }
}

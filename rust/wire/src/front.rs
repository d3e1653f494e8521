//! Messages of the front end.

use crate::column::{ColumnSet, columns, same_length, sum_is};
use crate::fault::{Fault, mismatch};
use crate::field::{Field, record};
use crate::msgpack::{Map, Reader, Writer};
use crate::rare::Rare;

record! {
    /// First word of the front end to an engine that knocked.
    pub struct Hello {
        /// Another major ends the start.
        protocol_major: u16 => required,
        /// A higher minor may add keys and columns.
        protocol_minor: u16 => required,
        /// Version of the program, for the log.
        frontend_version: String => required,
        /// The index the front end knows this engine by.
        engine_index: u16 => required,
        /// Longest silence either side keeps, in ms.
        heartbeat_ms: u32 => required,
        /// Random bytes the engine's proof answers; zero on a unix socket.
        nonce: [u8; 16] => required,
        /// Answers the knock's nonce; None on a unix socket.
        proof: Option<[u8; 32]> => nullable,
    }
}

columns! {
    /// The rows of AddRequests: m requests; `prompt_ids` and `stop_ids` are concatenated.
    pub struct RequestColumns {
        /// Never 0, never used twice by a front end.
        request_key: u64,
        /// Known tokens of the row, at least 1.
        prompt_len: u32,
        /// The known tokens of all rows, each below the vocabulary size.
        prompt_ids: u32,
        /// How many of the known tokens, from the end, are output already emitted; below `prompt_len`.
        num_emitted: u32,
        /// Output tokens in all, emitted ones included.
        max_tokens: u32,
        /// Output tokens before which nothing ends the request, emitted ones included.
        min_tokens: u32,
        /// 0 = greedy.
        temperature: f32,
        /// Mass of the kept tokens; 1 = off.
        top_p: f32,
        /// Least probability relative to the largest; 0 = off.
        min_p: f32,
        /// 0 = off.
        presence_penalty: f32,
        /// 0 = off.
        frequency_penalty: f32,
        /// 1 = off.
        repetition_penalty: f32,
        /// Number of kept tokens; 0 = off.
        top_k: u32,
        /// Random stream of the choice.
        stream_key: u64,
        /// -1 none, 0 the sampled token only, k, -2 the vocabulary.
        num_logprobs: i32,
        /// As `num_logprobs`, for the prompt.
        num_prompt_logprobs: i32,
        /// Number of ids in `stop_ids` that belong to the row.
        stop_len: u16,
        /// Ids that end the request.
        stop_ids: u32,
        /// Lower runs first; 0 under fcfs.
        priority: i64,
        /// Time left at sending; `NO_DEADLINE` = none.
        deadline_ms: u32,
        /// Sum of the `FLAG_*` bits.
        flags: u32,
    }
}

/// Requests to run; without rows a nudge.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AddRequests {
    /// One entry per request.
    pub columns: RequestColumns,
    /// What only some rows have, at most one entry per row.
    pub rare: Vec<Rare>,
}

/// One request, as [`AddRequests::push`] takes it; the fields are those of [`RequestColumns`] and neutral
/// by default.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct RequestRow<'a> {
    pub request_key: u64,
    pub prompt_ids: &'a [u32],
    pub num_emitted: u32,
    pub max_tokens: u32,
    pub min_tokens: u32,
    pub temperature: f32,
    pub top_p: f32,
    pub min_p: f32,
    pub presence_penalty: f32,
    pub frequency_penalty: f32,
    pub repetition_penalty: f32,
    pub top_k: u32,
    pub stream_key: u64,
    pub num_logprobs: i32,
    pub num_prompt_logprobs: i32,
    pub stop_ids: &'a [u32],
    pub priority: i64,
    pub deadline_ms: u32,
    pub flags: u32,
    /// None = nothing rare; its `row` is filled in.
    pub rare: Option<&'a Rare>,
}

impl Default for RequestRow<'_> {
    fn default() -> Self {
        RequestRow {
            request_key: 0,
            prompt_ids: &[],
            num_emitted: 0,
            max_tokens: 0,
            min_tokens: 0,
            temperature: 1.0,
            top_p: 1.0,
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            top_k: 0,
            stream_key: 0,
            num_logprobs: crate::LOGPROBS_NONE,
            num_prompt_logprobs: crate::LOGPROBS_NONE,
            stop_ids: &[],
            priority: 0,
            deadline_ms: crate::NO_DEADLINE,
            flags: 0,
            rare: None,
        }
    }
}

impl AddRequests {
    /// Number of requests.
    pub fn len(&self) -> usize {
        self.columns.request_key.len()
    }

    /// Whether this is a nudge.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a request. At most 65,535 of `stop_ids` are kept; the front end's limits lie far below.
    pub fn push(&mut self, row: &RequestRow<'_>) {
        if let Some(rare) = row.rare {
            self.rare.push(Rare {
                row: self.len() as u32,
                ..rare.clone()
            });
        }
        let columns = &mut self.columns;
        columns.request_key.push(row.request_key);
        columns.prompt_len.push(row.prompt_ids.len() as u32);
        columns.prompt_ids.extend_from_slice(row.prompt_ids);
        columns.num_emitted.push(row.num_emitted);
        columns.max_tokens.push(row.max_tokens);
        columns.min_tokens.push(row.min_tokens);
        columns.temperature.push(row.temperature);
        columns.top_p.push(row.top_p);
        columns.min_p.push(row.min_p);
        columns.presence_penalty.push(row.presence_penalty);
        columns.frequency_penalty.push(row.frequency_penalty);
        columns.repetition_penalty.push(row.repetition_penalty);
        columns.top_k.push(row.top_k);
        columns.stream_key.push(row.stream_key);
        columns.num_logprobs.push(row.num_logprobs);
        columns.num_prompt_logprobs.push(row.num_prompt_logprobs);
        let stop_ids = &row.stop_ids[..row.stop_ids.len().min(usize::from(u16::MAX))];
        columns.stop_len.push(stop_ids.len() as u16);
        columns.stop_ids.extend_from_slice(stop_ids);
        columns.priority.push(row.priority);
        columns.deadline_ms.push(row.deadline_ms);
        columns.flags.push(row.flags);
    }

    pub(crate) fn take<F: AsRef<[u8]>>(
        rare: Vec<Rare>,
        set: &mut ColumnSet<'_, F>,
    ) -> Result<Self, Fault> {
        let columns = RequestColumns::take(set)?.unwrap_or_default();
        columns.check()?;
        let num_rows = columns.request_key.len();
        let mut rows: Vec<u32> = rare.iter().map(|rare| rare.row).collect();
        rows.sort_unstable();
        if rows.windows(2).any(|pair| pair[0] == pair[1])
            || rows.last().is_some_and(|row| *row as usize >= num_rows)
        {
            return mismatch("a rare entry is doubled or belongs to no row");
        }
        Ok(AddRequests { columns, rare })
    }
}

impl RequestColumns {
    fn check(&self) -> Result<(), Fault> {
        let lengths = [
            self.prompt_len.len(),
            self.num_emitted.len(),
            self.max_tokens.len(),
            self.min_tokens.len(),
            self.temperature.len(),
            self.top_p.len(),
            self.min_p.len(),
            self.presence_penalty.len(),
            self.frequency_penalty.len(),
            self.repetition_penalty.len(),
            self.top_k.len(),
            self.stream_key.len(),
            self.num_logprobs.len(),
            self.num_prompt_logprobs.len(),
            self.stop_len.len(),
            self.priority.len(),
            self.deadline_ms.len(),
            self.flags.len(),
        ];
        same_length(self.request_key.len(), &lengths)?;
        sum_is(
            self.prompt_len.iter().map(|len| u128::from(*len)).sum(),
            self.prompt_ids.len(),
        )?;
        sum_is(
            self.stop_len.iter().map(|len| u128::from(*len)).sum(),
            self.stop_ids.len(),
        )
    }
}

columns! {
    /// Requests to end; without keys the front end's heartbeat.
    pub struct Abort {
        /// Unknown keys are normal.
        request_key: u64,
        /// Code of `limits::AbortCause`.
        cause: u8,
    }
}

impl Abort {
    /// Adds a request to end.
    pub fn push(&mut self, request_key: u64, cause: limits::AbortCause) {
        self.request_key.push(request_key);
        self.cause.push(cause as u8);
    }

    pub(crate) fn take_checked<F: AsRef<[u8]>>(set: &mut ColumnSet<'_, F>) -> Result<Self, Fault> {
        let abort = Abort::take(set)?.unwrap_or_default();
        same_length(abort.request_key.len(), &[abort.cause.len()])?;
        Ok(abort)
    }
}

record! {
    /// A call of a named method, applied between steps.
    pub struct Utility {
        /// Per engine, from 1.
        call_id: u64 => required,
        /// The method's name.
        method: String => required,
        /// Its arguments.
        args: Map => required,
    }
}

/// How an engine ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShutdownMode {
    /// Running requests are completed.
    #[default]
    Drain,
    /// They are ended.
    Now,
}

impl Field for ShutdownMode {
    fn write(&self, out: &mut Writer) {
        out.str(match self {
            ShutdownMode::Drain => "drain",
            ShutdownMode::Now => "now",
        });
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Fault> {
        match reader.str()? {
            "drain" => Ok(ShutdownMode::Drain),
            "now" => Ok(ShutdownMode::Now),
            _ => mismatch("unknown shutdown mode"),
        }
    }
}

record! {
    /// Ask the engine to exit with code 0 within the deadline.
    pub struct Shutdown {
        /// What becomes of running requests.
        mode: ShutdownMode => required,
        /// Time the engine has.
        deadline_ms: u32 => required,
    }
}

//! Faults of single rows (wire.md section 5, line "row"): they harm their own request only.

use crate::outputs::StepOutputs;

/// The rows of a StepOutputs that break a rule; everything else in the message is to be used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowFaults {
    /// Indices into `rows`, rising. Their requests end `internal`; every row of a doubled key is here, the
    /// second becomes a late row when the first has ended the request.
    pub rows: Vec<u32>,
    /// Indices into the chunks of `prompt_logprobs`, rising; their requests end `internal` as well.
    pub prompt_chunks: Vec<u32>,
    /// Indices into `details` that name no row: counted, and nobody is harmed.
    pub details: Vec<u32>,
}

impl RowFaults {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.prompt_chunks.is_empty() && self.details.is_empty()
    }
}

/// Largest code of the column `finish`.
const MAX_FINISH: u8 = limits::Finish::Internal as u8;

/// Checks every row of a decoded message against the engine's vocabulary.
///
/// Rules: token id >= `vocab_size`; rank > `vocab_size`; finish > 16; no tokens and no finish; a second
/// row for a key; a details entry of no row. NaN and infinite logprobs and rank 0 are legal.
pub fn row_faults(outputs: &StepOutputs, vocab_size: u32) -> RowFaults {
    let rows = &outputs.rows;
    let mut faults = RowFaults::default();
    let is_whole = all_below(&rows.token_ids, vocab_size)
        && outputs.sampled_logprobs.as_ref().is_none_or(|logprobs| {
            all_below(&logprobs.lp_top_ids, vocab_size)
                && logprobs.lp_rank.iter().all(|rank| *rank <= vocab_size)
        })
        && rows
            .finish
            .iter()
            .zip(&rows.num_tokens)
            .all(|(finish, count)| is_ending_legal(*finish, *count));
    if !is_whole {
        faults.rows = faulty_rows(outputs, vocab_size);
    }
    // Keys mostly rise with arrival, so the common case is one pass.
    if !rows.request_key.is_sorted_by(|a, b| a < b) {
        faults.rows.extend(doubled_rows(&rows.request_key));
        faults.rows.sort_unstable();
        faults.rows.dedup();
    }
    faults.prompt_chunks = faulty_chunks(outputs, vocab_size);
    let num_rows = rows.request_key.len();
    faults.details = indices(
        outputs
            .details
            .iter()
            .map(|detail| detail.row as usize >= num_rows),
    );
    faults
}

fn all_below(ids: &[u32], vocab_size: u32) -> bool {
    ids.iter().all(|id| *id < vocab_size)
}

fn is_ending_legal(finish: u8, num_tokens: u16) -> bool {
    finish <= MAX_FINISH && (finish != 0 || num_tokens != 0)
}

fn indices(faulty: impl Iterator<Item = bool>) -> Vec<u32> {
    faulty
        .zip(0..)
        .filter_map(|(faulty, index)| faulty.then_some(index))
        .collect()
}

/// Splits the first `count` items off `rest`; decode checked that there are so many.
fn cut<'a, T>(rest: &mut &'a [T], count: usize) -> &'a [T] {
    let (head, tail) = rest.split_at(count.min(rest.len()));
    *rest = tail;
    head
}

fn faulty_rows(outputs: &StepOutputs, vocab_size: u32) -> Vec<u32> {
    let rows = &outputs.rows;
    let mut ids = rows.token_ids.as_slice();
    let logprobs = outputs.sampled_logprobs.as_ref();
    let mut ranks = logprobs.map_or(&[][..], |logprobs| &logprobs.lp_rank);
    let mut tops = logprobs.map_or(&[][..], |logprobs| &logprobs.lp_top_ids);
    indices(rows.num_tokens.iter().enumerate().map(|(row, num_tokens)| {
        let count = usize::from(*num_tokens);
        let k = logprobs
            .and_then(|logprobs| logprobs.lp_k.get(row))
            .copied()
            .unwrap_or(-1);
        let ranked = if k >= 0 { count } else { 0 };
        let (ids, ranks) = (cut(&mut ids, count), cut(&mut ranks, ranked));
        let tops = cut(&mut tops, ranked * k.max(0) as usize);
        !all_below(ids, vocab_size)
            || !all_below(tops, vocab_size)
            || ranks.iter().any(|rank| *rank > vocab_size)
            || !is_ending_legal(rows.finish[row], *num_tokens)
    }))
}

fn doubled_rows(keys: &[u64]) -> Vec<u32> {
    let mut sorted = keys.to_vec();
    sorted.sort_unstable();
    let doubled: Vec<u64> = sorted
        .windows(2)
        .filter(|pair| pair[0] == pair[1])
        .map(|pair| pair[0])
        .collect();
    indices(keys.iter().map(|key| doubled.binary_search(key).is_ok()))
}

fn faulty_chunks(outputs: &StepOutputs, vocab_size: u32) -> Vec<u32> {
    let chunks = &outputs.prompt_logprobs;
    let (mut ranks, mut tops) = (chunks.plp_rank.as_slice(), chunks.plp_top_ids.as_slice());
    indices(
        chunks
            .plp_count
            .iter()
            .zip(&chunks.plp_k)
            .map(|(count, k)| {
                let ranks = cut(&mut ranks, *count as usize);
                let tops = cut(&mut tops, *count as usize * (*k).max(0) as usize);
                !all_below(tops, vocab_size) || ranks.iter().any(|rank| *rank > vocab_size)
            }),
    )
}

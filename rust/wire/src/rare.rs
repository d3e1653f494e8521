//! What only some rows of AddRequests carry.

use crate::column;
use crate::fault::{Fault, mismatch};
use crate::field::{Field, Item, record};
use crate::msgpack::{Map, Reader, Value, Writer};

record! {
    /// A grammar the output must follow.
    pub struct Grammar {
        /// Which language `text` is in.
        kind: String => required,
        /// At most 2 MiB.
        text: String => required,
        /// Settings of the language.
        options: Map => required,
    }
}

record! {
    /// Numbers added to logits; both lists are of one length.
    pub struct LogitBias {
        /// Token ids.
        ids: Vec<u32> => packed,
        /// What is added.
        values: Vec<f32> => packed,
    }
}

record! {
    /// Beam search (reserved).
    pub struct Beam {
        /// Number of beams.
        width: u16 => required,
        /// Exponent of the length in the score.
        length_penalty: f64 => required,
        /// 0 false, 1 true, 2 never.
        early_stopping: u8 => required,
    }
}

record! {
    /// Ends the request when a pattern of min..max tokens repeats `count` times.
    pub struct Repetition {
        /// Shortest pattern.
        min: u16 => required,
        /// Longest pattern.
        max: u16 => required,
        /// Repeats that end the request.
        count: u16 => required,
    }
}

record! {
    /// Pooling (reserved).
    pub struct Pooling {
        /// What the vector is for.
        task: String => required,
        /// Its size.
        dimensions: u32 => required,
    }
}

/// Token sequences as the bin `bad_words`: u16 lengths, then u32 ids.
///
/// The number of lengths is not sent: it is the one at which lengths and ids fill the bin exactly, and
/// as each further length makes the total larger there is at most one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BadWords(pub Vec<Vec<u32>>);

impl Field for BadWords {
    fn write(&self, out: &mut Writer) {
        let lengths: Vec<u16> = self.0.iter().map(|word| word.len() as u16).collect();
        let mut bytes = column::to_bytes(&lengths);
        bytes.extend(column::to_bytes(&self.0.concat()));
        out.bin(&bytes);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Fault> {
        let bytes = reader.bin()?;
        let (mut num_words, mut num_ids) = (0, 0);
        while 2 * num_words + 4 * num_ids < bytes.len() {
            let Some([low, high]) = bytes.get(2 * num_words..2 * num_words + 2) else {
                return mismatch("bad_words is cut short");
            };
            num_ids += usize::from(u16::from_le_bytes([*low, *high]));
            num_words += 1;
        }
        if 2 * num_words + 4 * num_ids != bytes.len() {
            return mismatch("bad_words has lengths that do not match");
        }
        let (lengths, ids) = bytes.split_at(2 * num_words);
        let ids: Vec<u32> = column::from_bytes(ids)?;
        let mut rest = ids.as_slice();
        let mut words = Vec::with_capacity(num_words);
        for length in column::from_bytes::<u16>(lengths)? {
            let (word, tail) = rest.split_at(usize::from(length));
            words.push(word.to_vec());
            rest = tail;
        }
        Ok(BadWords(words))
    }
}

record! {
    /// The rare parts of one row.
    pub struct Rare {
        /// The row they belong to; at most one entry per row.
        row: u32 => required,
        /// Part of every prefix-block hash.
        salt: Option<Vec<u8>> => optional,
        /// Hash of the session, for offload.
        session: Option<Vec<u8>> => optional,
        /// Name of the adapter.
        lora: Option<String> => optional,
        /// What the output must follow.
        grammar: Option<Grammar> => optional,
        /// Numbers added to logits.
        logit_bias: Option<LogitBias> => optional,
        /// All other ids are masked.
        allowed_ids: Option<Vec<u32>> => optional_packed,
        /// Sequences whose last token is masked where it would complete them.
        bad_words: Option<BadWords> => optional,
        /// Ids whose logprobs are wanted beside the sampled one.
        logprob_ids: Option<Vec<u32>> => optional_packed,
        /// Beam search.
        beam: Option<Beam> => optional,
        /// Loop detector.
        repetition: Option<Repetition> => optional,
        /// Most tokens of reasoning.
        thinking_budget: Option<u32> => optional,
        /// Pooling.
        pooling: Option<Pooling> => optional,
        /// Images and the like.
        media: Option<Vec<Value>> => optional,
        /// Trace context.
        trace: Option<Vec<u8>> => optional,
        /// Most prompt tokens loaded from a tier.
        max_load_tokens: Option<u32> => optional,
    }
}

impl Item for Rare {}
impl Item for Value {}

impl Rare {
    pub(crate) fn check(&self) -> Result<(), Fault> {
        match &self.logit_bias {
            Some(bias) if bias.ids.len() != bias.values.len() => {
                mismatch("logit_bias lists differ in length")
            }
            _ => Ok(()),
        }
    }
}

//! What the front end and the engine say to each other, byte for byte (spec/wire.md).
//!
//! Owns the types of every message, their encoding, their decoding with every check that needs no
//! knowledge of the receiver's state, and the rules for single rows. Knows neither sockets nor what a
//! message does. The Python side is `python/proa/wire.py`, name for name.

mod codec;
mod column;
mod engine;
mod fault;
mod field;
mod front;
mod identity;
mod kind;
mod msgpack;
mod outputs;
mod rare;
mod rows;
mod sizes;
mod stats;

pub use codec::{Message, decode, encode};
pub use engine::{Cache, Capability, EngineFacts, EngineFailed, Ready, UtilityError, UtilityReply};
pub use fault::{BadFrame, Reason};
pub use front::{
    Abort, AddRequests, Hello, RequestColumns, RequestRow, Shutdown, ShutdownMode, Utility,
};
pub use identity::Identity;
pub use kind::{Direction, Kind};
pub use msgpack::{Map, Value};
pub use outputs::{
    Detail, Prefill, Progress, PromptLogprobs, Rows, SampledLogprobs, Stamps, Stats, StepOutputs,
    Usage,
};
pub use rare::{BadWords, Beam, Grammar, LogitBias, Pooling, Rare, Repetition};
pub use rows::{RowFaults, row_faults};
pub use sizes::*;
pub use stats::SchedulerStats;

/// Version of the wire whose messages this build sends; another major cannot be spoken to.
pub const PROTOCOL_MAJOR: u16 = 1;
/// Minor version; a sender of a higher one may add keys and columns.
pub const PROTOCOL_MINOR: u16 = 0;

/// `num_logprobs`: none.
pub const LOGPROBS_NONE: i32 = -1;
/// `num_logprobs`: the whole vocabulary.
pub const LOGPROBS_VOCABULARY: i32 = -2;
/// `deadline_ms`: none.
pub const NO_DEADLINE: u32 = u32::MAX;
/// `stop_token`: none.
pub const NO_STOP_TOKEN: i32 = -1;
/// `prog_reason`: the request is in prefill.
pub const IN_PREFILL: u8 = 255;

/// `stamp_kind`: the engine queued the request.
pub const STAMP_QUEUED: u8 = 0;
/// `stamp_kind`: the request was scheduled for the first time.
pub const STAMP_FIRST_SCHEDULED: u8 = 1;
/// `stamp_kind`: the request was preempted.
pub const STAMP_PREEMPTED: u8 = 2;

/// `flags`: pooling (reserved).
pub const FLAG_POOLING: u32 = 1;
/// `flags`: beams (reserved).
pub const FLAG_BEAMS: u32 = 2;
/// `flags`: do not read the prefix cache.
pub const FLAG_SKIP_PREFIX_CACHE: u32 = 4;
/// `flags`: run the next step alone (reserved).
pub const FLAG_SOLO: u32 = 8;
/// `flags`: the grammar begins only after reasoning.
pub const FLAG_GRAMMAR_AFTER_REASONING: u32 = 16;
/// `flags`: progress is wanted.
pub const FLAG_PROGRESS: u32 = 32;

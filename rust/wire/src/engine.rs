//! Messages of the engine other than StepOutputs.

use limits::FailureKind;

use crate::column::{ColumnSet, ColumnWriter};
use crate::fault::{Fault, mismatch, undecodable};
use crate::field::{Field, Item, record};
use crate::msgpack::{Map, Reader, Value, Writer};
use crate::sizes::MAX_LINE_BYTES;

record! {
    /// How the KV cache is set up.
    pub struct Cache {
        /// Type of the entries.
        cache_dtype: String => required,
        /// Share of the device's memory.
        gpu_memory_utilization: f64 => required,
        /// Whether prefixes are shared.
        enable_prefix_caching: bool => required,
        /// Hash of a prefix block.
        prefix_caching_hash_algo: String => required,
        /// Blocks in host memory.
        num_cpu_blocks: Option<u32> => nullable,
        /// Who offloads.
        kv_offloading_backend: Option<String> => nullable,
        /// Bytes of the offload tier.
        kv_offloading_size: Option<u64> => nullable,
    }
}

record! {
    /// Whether an optional feature is there.
    pub struct Capability {
        /// Whether it can be used.
        ok: bool => required,
        /// Why not, or what it rests on.
        reason: String => required,
    }
}

impl Item for Map {}

record! {
    /// What an engine that is ready says about itself.
    pub struct EngineFacts {
        /// Version of the program; equals the front end's.
        engine_version: String => required,
        /// Name of the device.
        device: String => required,
        /// Process id.
        pid: u32 => required,
        /// Engine monotonic clock at sending.
        clock_ns: u64 => required,
        /// Prompt and output tokens of a request.
        max_model_len: u32 => required,
        /// Ids are below this.
        vocab_size: u32 => required,
        /// Tokens per KV block.
        block_size: u32 => required,
        /// KV blocks.
        num_blocks: u32 => required,
        /// Most running requests.
        max_num_seqs: u32 => required,
        /// Most tokens of a step.
        max_num_batched_tokens: u32 => required,
        /// Drafted tokens per step; 0 = no speculation.
        num_spec_tokens: u32 => required,
        /// Largest k of logprobs; -1 = the vocabulary.
        max_logprobs: i32 => required,
        /// The KV cache.
        cache: Cache => required,
        /// Equal hash = may continue each other's requests; zero in this release.
        identity_hash: [u8; 32] => required,
        /// Of the effective configuration.
        config_hash: [u8; 32] => required,
        /// Engines of one non-zero group step together.
        step_group: u32 => required,
        /// Every optional feature of the build, by name.
        capabilities: Vec<(String, Capability)> => required,
        /// Kernel choices with reasons.
        kernels: Vec<Map> => required,
        /// Start-up phases with times.
        startup: Vec<Map> => required,
        /// Reasoning markers of plug-ins.
        markers: Vec<Map> => required,
        /// Answers Hello's nonce; None on a unix socket.
        proof: Option<[u8; 32]> => nullable,
    }
}

record! {
    /// The part of Ready that is always there.
    pub(crate) struct ReadyHead {
        protocol_major: u16 => required,
        protocol_minor: u16 => required,
        engine_index: u16 => required,
        incarnation: u64 => required,
        state: String => required,
        phase: String => required,
        progress: Option<f64> => nullable,
    }
}

/// The engine's state while it starts, then, once, what it can do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ready {
    /// Another major ends the start.
    pub protocol_major: u16,
    /// A higher minor may add keys and columns.
    pub protocol_minor: u16,
    /// As in the identity.
    pub engine_index: u16,
    /// As in the identity.
    pub incarnation: u64,
    /// `config`, `device`, `weights`, `kv`, `graphs`, `warm_up`.
    pub phase: String,
    /// 0..1; None = unknown.
    pub progress: Option<f64>,
    /// None = state `loading`, else state `ready`.
    pub facts: Option<Box<EngineFacts>>,
}

impl Field for Ready {
    fn write(&self, out: &mut Writer) {
        let head = ReadyHead {
            protocol_major: self.protocol_major,
            protocol_minor: self.protocol_minor,
            engine_index: self.engine_index,
            incarnation: self.incarnation,
            state: if self.facts.is_some() {
                "ready"
            } else {
                "loading"
            }
            .to_owned(),
            phase: self.phase.clone(),
            progress: self.progress,
        };
        match &self.facts {
            None => head.write(out),
            Some(facts) => {
                out.map(ReadyHead::KEYS.len() + EngineFacts::KEYS.len());
                head.write_entries(out);
                facts.write_entries(out);
            }
        }
    }

    /// The one map holds two records: each reads its own keys and passes over the other's.
    fn read(reader: &mut Reader<'_>) -> Result<Self, Fault> {
        let mut whole = reader.clone();
        whole.skip()?;
        let mut head = ReadyHead::read_among(&mut reader.clone(), EngineFacts::KEYS)?;
        let facts = match head.state.as_str() {
            "loading" => {
                head = ReadyHead::read(reader)?;
                None
            }
            "ready" => Some(Box::new(EngineFacts::read_among(reader, ReadyHead::KEYS)?)),
            _ => return mismatch("unknown state"),
        };
        *reader = whole;
        Ok(Ready {
            protocol_major: head.protocol_major,
            protocol_minor: head.protocol_minor,
            engine_index: head.engine_index,
            incarnation: head.incarnation,
            phase: head.phase,
            progress: head.progress,
            facts,
        })
    }
}

record! {
    /// Why a utility call failed.
    pub struct UtilityError {
        /// Name of a `limits::ErrorKind`.
        kind: String => required,
        /// For people.
        message: String => required,
    }
}

record! {
    struct ReplyBody {
        call_id: u64 => required,
        ok: bool => required,
        value: Option<Value> => optional,
        error: Option<UtilityError> => optional,
    }
}

/// Answer to a Utility.
#[derive(Clone, Debug, PartialEq)]
pub struct UtilityReply {
    /// The call it answers.
    pub call_id: u64,
    /// What the method gave.
    pub result: Result<Value, UtilityError>,
}

impl Field for UtilityReply {
    fn write(&self, out: &mut Writer) {
        let (value, error) = match &self.result {
            Ok(value) => (Some(value.clone()), None),
            Err(error) => (None, Some(error.clone())),
        };
        ReplyBody {
            call_id: self.call_id,
            ok: self.result.is_ok(),
            value,
            error,
        }
        .write(out);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Fault> {
        let body = ReplyBody::read(reader)?;
        let result = match (body.ok, body.value, body.error) {
            (true, Some(value), None) => Ok(value),
            (false, None, Some(error)) => Err(error),
            _ => return mismatch("a reply has either a value or an error"),
        };
        Ok(UtilityReply {
            call_id: body.call_id,
            result,
        })
    }
}

impl Field for FailureKind {
    fn write(&self, out: &mut Writer) {
        out.str(self.label());
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Fault> {
        FailureKind::from_label(reader.str()?).map_or(mismatch("unknown kind of failure"), Ok)
    }
}

/// Last word of an engine that gives up.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineFailed {
    /// One line of at most 512 bytes.
    pub cause: String,
    /// Decides whether the engine is started again.
    pub kind: FailureKind,
    /// For the log only; at most 64 KiB.
    pub traceback: String,
    /// Keys of the failing step.
    pub request_key: Vec<u64>,
}

impl EngineFailed {
    pub(crate) fn put(&self, out: &mut ColumnWriter) {
        if !self.request_key.is_empty() {
            out.put("request_key", &self.request_key);
        }
    }

    pub(crate) fn take<F: AsRef<[u8]>>(
        (cause, kind, traceback): (String, FailureKind, String),
        set: &mut ColumnSet<'_, F>,
    ) -> Result<Self, Fault> {
        if cause.len() > MAX_LINE_BYTES {
            return undecodable("the cause is too long");
        }
        let request_key = set.take("request_key")?.unwrap_or_default();
        Ok(EngineFailed {
            cause,
            kind,
            traceback,
            request_key,
        })
    }
}

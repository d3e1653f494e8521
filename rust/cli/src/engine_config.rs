//! The one document an engine is told: its effective configuration as JSON, given on descriptor 3.
//!
//! Mirrors `python/proa/config/engine_config.py` field for field; `tests/fixtures/config/engine.json` is read by the
//! tests of both. Knows no flag but by name, and chooses nothing that only the engine can know (null = it chooses).

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

use crate::settings::{Refusal, Settings};

/// Version of the document.
pub const SCHEMA: u32 = 1;

/// Effective configuration of one engine; `None` is left to the engine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EngineConfig {
    /// Version of the document.
    pub schema: u32,
    /// ZMQ address of the front end.
    pub connect: String,
    /// Absolute path of a GGUF file or a folder.
    pub model_path: String,
    /// Place among the engines of the front end.
    pub engine_index: u16,
    /// `auto` or `dummy`.
    pub load_format: String,
    /// `null`, `cpu`, `torch`, or `auto` = by device.
    pub executor: String,
    /// `cpu`, `cuda` or `null`.
    pub device: String,
    /// `auto`, `float32`, `bfloat16`, `float16`.
    pub dtype: String,
    /// Ids the tokenizer knows; larger ones are never drawn.
    pub tokenizer_vocab_size: Option<u32>,
    /// Prompt and output tokens of a request.
    pub max_model_len: Option<i64>,
    /// Rows of a step.
    pub max_num_seqs: Option<i64>,
    /// Tokens of a step.
    pub max_num_batched_tokens: Option<i64>,
    /// Tokens of one prompt in a step.
    pub max_prefill_chunk: Option<i64>,
    /// Tokens of a KV block.
    pub block_size: i64,
    /// Type of the KV cache.
    pub kv_cache_dtype: String,
    /// Size of the KV cache.
    pub kv_cache_memory_bytes: Option<i64>,
    /// Part of device memory for weights and KV cache.
    pub gpu_memory_utilization: f64,
    /// Whether equal prefixes share blocks.
    pub enable_prefix_caching: bool,
    /// `fcfs` or `priority`.
    pub scheduling_policy: String,
    /// Largest k of any logprobs field; -1 = the vocabulary.
    pub max_logprobs: i64,
    /// CPU threads of the engine.
    pub threads: Option<i64>,
    /// Op to implementation, forced.
    pub kernel: BTreeMap<String, String>,
    /// The process that must live for the engine to live; 0 = none.
    pub parent_pid: u32,
}

/// What is known besides the settings when an engine is started.
#[derive(Clone, Debug)]
pub struct EnginePlace<'a> {
    /// ZMQ address of the front end.
    pub connect: &'a str,
    /// Absolute path of the model.
    pub model_path: &'a Path,
    /// Place among the engines.
    pub engine_index: u16,
    /// Ids the tokenizer knows, where a tokenizer was read.
    pub tokenizer_vocab_size: Option<u32>,
    /// The supervising process; 0 = none.
    pub parent_pid: u32,
}

impl EngineConfig {
    /// The document for one engine. Fails if the path is not Unicode, which JSON cannot carry.
    pub fn new(settings: &Settings, place: &EnginePlace<'_>) -> Result<EngineConfig, Refusal> {
        let word = |name: &str| settings.text(name).unwrap_or("auto").to_string();
        let path = place.model_path.to_str().ok_or_else(|| {
            Refusal("MODEL: a path that is not Unicode cannot be given to the engine".to_string())
        })?;
        let load_format = match settings.text("load_format") {
            Some("dummy") => "dummy",
            _ => "auto",
        };
        Ok(EngineConfig {
            schema: SCHEMA,
            connect: place.connect.to_string(),
            model_path: path.to_string(),
            engine_index: place.engine_index,
            load_format: load_format.to_string(),
            executor: word("executor"),
            device: device(settings),
            dtype: word("dtype"),
            tokenizer_vocab_size: place.tokenizer_vocab_size,
            max_model_len: settings.count("max_model_len").filter(|len| *len > 0),
            max_num_seqs: settings.count("max_num_seqs"),
            max_num_batched_tokens: settings.count("max_num_batched_tokens"),
            max_prefill_chunk: settings.count("max_prefill_chunk"),
            block_size: settings.count("block_size").unwrap_or(16),
            kv_cache_dtype: word("kv_cache_dtype"),
            kv_cache_memory_bytes: settings.count("kv_cache_memory_bytes"),
            gpu_memory_utilization: settings.number("gpu_memory_utilization"),
            enable_prefix_caching: settings.switch("enable_prefix_caching"),
            scheduling_policy: word("scheduling_policy"),
            max_logprobs: settings.count("max_logprobs").unwrap_or(20),
            threads: settings.count("threads"),
            kernel: settings.kernels()?,
            parent_pid: place.parent_pid,
        })
    }

    /// The document's text.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("plain fields always serialise")
    }
}

/// The device the engine is told: what was asked for, or what this machine has.
pub fn device(settings: &Settings) -> String {
    match settings.text("device") {
        Some("auto") | None if settings.text("executor") == Some("null") => "null".to_string(),
        Some("auto") | None if Path::new("/dev/nvidia0").exists() => "cuda".to_string(),
        Some("auto") | None => "cpu".to_string(),
        Some(named) => named.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn golden() -> serde_json::Value {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/fixtures/config/engine.json"
        );
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    }

    #[test]
    fn the_document_is_the_golden_one() {
        let arguments = [
            "--load-format",
            "dummy",
            "--executor",
            "torch",
            "--device",
            "cpu",
            "--dtype",
            "float32",
            "--max-model-len",
            "4K",
            "--max-num-seqs",
            "64",
            "--max-num-batched-tokens",
            "512",
            "--max-prefill-chunk",
            "16",
            "--block-size",
            "32",
            "--kv-cache-dtype",
            "float32",
            "--kv-cache-memory-bytes",
            "64M",
            "--gpu-memory-utilization",
            "0.5",
            "--disable-radix-cache",
            "--scheduling-policy",
            "priority",
            "--max-logprobs",
            "-1",
            "--threads",
            "2",
            "--kernel",
            "rms_norm=torch",
            "--kernel",
            "linear=torch",
        ];
        let arguments: Vec<String> = arguments.iter().map(|a| a.to_string()).collect();
        let settings = Settings::load(&arguments, &[], |_| unreachable!()).unwrap();
        let place = EnginePlace {
            connect: "ipc:///tmp/proa-x/engine.sock",
            model_path: Path::new("/models/m.gguf"),
            engine_index: 3,
            tokenizer_vocab_size: Some(49152),
            parent_pid: 4321,
        };
        let config = EngineConfig::new(&settings, &place).unwrap();
        let written: serde_json::Value = serde_json::from_str(&config.to_json()).unwrap();
        assert_eq!(written, golden());
    }

    #[test]
    fn defaults_leave_the_choice_to_the_engine() {
        let place = EnginePlace {
            connect: "ipc:///x",
            model_path: Path::new("/m"),
            engine_index: 0,
            tokenizer_vocab_size: None,
            parent_pid: 1,
        };
        let config = EngineConfig::new(&Settings::default(), &place).unwrap();
        assert_eq!(config.max_model_len, None);
        assert_eq!(config.dtype, "auto");
        assert!(config.enable_prefix_caching);
        assert_eq!(config.max_logprobs, 20);
    }
}

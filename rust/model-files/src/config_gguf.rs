//! GGUF metadata, turned into the normalised configuration.
//!
//! Owns the key names of that format. Does not know which architectures the engine can run.

use serde_json::{Map, Number as JsonNumber, Value};

use crate::ModelError;
use crate::config::{GenerationDefaults, ModelConfig, RopeScaling, add_ids};
use crate::gguf::Gguf;
use crate::gguf_value::{MetaValue, Number};

/// Reads the keys of one architecture (`llama.block_count` and so on).
struct ArchKeys<'a> {
    gguf: &'a Gguf,
    arch: &'a str,
}

impl ArchKeys<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.arch)
    }

    fn uint(&self, name: &str) -> Result<Option<u64>, ModelError> {
        self.gguf.uint(&self.key(name))
    }

    fn float(&self, name: &str) -> Result<Option<f64>, ModelError> {
        self.gguf.float(&self.key(name))
    }

    fn positive(&self, name: &str) -> Result<Option<u64>, ModelError> {
        match self.uint(name)? {
            Some(0) => Err(ModelError::config(
                self.gguf.file().path(),
                self.key(name),
                "must be above 0",
            )),
            other => Ok(other),
        }
    }

    fn required(&self, name: &str) -> Result<u64, ModelError> {
        self.positive(name)?.ok_or_else(|| {
            ModelError::config(self.gguf.file().path(), self.key(name), "is missing")
        })
    }
}

fn token_id(gguf: &Gguf, name: &str) -> Result<Option<u32>, ModelError> {
    let key = format!("tokenizer.ggml.{name}");
    // Some writers put 2^32 - 1 for "none".
    Ok(gguf
        .uint(&key)?
        .and_then(|id| u32::try_from(id).ok())
        .filter(|&id| id != u32::MAX))
}

/// The configuration that a header describes.
pub(crate) fn read_config(gguf: &Gguf) -> Result<ModelConfig, ModelError> {
    let path = gguf.file().path();
    let arch = gguf
        .string("general.architecture")?
        .ok_or_else(|| ModelError::config(path, "general.architecture", "is missing"))?;
    if gguf.uint("split.count")?.unwrap_or(1) > 1 {
        return Err(ModelError::not_supported(
            path,
            "it is one part of a model that is split over several GGUF files; merge them with gguf-split first",
        ));
    }
    let keys = ArchKeys { gguf, arch };
    let hidden_size = keys.required("embedding_length")?;
    let num_heads = keys.required("attention.head_count")?;
    let head_dim = match keys.positive("attention.key_length")? {
        Some(dim) => dim,
        None => hidden_size / num_heads,
    };
    let context_length = keys.required("context_length")?;
    let mut eos_token_ids = Vec::new();
    for name in ["eos_token_id", "eot_token_id", "eom_token_id"] {
        add_ids(&mut eos_token_ids, token_id(gguf, name)?);
    }
    Ok(ModelConfig {
        architecture: arch.to_owned(),
        name: gguf.string("general.name")?.map(str::to_owned),
        hidden_size,
        num_layers: keys.required("block_count")?,
        num_heads,
        num_kv_heads: keys
            .positive("attention.head_count_kv")?
            .unwrap_or(num_heads),
        head_dim,
        ffn_size: keys.required("feed_forward_length")?,
        hidden_act: "silu".to_owned(),
        rope_theta: keys.float("rope.freq_base")?.unwrap_or(10_000.0),
        rope_dim: keys.positive("rope.dimension_count")?.unwrap_or(head_dim),
        rope_scaling: rope_scaling(&keys)?,
        rms_norm_eps: keys
            .float("attention.layer_norm_rms_epsilon")?
            .unwrap_or(1e-5),
        vocab_size: vocab_size(&keys)?,
        context_length,
        // A GGUF file leaves a tied head out.
        tie_word_embeddings: !gguf
            .tensors
            .iter()
            .any(|tensor| tensor.name() == "output.weight"),
        attention_bias: None,
        mlp_bias: None,
        dtype: None,
        sliding_window: keys
            .positive("attention.sliding_window")?
            .filter(|&n| n < context_length),
        bos_token_id: token_id(gguf, "bos_token_id")?,
        eos_token_ids,
        pad_token_id: token_id(gguf, "padding_token_id")?,
        raw: scalars(gguf),
    })
}

/// Rows of the embedding; without one in the file what the metadata say.
fn vocab_size(keys: &ArchKeys<'_>) -> Result<u64, ModelError> {
    let embedding = keys
        .gguf
        .tensors
        .iter()
        .find(|tensor| tensor.name() == "token_embd.weight");
    if let Some(&[rows, _]) = embedding.map(|tensor| tensor.shape()) {
        return Ok(rows);
    }
    if let Some(tokens) = keys.gguf.strings("tokenizer.ggml.tokens")? {
        return Ok(tokens.len() as u64);
    }
    keys.required("vocab_size")
}

fn rope_scaling(keys: &ArchKeys<'_>) -> Result<Option<RopeScaling>, ModelError> {
    let kind = keys.gguf.string(&keys.key("rope.scaling.type"))?;
    // Before `rope.scaling` existed, a linear factor stood alone.
    let old_linear = keys.float("rope.scale_linear")?;
    let kind = match (kind, old_linear) {
        (None, Some(factor)) if factor != 1.0 => "linear",
        (None | Some("none"), _) => return Ok(None),
        (Some(kind), _) => kind,
    };
    let prefix = keys.key("rope.scaling.");
    let raw = scalars(keys.gguf)
        .into_iter()
        .filter(|(key, _)| key.starts_with(&prefix))
        .collect();
    Ok(Some(RopeScaling {
        kind: kind.to_owned(),
        factor: keys
            .float("rope.scaling.factor")?
            .or(old_linear)
            .unwrap_or(1.0),
        original_context_length: keys.uint("rope.scaling.original_context_length")?,
        low_freq_factor: None,
        high_freq_factor: None,
        attention_factor: keys.float("rope.scaling.attn_factor")?,
        beta_fast: keys.float("rope.scaling.yarn_beta_fast")?,
        beta_slow: keys.float("rope.scaling.yarn_beta_slow")?,
        raw,
    }))
}

/// Sampling defaults, which newer files carry.
pub(crate) fn read_generation(gguf: &Gguf) -> Result<GenerationDefaults, ModelError> {
    let number = |name: &str| gguf.float(&format!("general.sampling.{name}"));
    let mut defaults = GenerationDefaults {
        temperature: number("temp")?,
        top_p: number("top_p")?,
        top_k: number("top_k")?.map(|k| k as i64),
        min_p: number("min_p")?,
        repetition_penalty: number("penalty_repeat")?,
        ..GenerationDefaults::default()
    };
    if defaults != GenerationDefaults::default() {
        defaults.source = Some("gguf");
    }
    Ok(defaults)
}

/// Everything in the metadata that is not an array, as JSON.
pub(crate) fn scalars(gguf: &Gguf) -> Map<String, Value> {
    let json = |value: &MetaValue| match value {
        MetaValue::Number(Number::Bool(b)) => Some(Value::Bool(*b)),
        MetaValue::Number(Number::Int(n)) => JsonNumber::from_i128(*n).map(Value::Number),
        // JSON has no NaN or infinity; such a value would be of no use to anyone.
        MetaValue::Number(Number::Float(x)) => JsonNumber::from_f64(*x).map(Value::Number),
        MetaValue::String(text) => Some(Value::String(text.to_string())),
        MetaValue::Array(_) => None,
    };
    gguf.metadata()
        .filter_map(|(key, value)| Some((key.to_owned(), json(value)?)))
        .collect()
}

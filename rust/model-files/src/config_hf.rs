//! config.json and generation_config.json, turned into the normalised configuration.
//!
//! Owns the key names of that format. Defaults are those that `transformers` has for the Llama family.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::ModelError;
use crate::config::{GenerationDefaults, ModelConfig, RopeScaling, add_ids};
use crate::json_file::{read_json, read_json_if_present};

const MAX_EOS_IDS: usize = 128;

/// Typed access to the keys of one JSON object of one file.
struct Keys<'a> {
    path: &'a Path,
    map: &'a Map<String, Value>,
}

impl Keys<'_> {
    fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    fn wrong(&self, key: &str, wanted: &str) -> ModelError {
        ModelError::config(self.path, key, format!("must be {wanted}"))
    }

    fn uint(&self, key: &str) -> Result<Option<u64>, ModelError> {
        self.get(key)
            .map(|value| {
                value
                    .as_u64()
                    .ok_or_else(|| self.wrong(key, "a non-negative integer"))
            })
            .transpose()
    }

    fn positive(&self, key: &str) -> Result<Option<u64>, ModelError> {
        match self.uint(key)? {
            Some(0) => Err(self.wrong(key, "above 0")),
            other => Ok(other),
        }
    }

    fn required(&self, key: &str) -> Result<u64, ModelError> {
        self.positive(key)?
            .ok_or_else(|| ModelError::config(self.path, key, "is missing"))
    }

    fn int(&self, key: &str) -> Result<Option<i64>, ModelError> {
        self.get(key)
            .map(|value| value.as_i64().ok_or_else(|| self.wrong(key, "an integer")))
            .transpose()
    }

    fn float(&self, key: &str) -> Result<Option<f64>, ModelError> {
        self.get(key)
            .map(|value| value.as_f64().ok_or_else(|| self.wrong(key, "a number")))
            .transpose()
    }

    fn boolean(&self, key: &str) -> Result<Option<bool>, ModelError> {
        self.get(key)
            .map(|value| value.as_bool().ok_or_else(|| self.wrong(key, "a boolean")))
            .transpose()
    }

    fn string(&self, key: &str) -> Result<Option<&str>, ModelError> {
        self.get(key)
            .map(|value| value.as_str().ok_or_else(|| self.wrong(key, "a string")))
            .transpose()
    }

    /// One id or a list of ids.
    fn ids(&self, key: &str) -> Result<Vec<u32>, ModelError> {
        let wrong = || self.wrong(key, "a token id or a list of token ids");
        let one = |value: &Value| {
            value
                .as_u64()
                .and_then(|id| u32::try_from(id).ok())
                .ok_or_else(wrong)
        };
        match self.get(key) {
            None => Ok(Vec::new()),
            Some(Value::Array(items)) if items.len() <= MAX_EOS_IDS => {
                items.iter().map(one).collect()
            }
            Some(Value::Array(_)) => Err(wrong()),
            Some(value) => Ok(vec![one(value)?]),
        }
    }
}

/// Reads `directory/config.json`.
pub(crate) fn read_config(directory: &Path) -> Result<ModelConfig, ModelError> {
    let path = directory.join("config.json");
    let raw: Map<String, Value> = read_json(&path)?;
    let keys = Keys {
        path: &path,
        map: &raw,
    };
    let hidden_size = keys.required("hidden_size")?;
    let num_heads = keys.required("num_attention_heads")?;
    let head_dim = match keys.positive("head_dim")? {
        Some(dim) => dim,
        None => hidden_size / num_heads,
    };
    let (rope_theta, rope_scaling) = rope(&keys, &path)?;
    let rotary = keys.float("partial_rotary_factor")?.unwrap_or(1.0);
    let context_length = keys.required("max_position_embeddings")?;
    // Qwen2 writes a window and switches it off beside it.
    let windowed = keys.boolean("use_sliding_window")?.unwrap_or(true);
    let sliding_window = keys
        .positive("sliding_window")?
        .filter(|&n| windowed && n < context_length);
    Ok(ModelConfig {
        architecture: keys
            .string("model_type")?
            .ok_or_else(|| ModelError::config(&path, "model_type", "is missing"))?
            .to_owned(),
        name: keys.string("_name_or_path")?.map(str::to_owned),
        hidden_size,
        num_layers: keys.required("num_hidden_layers")?,
        num_heads,
        num_kv_heads: keys.positive("num_key_value_heads")?.unwrap_or(num_heads),
        head_dim,
        ffn_size: keys.required("intermediate_size")?,
        hidden_act: keys.string("hidden_act")?.unwrap_or("silu").to_owned(),
        rope_theta,
        rope_dim: (head_dim as f64 * rotary) as u64,
        rope_scaling,
        rms_norm_eps: keys.float("rms_norm_eps")?.unwrap_or(1e-6),
        vocab_size: keys.required("vocab_size")?,
        context_length,
        tie_word_embeddings: keys.boolean("tie_word_embeddings")?.unwrap_or(false),
        attention_bias: keys.boolean("attention_bias")?,
        mlp_bias: keys.boolean("mlp_bias")?,
        dtype: match keys.string("dtype")? {
            Some(dtype) => Some(dtype),
            None => keys.string("torch_dtype")?,
        }
        .map(|dtype| dtype.trim_start_matches("torch.").to_owned()),
        sliding_window,
        bos_token_id: keys.ids("bos_token_id")?.first().copied(),
        eos_token_ids: keys.ids("eos_token_id")?,
        pad_token_id: keys
            .int("pad_token_id")?
            .and_then(|id| u32::try_from(id).ok()),
        raw: raw.clone(),
    })
}

/// Base and scaling of the rotary embedding: `rope_parameters` (newer files), or `rope_theta` and `rope_scaling`.
fn rope(keys: &Keys<'_>, path: &Path) -> Result<(f64, Option<RopeScaling>), ModelError> {
    const DEFAULT_THETA: f64 = 10_000.0;
    let object = |key: &str| match keys.get(key) {
        None => Ok(None),
        Some(Value::Object(map)) => Ok(Some(map)),
        Some(_) => Err(keys.wrong(key, "an object")),
    };
    let (map, theta) = match object("rope_parameters")? {
        Some(map) => (Some(map), Keys { path, map }.float("rope_theta")?),
        None => (object("rope_scaling")?, None),
    };
    let theta = match theta {
        Some(theta) => theta,
        None => keys.float("rope_theta")?.unwrap_or(DEFAULT_THETA),
    };
    let Some(map) = map else {
        return Ok((theta, None));
    };
    let inner = Keys { path, map };
    let kind = match inner.string("rope_type")? {
        Some(kind) => kind,
        None => inner.string("type")?.unwrap_or("default"),
    };
    if kind == "default" {
        return Ok((theta, None));
    }
    let scaling = RopeScaling {
        kind: kind.to_owned(),
        factor: inner.float("factor")?.unwrap_or(1.0),
        original_context_length: inner.uint("original_max_position_embeddings")?,
        low_freq_factor: inner.float("low_freq_factor")?,
        high_freq_factor: inner.float("high_freq_factor")?,
        attention_factor: inner.float("attention_factor")?,
        beta_fast: inner.float("beta_fast")?,
        beta_slow: inner.float("beta_slow")?,
        raw: map.clone(),
    };
    Ok((theta, Some(scaling)))
}

/// Reads `directory/generation_config.json`; no file = no defaults.
pub(crate) fn read_generation(directory: &Path) -> Result<GenerationDefaults, ModelError> {
    let path: PathBuf = directory.join("generation_config.json");
    let Some(raw) = read_json_if_present::<Map<String, Value>>(&path)? else {
        return Ok(GenerationDefaults::default());
    };
    let keys = Keys {
        path: &path,
        map: &raw,
    };
    let mut eos_token_ids = Vec::new();
    add_ids(&mut eos_token_ids, keys.ids("eos_token_id")?);
    Ok(GenerationDefaults {
        source: Some("generation_config.json"),
        do_sample: keys.boolean("do_sample")?,
        temperature: keys.float("temperature")?,
        top_p: keys.float("top_p")?,
        top_k: keys.int("top_k")?,
        min_p: keys.float("min_p")?,
        presence_penalty: keys.float("presence_penalty")?,
        frequency_penalty: keys.float("frequency_penalty")?,
        repetition_penalty: keys.float("repetition_penalty")?,
        max_new_tokens: keys.uint("max_new_tokens")?,
        eos_token_ids,
    })
}

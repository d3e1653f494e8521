//! What the engine and the front end need to know about a model, whatever file it came from.
//!
//! Owns the names and meanings of the normalised fields. Does not know which families the engine can run.

use serde::Serialize;
use serde_json::{Map, Value};

/// The shape of a decoder-only model and its token ids, in the same words for every file format.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelConfig {
    /// The family: `model_type` of config.json or `general.architecture` of a GGUF file (`llama`, `qwen2`).
    pub architecture: String,
    /// The model's own name, where the file gives one.
    pub name: Option<String>,
    /// Width of the residual stream.
    pub hidden_size: u64,
    /// Number of transformer blocks.
    pub num_layers: u64,
    /// Query heads.
    pub num_heads: u64,
    /// Key and value heads.
    pub num_kv_heads: u64,
    /// Width of one head.
    pub head_dim: u64,
    /// Width of the feed-forward layer.
    pub ffn_size: u64,
    /// Activation of the feed-forward layer (`silu`).
    pub hidden_act: String,
    /// Base of the rotary embedding.
    pub rope_theta: f64,
    /// How many of a head's dimensions are rotated.
    pub rope_dim: u64,
    /// How positions beyond the trained context are scaled; None = not at all.
    pub rope_scaling: Option<RopeScaling>,
    /// Epsilon of the RMS norms.
    pub rms_norm_eps: f64,
    /// Rows of the embedding.
    pub vocab_size: u64,
    /// Tokens the model was made for.
    pub context_length: u64,
    /// Whether the output head is the embedding matrix.
    pub tie_word_embeddings: bool,
    /// Whether query, key and value (and output) projections have a bias, where config.json says so.
    pub attention_bias: Option<bool>,
    /// Whether the feed-forward projections have a bias, where config.json says so.
    pub mlp_bias: Option<bool>,
    /// The type the weights were published in (`bfloat16`); None for quantised files.
    pub dtype: Option<String>,
    /// Tokens a layer looks back, where it is not the whole context.
    pub sliding_window: Option<u64>,
    /// The token that begins a text.
    pub bos_token_id: Option<u32>,
    /// Every token that ends a turn or a text, in the order found, without repeats.
    pub eos_token_ids: Vec<u32>,
    /// The token that pads a batch.
    pub pad_token_id: Option<u32>,
    /// Every key of config.json, or the scalar metadata of a GGUF file, as it stands there: for families that need
    /// more than the fields above.
    pub raw: Map<String, Value>,
}

/// How rotary positions are stretched.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RopeScaling {
    /// `linear`, `dynamic`, `yarn`, `longrope`, `llama3`.
    pub kind: String,
    /// How many times longer the context became.
    pub factor: f64,
    /// The context before scaling.
    pub original_context_length: Option<u64>,
    /// Of `llama3`: wavelengths above context / this are fully scaled.
    pub low_freq_factor: Option<f64>,
    /// Of `llama3`: wavelengths below context / this are not scaled.
    pub high_freq_factor: Option<f64>,
    /// Of `yarn` and `longrope`: factor on the attention logits' scale.
    pub attention_factor: Option<f64>,
    /// Of `yarn`.
    pub beta_fast: Option<f64>,
    /// Of `yarn`.
    pub beta_slow: Option<f64>,
    /// Every key as it stands in the file.
    pub raw: Map<String, Value>,
}

/// Sampling defaults the model's makers recommend; None = they say nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GenerationDefaults {
    /// Where they come from: `generation_config.json` or `gguf`; None when there are none.
    pub source: Option<&'static str>,
    /// Whether the makers sample at all; false = they decode greedily.
    pub do_sample: Option<bool>,
    /// Softmax temperature.
    pub temperature: Option<f64>,
    /// Nucleus mass.
    pub top_p: Option<f64>,
    /// Size of the candidate set.
    pub top_k: Option<i64>,
    /// Smallest probability relative to the largest.
    pub min_p: Option<f64>,
    /// Penalty on tokens already generated.
    pub presence_penalty: Option<f64>,
    /// Penalty by count on tokens already generated.
    pub frequency_penalty: Option<f64>,
    /// Multiplicative penalty on tokens already seen.
    pub repetition_penalty: Option<f64>,
    /// Largest number of new tokens.
    pub max_new_tokens: Option<u64>,
    /// Tokens that end a text, beside those of the configuration.
    pub eos_token_ids: Vec<u32>,
}

/// Adds `ids` to `all` in order, without repeats.
pub(crate) fn add_ids(all: &mut Vec<u32>, ids: impl IntoIterator<Item = u32>) {
    for id in ids {
        if !all.contains(&id) {
            all.push(id);
        }
    }
}

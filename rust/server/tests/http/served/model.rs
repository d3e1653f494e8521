//! The model of the tests: no weights, a byte-level tokenizer, a short chat template.

use std::path::PathBuf;

use chat::{ChatTemplate, TemplateOptions};
use model_files::open_model_without_weights;
use proa_server::ServedModel;
use serde_json::{Map, Value, json};
use text::Tokenizer;

/// The end token, `<|im_end|>`.
pub const IM_END: u32 = 256;
/// One more than the highest id.
pub const NUM_IDS: u32 = 258;

const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}:{{ m.content }}{% if not loop.last or add_generation_prompt %}<|im_end|>{% endif %}{% endfor %}{% if add_generation_prompt %}>{{ mood }}{% endif %}";

/// The ids of a text: its bytes.
pub fn bytes_of(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

/// A byte as byte-level tokenizers spell it.
fn spell(byte: u8) -> String {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut others = (0..=255).filter(|&b| !printable(b));
    let letter = match others.position(|other| other == byte) {
        None => char::from(byte),
        Some(at) => char::from_u32(0x100 + at as u32).expect("a character"),
    };
    letter.to_string()
}

fn tokenizer_file() -> Value {
    let mut vocab: Map<String, Value> = (0..=255).map(|byte| (spell(byte), json!(byte))).collect();
    vocab.insert("<|im_end|>".to_owned(), json!(IM_END));
    vocab.insert("<s>".to_owned(), json!(IM_END + 1));
    let special = |id: u32, text: &str| {
        json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    };
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [special(IM_END, "<|im_end|>"), special(IM_END + 1, "<s>")],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                  "vocab": vocab, "merges": []},
    })
}

/// A directory of its own, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        use std::sync::atomic::{AtomicU32, Ordering};
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("proa-server-test-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed is the temporary directory's business.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The model, opened as a model on disk is.
pub fn open() -> ServedModel {
    let scratch = Scratch::new();
    let write = |name: &str, value: &Value| {
        std::fs::write(scratch.0.join(name), value.to_string()).unwrap();
    };
    write(
        "config.json",
        &json!({
            "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 1,
            "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 64, "hidden_act": "silu",
            "rms_norm_eps": 1e-5, "vocab_size": NUM_IDS, "max_position_embeddings": 2048, "eos_token_id": IM_END,
            "tie_word_embeddings": true, "rope_theta": 10000.0,
        }),
    );
    write("tokenizer.json", &tokenizer_file());
    write(
        "tokenizer_config.json",
        &json!({"eos_token": "<|im_end|>", "chat_template": TEMPLATE}),
    );
    let files = open_model_without_weights(&scratch.0).unwrap();
    let template = ChatTemplate::compile(
        files.chat_template.as_ref().unwrap(),
        &files.tokenizer_facts.special_tokens,
        TemplateOptions::default(),
    )
    .unwrap();
    ServedModel {
        tokenizer: Tokenizer::from_model(&files).unwrap(),
        template: Some(template),
        config: files.config,
        defaults: files.generation,
    }
}

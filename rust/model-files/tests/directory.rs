//! Models in a directory: safetensors, config.json, generation_config.json and the tokenizer's files.

mod gguf_file;

use gguf_file::{Folder, small_model};
use proa_model_files::{
    Format, ModelError, TensorType, TokenizerSource, open_model, open_model_without_weights,
};
use proptest::prelude::*;
use serde_json::{Value, json};

fn config() -> Value {
    json!({
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 256,
        "rope_theta": 50000.0, "rms_norm_eps": 1e-5, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
        "bos_token_id": 1, "eos_token_id": [2, 3],
    })
}

fn safetensors(header: &Value, data_len: usize) -> Vec<u8> {
    let header = header.to_string();
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend_from_slice(header.as_bytes());
    out.extend((0..data_len).map(|n| n as u8));
    out
}

fn entry(dtype: &str, shape: &[u64], from: u64, to: u64) -> Value {
    json!({"dtype": dtype, "shape": shape, "data_offsets": [from, to]})
}

fn model(name: &str) -> Folder {
    let folder = Folder::new(name);
    folder.write("config.json", config().to_string());
    let header = json!({
        "__metadata__": {"format": "pt"},
        "b": entry("BF16", &[2, 3], 0, 12), "a": entry("F32", &[], 12, 16), "empty": entry("F16", &[0, 5], 16, 16),
    });
    folder.write("model.safetensors", safetensors(&header, 16));
    folder
}

fn refusal(result: Result<proa_model_files::ModelFiles, ModelError>) -> String {
    result.expect_err("a wrong model was accepted").to_string()
}

#[test]
fn a_directory_opens() {
    let folder = model("opens");
    folder.write(
        "generation_config.json",
        json!({"temperature": 0.6, "top_p": 0.9, "eos_token_id": [3, 4]}).to_string(),
    );
    folder.write(
        "tokenizer_config.json",
        json!({
            "bos_token": {"content": "<s>"}, "eos_token": "</s>", "add_bos_token": true,
            "chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}],
        })
        .to_string(),
    );
    let model = open_model(&folder.0).expect("the model opens");
    assert_eq!(model.format, Format::Safetensors);
    let names: Vec<_> = model
        .tensors
        .iter()
        .map(proa_model_files::Tensor::name)
        .collect();
    assert_eq!(names, ["a", "b", "empty"]);
    let b = model.tensor("b").expect("b");
    assert_eq!(
        (b.tensor_type(), b.shape()),
        (TensorType::BF16, &[2u64, 3][..])
    );
    assert_eq!(b.bytes(), (0..12).collect::<Vec<u8>>());
    let config = &model.config;
    assert_eq!(
        (config.head_dim, config.rope_dim, config.num_kv_heads),
        (16, 16, 2)
    );
    assert_eq!((config.rope_theta, config.rms_norm_eps), (50000.0, 1e-5));
    assert_eq!(
        (config.dtype.as_deref(), config.bos_token_id),
        (Some("bfloat16"), Some(1))
    );
    assert_eq!(config.eos_token_ids, [2, 3, 4]);
    assert_eq!(model.generation.temperature, Some(0.6));
    assert_eq!(model.tokenizer_facts.add_bos, Some(true));
    assert_eq!(model.tokenizer_facts.special_tokens["bos_token"], "<s>");
    let template = model.chat_template.expect("a template");
    assert_eq!(
        (template.text.as_str(), template.tool_use.as_deref()),
        ("D", Some("T"))
    );
    assert!(matches!(model.tokenizer, TokenizerSource::Missing));

    folder.write("chat_template.jinja", "J");
    let model = open_model(&folder.0).expect("the model opens");
    assert_eq!(
        model.chat_template.map(|t| (t.text, t.origin)),
        Some(("J".to_owned(), "chat_template.jinja"))
    );
}

#[test]
fn rope_scaling_is_read_in_both_spellings() {
    let scaling = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    });
    let mut old = config();
    old["rope_scaling"] = scaling.clone();
    let mut new = config();
    new.as_object_mut().expect("an object").remove("rope_theta");
    new["rope_parameters"] = scaling;
    new["rope_parameters"]["rope_theta"] = json!(50000.0);
    for config in [old, new] {
        let folder = model("rope");
        folder.write("config.json", config.to_string());
        let config = open_model(&folder.0).expect("the model opens").config;
        assert_eq!(config.rope_theta, 50000.0);
        let scaling = config.rope_scaling.expect("scaling");
        assert_eq!((scaling.kind.as_str(), scaling.factor), ("llama3", 8.0));
        assert_eq!(scaling.original_context_length, Some(8192));
        assert_eq!(
            (scaling.low_freq_factor, scaling.high_freq_factor),
            (Some(1.0), Some(4.0))
        );
    }
}

#[test]
fn weights_may_be_absent_for_generated_ones() {
    let folder = Folder::new("dummy");
    folder.write("config.json", config().to_string());
    assert!(refusal(open_model(&folder.0)).contains("model.safetensors"));
    let model = open_model_without_weights(&folder.0).expect("a configuration is enough");
    assert_eq!(model.format, Format::ConfigOnly);
    assert!(model.tensors.is_empty());
}

#[test]
fn a_lone_gguf_file_in_a_directory_is_the_model() {
    let folder = Folder::new("lone");
    folder.write("x.gguf", small_model().bytes());
    assert_eq!(
        open_model(&folder.0).expect("the file opens").format,
        Format::Gguf
    );
    folder.write("y.gguf", small_model().bytes());
    assert!(refusal(open_model(&folder.0)).contains("2 .gguf files"));
    assert!(refusal(open_model(&folder.0.join("none.gguf"))).contains("none.gguf"));
    let text = folder.write("z.bin", "hello");
    assert!(refusal(open_model(&text)).contains("no GGUF file"));
}

#[test]
fn shards_are_joined_by_their_index() {
    let folder = Folder::new("shards");
    folder.write("config.json", config().to_string());
    folder.write(
        "one.safetensors",
        safetensors(&json!({"a": entry("F32", &[2], 0, 8)}), 8),
    );
    folder.write(
        "two.safetensors",
        safetensors(&json!({"b": entry("F32", &[1], 0, 4)}), 4),
    );
    let index = |map: Value| json!({"metadata": {}, "weight_map": map}).to_string();
    let write = |map: Value| folder.write("model.safetensors.index.json", index(map));
    write(json!({"a": "one.safetensors", "b": "two.safetensors"}));
    assert_eq!(
        open_model(&folder.0)
            .expect("the model opens")
            .tensors
            .len(),
        2
    );
    write(json!({"a": "one.safetensors", "b": "one.safetensors"}));
    assert!(refusal(open_model(&folder.0)).contains("'b'"));
    write(json!({"a": "two.safetensors", "b": "two.safetensors"}));
    assert!(refusal(open_model(&folder.0)).contains("'a'"));
    write(json!({"a": "../one.safetensors"}));
    assert!(refusal(open_model(&folder.0)).contains("plain file name"));
    write(json!({"a": "one.safetensors", "b": "gone.safetensors"}));
    assert!(refusal(open_model(&folder.0)).contains("gone.safetensors"));
}

#[test]
fn wrong_tensors_are_named() {
    let cases = [
        (entry("F32", &[2], 0, 4), "does not fill"),
        (entry("F32", &[2], 8, 0), "does not fill"),
        (entry("F32", &[u64::MAX, u64::MAX], 0, 0), "does not fill"),
        (entry("F32", &[1 << 40], 0, 1 << 42), "bytes of data"),
        (entry("F4", &[2], 0, 8), "F4"),
        (entry("F32", &[1; 9], 0, 4), "dimensions"),
        (json!({"dtype": "F32"}), "shape"),
        (json!(7), "wrong"),
    ];
    for (value, reason) in cases {
        let folder = model("wrong");
        folder.write("model.safetensors", safetensors(&json!({"bad": value}), 8));
        let error = refusal(open_model(&folder.0));
        assert!(error.contains("'bad'") && error.contains(reason), "{error}");
    }
}

#[test]
fn wrong_configurations_name_the_key() {
    for key in [
        "hidden_size",
        "num_attention_heads",
        "vocab_size",
        "max_position_embeddings",
        "model_type",
    ] {
        for value in [Value::Null, json!(0), json!(-1), json!([]), json!("x")] {
            if key == "model_type" && value == json!("x") {
                continue;
            }
            let folder = model("config");
            let mut config = config();
            config[key] = value;
            folder.write("config.json", config.to_string());
            let error = refusal(open_model(&folder.0));
            assert!(
                error.contains(key) && error.contains("config.json"),
                "{error}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn mutated_safetensors_never_panic(
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..8),
        cut in proptest::option::of(any::<proptest::sample::Index>()),
    ) {
        let folder = model("mutated");
        let path = folder.0.join("model.safetensors");
        let mut bytes = std::fs::read(&path).expect("the file");
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        folder.write("model.safetensors", &bytes);
        if let Ok(model) = open_model(&folder.0) {
            prop_assert!(model.tensors.iter().all(|tensor| tensor.bytes().len() <= bytes.len()));
        }
    }
}

//! Writes small GGUF files for tests.

use std::path::PathBuf;

/// A file in the making; `bytes` puts the parts together.
#[derive(Clone)]
pub struct GgufFile {
    pub version: u32,
    pub alignment: u64,
    keys: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
    data: Vec<u8>,
}

pub fn string(text: &str) -> Vec<u8> {
    let mut out = (text.len() as u64).to_le_bytes().to_vec();
    out.extend_from_slice(text.as_bytes());
    out
}

impl GgufFile {
    pub fn new() -> Self {
        GgufFile {
            version: 3,
            alignment: 32,
            keys: Vec::new(),
            tensors: Vec::new(),
            data: Vec::new(),
        }
    }

    /// A key with a value of type `code` whose bytes are given.
    pub fn raw(mut self, key: &str, code: u32, value: &[u8]) -> Self {
        let mut entry = string(key);
        entry.extend_from_slice(&code.to_le_bytes());
        entry.extend_from_slice(value);
        self.keys.push(entry);
        self
    }

    pub fn u32(self, key: &str, value: u32) -> Self {
        self.raw(key, 4, &value.to_le_bytes())
    }

    pub fn f32(self, key: &str, value: f32) -> Self {
        self.raw(key, 6, &value.to_le_bytes())
    }

    pub fn text(self, key: &str, value: &str) -> Self {
        let value = string(value);
        self.raw(key, 8, &value)
    }

    pub fn texts(self, key: &str, values: &[&str]) -> Self {
        let mut value = 8u32.to_le_bytes().to_vec();
        value.extend_from_slice(&(values.len() as u64).to_le_bytes());
        values
            .iter()
            .for_each(|text| value.extend_from_slice(&string(text)));
        self.raw(key, 9, &value)
    }

    pub fn i32s(self, key: &str, values: &[i32]) -> Self {
        let mut value = 5u32.to_le_bytes().to_vec();
        value.extend_from_slice(&(values.len() as u64).to_le_bytes());
        values
            .iter()
            .for_each(|n| value.extend_from_slice(&n.to_le_bytes()));
        self.raw(key, 9, &value)
    }

    /// A tensor's row in the header, with an offset of its own and no data.
    pub fn info(mut self, name: &str, dims: &[u64], kind: u32, offset: u64) -> Self {
        let mut entry = string(name);
        entry.extend_from_slice(&(dims.len() as u32).to_le_bytes());
        dims.iter()
            .for_each(|n| entry.extend_from_slice(&n.to_le_bytes()));
        entry.extend_from_slice(&kind.to_le_bytes());
        entry.extend_from_slice(&offset.to_le_bytes());
        self.tensors.push(entry);
        self
    }

    /// A tensor with its data, `dims` fastest first as the format has them.
    pub fn tensor(mut self, name: &str, dims: &[u64], kind: u32, data: &[u8]) -> Self {
        while !(self.data.len() as u64).is_multiple_of(self.alignment) {
            self.data.push(0);
        }
        let offset = self.data.len() as u64;
        self.data.extend_from_slice(data);
        self.info(name, dims, kind, offset)
    }

    pub fn header(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend_from_slice(&self.version.to_le_bytes());
        out.extend_from_slice(&(self.tensors.len() as u64).to_le_bytes());
        out.extend_from_slice(&(self.keys.len() as u64).to_le_bytes());
        self.keys
            .iter()
            .chain(&self.tensors)
            .for_each(|entry| out.extend_from_slice(entry));
        out
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = self.header();
        while !(out.len() as u64).is_multiple_of(self.alignment) {
            out.push(0);
        }
        out.extend_from_slice(&self.data);
        out
    }
}

/// A small model with everything `open_model` needs.
pub fn small_model() -> GgufFile {
    GgufFile::new()
        .text("general.architecture", "llama")
        .text("general.name", "small")
        .u32("llama.block_count", 2)
        .u32("llama.context_length", 128)
        .u32("llama.embedding_length", 32)
        .u32("llama.feed_forward_length", 64)
        .u32("llama.attention.head_count", 4)
        .u32("llama.attention.head_count_kv", 2)
        .f32("llama.attention.layer_norm_rms_epsilon", 1e-5)
        .f32("llama.rope.freq_base", 10000.0)
        .text("tokenizer.ggml.model", "gpt2")
        .texts("tokenizer.ggml.tokens", &["<s>", "a", "b", "ab"])
        .texts("tokenizer.ggml.merges", &["a b"])
        .i32s("tokenizer.ggml.token_type", &[3, 1, 1, 1])
        .u32("tokenizer.ggml.bos_token_id", 0)
        .u32("tokenizer.ggml.eos_token_id", 0)
        .raw("tokenizer.ggml.add_bos_token", 7, &[1])
        .text("tokenizer.chat_template", "{{ messages }}")
        .tensor("token_embd.weight", &[32, 4], 8, &[7; 4 * 34])
        .tensor("output_norm.weight", &[32], 0, &[0; 128])
}

/// A folder that is removed at the end of a test.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("proa-model-files-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder for the test");
        Folder(path)
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).expect("a file of the test");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

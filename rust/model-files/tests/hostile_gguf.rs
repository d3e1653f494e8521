//! Damaged and hostile GGUF files: every one is refused with an error that names the file, none panics, and none makes
//! the reader reserve more memory than the file could fill.

mod gguf_file;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use gguf_file::{Folder, GgufFile, small_model, string};
use proa_model_files::{ModelError, TensorType, open_model};
use proptest::prelude::*;

/// The system's allocator, which remembers the largest single request.
struct Watching;

static LARGEST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is handed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watching = Watching;

/// Far above what the small files of these tests need, far below what their lies ask for.
const MAX_REQUEST_BYTES: usize = 4 << 20;

fn open(name: &str, bytes: &[u8]) -> Result<proa_model_files::ModelFiles, ModelError> {
    let folder = Folder::new(name);
    let path = folder.write("model.gguf", bytes);
    let result = open_model(&path);
    let largest = LARGEST.load(Ordering::Relaxed);
    assert!(
        largest < MAX_REQUEST_BYTES,
        "{largest} bytes were asked for at once"
    );
    if let Err(error) = &result {
        assert!(
            error.to_string().contains("model.gguf"),
            "no file in: {error}"
        );
    }
    result
}

fn refusal(name: &str, file: &GgufFile) -> String {
    open(name, &file.bytes())
        .expect_err("a hostile file was accepted")
        .to_string()
}

#[test]
fn a_good_file_opens() {
    let model = open("good", &small_model().bytes()).expect("the small model opens");
    assert_eq!(model.config.vocab_size, 4);
    assert_eq!(model.config.head_dim, 8);
    assert_eq!(model.config.eos_token_ids, [0]);
    assert!(model.config.tie_word_embeddings);
    let tensor = model.tensor("token_embd.weight").expect("the embedding");
    assert_eq!(
        (tensor.shape(), tensor.tensor_type()),
        (&[4u64, 32][..], TensorType::Q8_0)
    );
    assert_eq!(tensor.bytes(), &[7; 4 * 34]);
    let error = model
        .require_types(&[TensorType::F32])
        .expect_err("Q8_0 is not in the list")
        .to_string();
    assert!(
        error.contains("token_embd.weight") && error.contains("Q8_0"),
        "{error}"
    );
}

#[test]
fn every_truncation_is_refused() {
    let bytes = small_model().bytes();
    for len in 0..bytes.len() {
        assert!(
            open("cut", &bytes[..len]).is_err(),
            "{len} of {} bytes were accepted",
            bytes.len()
        );
    }
}

#[test]
fn counts_beyond_the_file_are_refused_before_memory_is_reserved() {
    for (at, count) in [(8, 1u64 << 40), (8, 1 << 19), (16, u64::MAX), (16, 1 << 15)] {
        let mut bytes = small_model().bytes();
        bytes[at..at + 8].copy_from_slice(&count.to_le_bytes());
        assert!(open("counts", &bytes).is_err());
    }
    for (code, len) in [
        (8u32, 1u64 << 22),
        (9, 1 << 22),
        (4, 1 << 22),
        (0, u64::MAX),
        (8, u64::MAX),
        (12, 1 << 61),
    ] {
        let mut value = code.to_le_bytes().to_vec();
        value.extend_from_slice(&len.to_le_bytes());
        let error = refusal("arrays", &small_model().raw("evil", 9, &value));
        assert!(error.contains("evil") || error.contains("array"), "{error}");
    }
    let error = refusal(
        "string",
        &small_model().raw("evil", 8, &u64::MAX.to_le_bytes()),
    );
    assert!(error.contains("evil"), "{error}");
}

#[test]
fn deep_nesting_is_refused() {
    let mut value = Vec::new();
    for _ in 0..10_000 {
        value.extend_from_slice(&9u32.to_le_bytes());
        value.extend_from_slice(&1u64.to_le_bytes());
    }
    assert!(refusal("nested", &small_model().raw("evil", 9, &value)).contains("too deeply"));
}

#[test]
fn wrong_headers_are_named() {
    let mut other = small_model();
    other.version = 1;
    assert!(refusal("version", &other).contains("version 1"));
    other.version = 3u32.swap_bytes();
    assert!(refusal("endian", &other).contains("big-endian"));
    assert!(
        refusal("twice", &small_model().u32("llama.block_count", 1)).contains("llama.block_count")
    );
    assert!(refusal("type", &small_model().raw("odd", 99, &[])).contains("unknown type 99"));
    assert!(
        refusal(
            "utf8",
            &small_model().raw("odd", 8, &[1, 0, 0, 0, 0, 0, 0, 0, 0xFF])
        )
        .contains("UTF-8")
    );
    assert!(
        refusal(
            "split",
            &small_model().raw("split.count", 2, &2u16.to_le_bytes())
        )
        .contains("split")
    );
    for alignment in [0, 3, 1 << 30] {
        assert!(
            refusal("align", &small_model().u32("general.alignment", alignment))
                .contains("alignment")
        );
    }
    assert!(refusal("missing", &GgufFile::new()).contains("general.architecture"));
    let no_shape = GgufFile::new().text("general.architecture", "llama");
    assert!(refusal("shape", &no_shape).contains("llama.embedding_length"));
    let zero_heads = GgufFile::new()
        .text("general.architecture", "x")
        .u32("x.embedding_length", 8)
        .u32("x.attention.head_count", 0);
    assert!(refusal("heads", &zero_heads).contains("head_count"));
}

#[test]
fn tensors_stay_inside_the_file() {
    let cases: [(&str, &[u64], u32, u64, &str); 9] = [
        ("beyond", &[32], 0, 1 << 20, "beyond"),
        ("overflow", &[32], 0, u64::MAX - 31, "beyond"),
        ("huge", &[u64::MAX, u64::MAX], 0, 0, "shape"),
        ("wrapping", &[1 << 32, 1 << 32], 0, 0, "shape"),
        ("ragged", &[33], 8, 0, "blocks of 32"),
        ("crooked", &[32], 0, 1, "aligned"),
        ("dims", &[1, 1, 1, 1, 1], 0, 0, "5 dimensions"),
        ("iq2", &[256], 16, 0, "IQ2_XXS"),
        ("nameless", &[256], 12345, 0, "type 12345"),
    ];
    for (name, dims, kind, offset, reason) in cases {
        let error = refusal(name, &small_model().info(name, dims, kind, offset));
        assert!(error.contains(name) && error.contains(reason), "{error}");
    }
    let error = refusal(
        "twins",
        &small_model().info("output_norm.weight", &[1], 0, 0),
    );
    assert!(error.contains("occurs twice"), "{error}");
}

#[test]
fn every_metadata_type_is_read() {
    let mut bytes = 1u32.to_le_bytes().to_vec();
    bytes.extend_from_slice(&2u64.to_le_bytes());
    bytes.extend_from_slice(&[0xFF, 3]);
    let mut nested = 9u32.to_le_bytes().to_vec();
    nested.extend_from_slice(&1u64.to_le_bytes());
    nested.extend_from_slice(&8u32.to_le_bytes());
    nested.extend_from_slice(&1u64.to_le_bytes());
    nested.extend_from_slice(&string("deep"));
    let file = small_model()
        .raw("t.u8", 0, &[200])
        .raw("t.i8", 1, &[0xFF])
        .raw("t.u16", 2, &60000u16.to_le_bytes())
        .raw("t.i16", 3, &(-2i16).to_le_bytes())
        .raw("t.i32", 5, &(-3i32).to_le_bytes())
        .raw("t.bool", 7, &[1])
        .raw("t.i8s", 9, &bytes)
        .raw("t.nested", 9, &nested)
        .raw("t.u64", 10, &u64::MAX.to_le_bytes())
        .raw("t.i64", 11, &i64::MIN.to_le_bytes())
        .raw("t.f64", 12, &0.1f64.to_le_bytes());
    let model = open("types", &file.bytes()).expect("all types");
    let raw = &model.config.raw;
    let expected = serde_json::json!({
        "t.u8": 200, "t.i8": -1, "t.u16": 60000, "t.i16": -2, "t.i32": -3, "t.bool": true,
        "t.u64": u64::MAX, "t.i64": i64::MIN, "t.f64": 0.1,
    });
    for (key, value) in expected.as_object().expect("an object") {
        assert_eq!(raw.get(key), Some(value), "{key}");
    }
    let proa_model_files::TokenizerSource::Gguf(gguf) = &model.tokenizer else {
        panic!("a GGUF vocabulary")
    };
    assert_eq!(gguf.ints("t.i8s").expect("integers"), Some(vec![-1, 3]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn mutated_files_never_panic(
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..12),
        cut in proptest::option::of(any::<proptest::sample::Index>()),
    ) {
        let file = small_model();
        let header_len = file.header().len();
        let mut bytes = file.bytes();
        for (at, byte) in changes {
            bytes[at.index(header_len)] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(model) = open("mutated", &bytes) {
            for tensor in &model.tensors {
                // Every byte that a tensor claims can be read.
                let sum: u64 = tensor.bytes().iter().map(|&byte| u64::from(byte)).sum();
                prop_assert!(sum <= tensor.bytes().len() as u64 * 255);
            }
        }
    }

    #[test]
    fn random_bytes_behind_the_magic_never_panic(tail in proptest::collection::vec(any::<u8>(), 0..400)) {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend_from_slice(&tail);
        prop_assert!(open("random", &bytes).is_err());
    }
}

//! Vocabularies of damaged GGUF files and tokenizer.json files: refused or usable, never a panic.

#[path = "../../model-files/tests/gguf_file/mod.rs"]
mod gguf_file;

mod byte_tokenizer;

use gguf_file::{Folder, GgufFile, small_model};
use model_files::{TokenizerFacts, open_model};
use proa_text::{Tokenizer, TokenizerError};
use proptest::prelude::*;

fn build(name: &str, bytes: &[u8]) -> Option<Result<Tokenizer, TokenizerError>> {
    let folder = Folder::new(name);
    let path = folder.write("model.gguf", bytes);
    open_model(&path)
        .ok()
        .map(|model| Tokenizer::from_model(&model))
}

fn use_it(tokenizer: &Tokenizer) {
    let ids = tokenizer
        .encode("a b ab <s> \u{1F600}\u{0}", true)
        .unwrap_or_default();
    let _ = tokenizer.decode(&ids, false);
    let _ = tokenizer.bad_word_sequences(&["ab".to_owned()]);
}

fn vocabulary(kind: &str, tokens: &[&str]) -> GgufFile {
    GgufFile::new()
        .text("general.architecture", "llama")
        .u32("llama.block_count", 1)
        .u32("llama.context_length", 8)
        .u32("llama.embedding_length", 8)
        .u32("llama.feed_forward_length", 8)
        .u32("llama.attention.head_count", 1)
        .text("tokenizer.ggml.model", kind)
        .texts("tokenizer.ggml.tokens", tokens)
}

#[test]
fn a_small_vocabulary_works() {
    let tokenizer = build("good", &small_model().bytes())
        .expect("the file opens")
        .expect("the vocabulary works");
    assert_eq!(tokenizer.encode("ab", true).unwrap(), [0, 3]);
    assert_eq!(tokenizer.decode(&[1, 2, 3], false), "abab");
    assert_eq!(
        byte_tokenizer::tokenizer().num_ids(),
        byte_tokenizer::NUM_IDS
    );
}

#[test]
fn vocabularies_that_contradict_themselves_are_refused() {
    let cases = [
        (vocabulary("gpt2", &["a", "b"]), "without merges"),
        (
            vocabulary("gpt2", &["a", "b"]).texts("tokenizer.ggml.merges", &["ab"]),
            "no pair",
        ),
        (
            vocabulary("gpt2", &["a", "b"]).texts("tokenizer.ggml.merges", &["a z"]),
            "damaged",
        ),
        (
            vocabulary("gpt2", &["a"]).i32s("tokenizer.ggml.token_type", &[1, 1]),
            "token types",
        ),
        (vocabulary("llama", &["a", "b"]), "score"),
        (vocabulary("bert", &["a"]), "bert"),
        (
            vocabulary("gpt2", &["a"])
                .texts("tokenizer.ggml.merges", &[])
                .text("tokenizer.ggml.pre", "odd"),
            "odd",
        ),
    ];
    for (file, reason) in cases {
        let error = build("wrong", &file.bytes())
            .expect("the file opens")
            .expect_err("a wrong vocabulary")
            .to_string();
        assert!(error.contains(reason), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn damaged_gguf_vocabularies_never_panic(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)
    ) {
        let file = small_model();
        let header_len = file.header().len();
        let mut bytes = file.bytes();
        for (at, byte) in changes {
            bytes[at.index(header_len)] = byte;
        }
        if let Some(Ok(tokenizer)) = build("mutated", &bytes) {
            use_it(&tokenizer);
        }
    }

    #[test]
    fn damaged_tokenizer_json_never_panics(
        at in any::<prop::sample::Index>(), len in 0usize..8, new in "[\\[\\]{}\":,a-z0-9<>|-]{0,6}"
    ) {
        let good = byte_tokenizer::json_file().to_string();
        // Past the long vocabulary and before it alike: damage hits every part.
        let (mut from, mut to) = (at.index(good.len()), 0);
        while !good.is_char_boundary(from) {
            from -= 1;
        }
        to += (from + len).min(good.len());
        while !good.is_char_boundary(to) {
            to += 1;
        }
        let text = format!("{}{new}{}", &good[..from], &good[to..]);
        if let Ok(tokenizer) = Tokenizer::from_json(text.as_bytes(), &TokenizerFacts::default()) {
            use_it(&tokenizer);
        }
    }
}

//! A small byte-level tokenizer for tests: ids 0 to 255 are the bytes, then tokens of several bytes, then two special
//! tokens.

use model_files::TokenizerFacts;
use proa_text::Tokenizer;
use serde_json::{Map, Value, json};

/// Tokens of several bytes; some begin or end inside a character.
pub const LONG: &[&[u8]] = &[
    b"EN",
    b"ND",
    b"END",
    b"ab",
    b"aa",
    b"\n\n",
    b"xENDy",
    b"<|",
    b"im_end",
    b"|>",
    b" ",
    b"",
    &[0xF0, 0x9F],
    &[0x98, 0x80],
    &[0x9F, 0x98],
    "é".as_bytes(),
    "a€".as_bytes(),
    &[0xE2, 0x82],
    &[0xAC, b'b'],
    &[0xFF, 0xFE],
];

/// The end token, `<|im_end|>`.
pub const IM_END: u32 = 256 + LONG.len() as u32;
/// The beginning token, `<s>`.
pub const BOS: u32 = IM_END + 1;
/// One more than the highest id.
pub const NUM_IDS: u32 = BOS + 1;

fn printable(b: u8) -> bool {
    matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

fn spell(bytes: &[u8]) -> String {
    let others: Vec<u8> = (0..=255).filter(|&b| !printable(b)).collect();
    let letter = |b: &u8| match others.iter().position(|o| o == b) {
        None => char::from(*b),
        Some(at) => char::from_u32(0x100 + at as u32).expect("a character"),
    };
    bytes.iter().map(letter).collect()
}

/// tokenizer.json of the tokenizer.
pub fn json_file() -> Value {
    let mut vocab = Map::new();
    for byte in 0..=255u8 {
        vocab.insert(spell(&[byte]), json!(byte));
    }
    for (at, bytes) in LONG.iter().enumerate() {
        // Twins of single bytes and the empty token get a spelling of their own; the table takes the first of two ids.
        let text = if bytes.len() < 2 {
            format!("{}\u{4E00}", spell(bytes))
        } else {
            spell(bytes)
        };
        vocab.insert(text, json!(256 + at));
    }
    let special = |id: u32, text: &str| {
        json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    };
    vocab.insert("<|im_end|>".to_owned(), json!(IM_END));
    vocab.insert("<s>".to_owned(), json!(BOS));
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [special(IM_END, "<|im_end|>"), special(BOS, "<s>")],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                  "vocab": vocab, "merges": [["a", "b"], ["a", "a"], ["E", "N"], ["EN", "D"]]},
    })
}

/// The tokenizer.
pub fn tokenizer() -> Tokenizer {
    let json = json_file().to_string();
    Tokenizer::from_json(json.as_bytes(), &TokenizerFacts::default())
        .expect("the test's tokenizer is right")
}

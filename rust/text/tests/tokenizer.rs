//! Encoding, decoding, bad words and logprob names with a small tokenizer.

mod byte_tokenizer;

use byte_tokenizer::{BOS, IM_END, LONG, NUM_IDS, json_file, tokenizer};
use model_files::TokenizerFacts;
use proa_text::{TokenNames, Tokenizer, TokenizerError};
use proptest::prelude::*;
use serde_json::json;

#[test]
fn token_bytes_are_the_true_bytes() {
    let tokenizer = tokenizer();
    for byte in 0..=255u8 {
        assert_eq!(tokenizer.token_bytes(u32::from(byte)), [byte]);
    }
    for (at, bytes) in LONG.iter().enumerate().filter(|(_, bytes)| bytes.len() > 1) {
        assert_eq!(tokenizer.token_bytes(256 + at as u32), *bytes);
    }
    assert_eq!(tokenizer.token_bytes(IM_END), b"<|im_end|>");
    assert_eq!(tokenizer.num_ids(), NUM_IDS);
}

#[test]
fn special_tokens_in_a_text_are_found() {
    let tokenizer = tokenizer();
    assert_eq!(
        tokenizer.encode("b<|im_end|>b", false).unwrap(),
        [98, IM_END, 98]
    );
    assert_eq!(tokenizer.decode(&[98, IM_END, 98], true), "bb");
    assert_eq!(tokenizer.decode(&[98, IM_END, 98], false), "b<|im_end|>b");
}

#[test]
fn beginning_and_end_tokens_follow_the_files() {
    let json = json_file().to_string();
    let mut facts = TokenizerFacts::default();
    facts
        .special_tokens
        .insert("bos_token".to_owned(), "<s>".to_owned());
    facts
        .special_tokens
        .insert("eos_token".to_owned(), "<|im_end|>".to_owned());
    let ids = |facts: &TokenizerFacts, json: &str| {
        Tokenizer::from_json(json.as_bytes(), facts)
            .unwrap()
            .encode("b", true)
            .unwrap()
    };
    assert_eq!(ids(&facts, &json), [98]);
    facts.add_bos = Some(true);
    assert_eq!(ids(&facts, &json), [BOS, 98]);
    facts.add_eos = Some(true);
    assert_eq!(ids(&facts, &json), [BOS, 98, IM_END]);
    // Where tokenizer_config.json is silent, the post-processor decides.
    let mut processed = json_file();
    processed["post_processor"] = json!({
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [BOS], "tokens": ["<s>"]}},
    });
    assert_eq!(
        ids(&TokenizerFacts::default(), &processed.to_string()),
        [BOS, 98]
    );
    facts.add_bos = Some(false);
    facts.add_eos = None;
    assert_eq!(ids(&facts, &processed.to_string()), [98]);
}

#[test]
fn bad_words_are_banned_with_and_without_a_blank() {
    let tokenizer = tokenizer();
    let words = ["b".to_owned(), " b".to_owned(), "END".to_owned()];
    let end = 256 + LONG.iter().position(|token| *token == b"END").unwrap() as u32;
    let blank = u32::from(b' ');
    assert_eq!(
        tokenizer.bad_word_sequences(&words).unwrap(),
        [vec![98], vec![blank, 98], vec![end], vec![blank, end]]
    );
}

#[test]
fn logprob_maps_keep_the_likelier_of_two_twins() {
    let tokenizer = tokenizer();
    // Both halves of a character show as U+FFFD.
    let map = tokenizer.top_logprob_map(
        (0xE2, -3.0),
        [(98, -0.1), (0x82, -2.0), (0xE2, -3.0)],
        TokenNames::Text,
    );
    assert_eq!(map, [("b".to_owned(), -0.1), ("\u{FFFD}".to_owned(), -2.0)]);
    let map = tokenizer.top_logprob_map(
        (0xE2, f32::NAN),
        [(98, -0.1), (0x82, -2.0)],
        TokenNames::Ids,
    );
    let names: Vec<_> = map
        .iter()
        .map(|(name, value)| (name.as_str(), *value))
        .collect();
    assert_eq!(
        names,
        [
            ("token_id:98", -0.1),
            ("token_id:130", -2.0),
            ("token_id:226", -9999.0)
        ]
    );
}

#[test]
fn decoders_that_are_not_concatenation_are_refused() {
    for decoder in [
        json!(null),
        json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
    ] {
        let mut json = json_file();
        json["decoder"] = decoder;
        let result = Tokenizer::from_json(json.to_string().as_bytes(), &TokenizerFacts::default());
        assert!(matches!(result, Err(TokenizerError::NotSupported(_))));
    }
    let result = Tokenizer::from_json(b"{}", &TokenizerFacts::default());
    assert!(matches!(result, Err(TokenizerError::Damaged(_))));
}

#[test]
fn a_huge_id_is_refused_before_memory_is_reserved() {
    let mut json = json_file();
    json["model"]["vocab"]["huge"] = json!(u32::MAX);
    let result = Tokenizer::from_json(json.to_string().as_bytes(), &TokenizerFacts::default());
    assert!(
        matches!(result, Err(TokenizerError::Damaged(reason)) if reason.contains("4294967295"))
    );
}

proptest! {
    #[test]
    fn every_text_survives_the_round_trip(text in "\\PC{0,40}|[ \\t\\r\\n]{0,40}|(\u{200D}|😀|e\u{301}|ab|END|\u{0}){0,20}") {
        let tokenizer = tokenizer_once();
        let ids = tokenizer.encode(&text, false).unwrap();
        prop_assert_eq!(tokenizer.decode_bytes(&ids, false), text.as_bytes());
        prop_assert_eq!(tokenizer.decode(&ids, false), text);
    }
}

fn tokenizer_once() -> &'static Tokenizer {
    static ONCE: std::sync::LazyLock<Tokenizer> = std::sync::LazyLock::new(tokenizer);
    &ONCE
}

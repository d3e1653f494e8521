//! The text of a choice under every split: against a plain reference that sees the whole text at once.

mod byte_tokenizer;

use std::sync::LazyLock;

use byte_tokenizer::{BOS, IM_END, LONG, NUM_IDS};
use proa_text::{ChoiceText, TextOptions, Tokenizer};
use proptest::prelude::*;

static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(byte_tokenizer::tokenizer);

/// What a choice gave: the text, the stop string that ended it, the tokens taken, the offsets.
#[derive(Debug, PartialEq)]
struct Outcome {
    text: String,
    stop: Option<usize>,
    num_tokens: usize,
}

fn options(stop: &[&str]) -> TextOptions {
    TextOptions {
        stop: stop.iter().map(|s| (*s).to_owned()).collect(),
        ..TextOptions::default()
    }
}

fn run(ids: &[u32], options: &TextOptions) -> (Outcome, Vec<String>) {
    let mut choice = ChoiceText::new(TOKENIZER.clone(), options.clone());
    let mut pieces = Vec::new();
    for (at, &id) in ids.iter().enumerate() {
        let mut piece = String::new();
        let effect = choice.push(id, &mut piece);
        pieces.push(piece);
        if effect.stop.is_some() {
            let mut more = String::new();
            choice.finish(&mut more);
            assert_eq!(more, "", "text after a stop string");
            return (
                Outcome {
                    text: pieces.concat(),
                    stop: effect.stop,
                    num_tokens: at + 1,
                },
                pieces,
            );
        }
    }
    let mut piece = String::new();
    choice.finish(&mut piece);
    pieces.push(piece);
    (
        Outcome {
            text: pieces.concat(),
            stop: None,
            num_tokens: ids.len(),
        },
        pieces,
    )
}

/// The characters of `ids`, each with whether it is shown and after how many tokens it was complete.
fn characters(ids: &[u32], skip: bool) -> Vec<(char, bool, usize)> {
    let mut out = Vec::new();
    let mut open: Vec<u8> = Vec::new();
    let flush = |open: &mut Vec<u8>, at: usize, out: &mut Vec<(char, bool, usize)>, all: bool| {
        loop {
            let (end, bad) = match std::str::from_utf8(open) {
                Ok(text) => (text.len(), None),
                Err(error) => (
                    error.valid_up_to(),
                    error.error_len().or(all.then_some(open.len())),
                ),
            };
            let text = std::str::from_utf8(&open[..end])
                .expect("checked")
                .to_owned();
            out.extend(text.chars().map(|c| (c, true, at)));
            match bad {
                Some(len) => {
                    out.push(('\u{FFFD}', true, at));
                    *open = open.split_off((end + len).min(open.len()));
                }
                None => {
                    *open = open.split_off(end);
                    return;
                }
            }
            if open.is_empty() {
                return;
            }
        }
    };
    for (at, &id) in ids.iter().enumerate() {
        if TOKENIZER.is_special(id) {
            flush(&mut open, at + 1, &mut out, true);
            let text = String::from_utf8_lossy(TOKENIZER.token_bytes(id)).into_owned();
            out.extend(text.chars().map(|c| (c, !skip, at + 1)));
        } else {
            open.extend_from_slice(TOKENIZER.token_bytes(id));
            flush(&mut open, at + 1, &mut out, false);
        }
    }
    flush(&mut open, ids.len() + 1, &mut out, true);
    out
}

/// What the page on stop strings says, said with the whole text at hand.
fn reference(ids: &[u32], options: &TextOptions) -> Outcome {
    let all = characters(ids, options.skip_special_tokens);
    for end in 1..=all.len() {
        let after = all[end - 1].2;
        // What only the end of the choice completes is no longer searched.
        if after > ids.len() || after < options.min_tokens as usize {
            continue;
        }
        let matched: String = all[..end].iter().map(|c| c.0).collect();
        let found = options
            .stop
            .iter()
            .position(|stop| matched.ends_with(stop.as_str()));
        if let Some(index) = found {
            let stop = &options.stop[index];
            let cut = end - stop.chars().count();
            let mut text: String = all[..cut].iter().filter(|c| c.1).map(|c| c.0).collect();
            if options.include_stop {
                text.push_str(stop);
            }
            return Outcome {
                text,
                stop: Some(index),
                num_tokens: after,
            };
        }
    }
    let text = all.iter().filter(|c| c.1).map(|c| c.0).collect();
    Outcome {
        text,
        stop: None,
        num_tokens: ids.len(),
    }
}

fn bytes(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

/// Ids that spell `text`, cut at the given places: long tokens where one fits, bytes elsewhere.
fn split(text: &[u8], choices: &[bool]) -> Vec<u32> {
    let mut ids = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let long = LONG
            .iter()
            .position(|token| token.len() > 1 && text[at..].starts_with(token));
        match long {
            Some(index) if choices.get(at).copied().unwrap_or(false) => {
                ids.push(256 + index as u32);
                at += LONG[index].len();
            }
            _ => {
                ids.push(u32::from(text[at]));
                at += 1;
            }
        }
    }
    ids
}

#[test]
fn a_stop_string_over_several_tokens_never_shows() {
    let (outcome, pieces) = run(&bytes("aENDb"), &options(&["END"]));
    assert_eq!(
        outcome,
        Outcome {
            text: "a".into(),
            stop: Some(0),
            num_tokens: 4
        }
    );
    assert!(pieces.iter().all(|piece| !piece.contains('E')));
    let included = TextOptions {
        include_stop: true,
        ..options(&["END"])
    };
    assert_eq!(run(&bytes("aENDb"), &included).0.text, "aEND");
    let (outcome, pieces) = run(&bytes("aEN"), &options(&["END"]));
    assert_eq!((outcome.text.as_str(), outcome.stop), ("aEN", None));
    assert_eq!(pieces, ["a", "", "", "EN"]);
}

#[test]
fn the_earliest_end_wins_and_ties_go_to_the_first_listed() {
    assert_eq!(run(&bytes("xabcd"), &options(&["abcd", "bc"])).0.text, "xa");
    assert_eq!(
        run(&bytes("xabc"), &options(&["c", "abc"])).0,
        Outcome {
            text: "xab".into(),
            stop: Some(0),
            num_tokens: 4
        }
    );
    assert_eq!(
        run(&bytes("xabc"), &options(&["abc", "c"])).0,
        Outcome {
            text: "x".into(),
            stop: Some(0),
            num_tokens: 4
        }
    );
    // One token that holds the string twice is cut at the first.
    let newlines = 256
        + LONG
            .iter()
            .position(|token| *token == b"\n\n")
            .expect("a token") as u32;
    assert_eq!(
        run(&[u32::from(b'a'), newlines], &options(&["\n"])).0.text,
        "a"
    );
}

#[test]
fn early_matches_are_passed_over() {
    let late = TextOptions {
        min_tokens: 3,
        ..options(&["aa"])
    };
    assert_eq!(
        run(&bytes("aaaa"), &late).0,
        Outcome {
            text: "a".into(),
            stop: Some(0),
            num_tokens: 3
        }
    );
    let later = TextOptions {
        min_tokens: 4,
        ..options(&["END"])
    };
    assert_eq!(
        run(&bytes("ENDxEND"), &later).0,
        Outcome {
            text: "ENDx".into(),
            stop: Some(0),
            num_tokens: 7
        }
    );
}

#[test]
fn special_tokens_are_matched_though_they_are_not_shown() {
    let ids = [u32::from(b'a'), IM_END, u32::from(b'b')];
    assert_eq!(run(&ids, &options(&[])).0.text, "ab");
    assert_eq!(
        run(&ids, &options(&["<|im_end|>"])).0,
        Outcome {
            text: "a".into(),
            stop: Some(0),
            num_tokens: 2
        }
    );
    assert_eq!(
        run(&ids, &options(&["a<|im_end|>b"])).0,
        Outcome {
            text: "".into(),
            stop: Some(0),
            num_tokens: 3
        }
    );
    let shown = TextOptions {
        skip_special_tokens: false,
        ..options(&[])
    };
    assert_eq!(run(&ids, &shown).0.text, "a<|im_end|>b");
}

#[test]
fn an_end_token_is_cut_unless_it_is_wanted() {
    let end = |ids: &[u32], last: u32, options: TextOptions| {
        let mut choice = ChoiceText::new(TOKENIZER.clone(), options);
        let mut text = String::new();
        for &id in ids {
            choice.push(id, &mut text);
        }
        let effect = choice.push_end_token(last, &mut text);
        (text, effect.stop)
    };
    let included = TextOptions {
        include_stop: true,
        ..options(&[])
    };
    let raw = TextOptions {
        skip_special_tokens: false,
        ..included.clone()
    };
    let a = bytes("a");
    assert_eq!(end(&a, u32::from(b'.'), options(&[])), ("a".into(), None));
    assert_eq!(
        end(&a, u32::from(b'.'), included.clone()),
        ("a.".into(), None)
    );
    assert_eq!(end(&a, IM_END, included), ("a".into(), None));
    assert_eq!(end(&a, IM_END, raw), ("a<|im_end|>".into(), None));
    assert_eq!(
        end(&a, IM_END, options(&["a<|im_end|>"])),
        ("".into(), Some(0))
    );
    // Held text and an open character come out before the end.
    assert_eq!(
        end(&bytes("aEN"), IM_END, options(&["END"])),
        ("aEN".into(), None)
    );
    assert_eq!(
        end(&[u32::from(b'a'), 0xE2, 0x82], IM_END, options(&[])),
        ("a\u{FFFD}".into(), None)
    );
}

#[test]
fn offsets_count_shown_code_points() {
    let mut choice = ChoiceText::new(TOKENIZER.clone(), TextOptions::default());
    let mut text = String::new();
    let ids = [u32::from(b'a'), 0xE2, 0x82, 0xAC, IM_END, u32::from(b'b')];
    let offsets: Vec<u32> = ids
        .iter()
        .map(|&id| choice.push(id, &mut text).text_offset)
        .collect();
    assert_eq!((text.as_str(), offsets), ("a€b", vec![0, 1, 1, 1, 2, 2]));
}

fn any_id() -> impl Strategy<Value = u32> {
    prop_oneof![
        4 => prop::sample::select(b"aabENDxy\n<|im_end>".to_vec()).prop_map(u32::from),
        2 => 256..IM_END,
        1 => 0..256u32,
        1 => Just(IM_END),
        1 => 0..NUM_IDS + 2,
    ]
}

fn any_options() -> impl Strategy<Value = TextOptions> {
    let stops = [
        "END",
        "EN",
        "a",
        "aa",
        "aab",
        "aaaa",
        "ab",
        "\n",
        "<|im_end|>",
        "|>",
        "é",
        "😀",
        "xy",
        "\u{FFFD}",
        "€b",
    ];
    let stop = proptest::collection::vec(prop::sample::select(stops.to_vec()), 0..4);
    (stop, any::<bool>(), any::<bool>(), 0..12u32).prop_map(
        |(stop, include_stop, skip_special_tokens, min_tokens)| TextOptions {
            include_stop,
            skip_special_tokens,
            min_tokens,
            ..options(&stop)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn streaming_equals_the_reference(ids in proptest::collection::vec(any_id(), 0..40), options in any_options()) {
        prop_assert_eq!(run(&ids, &options).0, reference(&ids, &options));
    }

    #[test]
    fn every_split_of_one_text_gives_one_result(
        text in "(END|EN|a|aa|b|x|y|\n|é|€|😀|<\\|im_end\\|>| ){0,16}",
        one in proptest::collection::vec(any::<bool>(), 64),
        other in proptest::collection::vec(any::<bool>(), 64),
        options in any_options(),
    ) {
        let options = TextOptions { min_tokens: 0, ..options };
        let (a, b) = (split(text.as_bytes(), &one), split(text.as_bytes(), &other));
        let ((a, _), (b, _)) = (run(&a, &options), run(&b, &options));
        prop_assert_eq!((a.text, a.stop), (b.text, b.stop));
    }

    #[test]
    fn what_may_begin_a_stop_string_waits_and_nothing_else_does(
        ids in proptest::collection::vec(any_id(), 0..40), options in any_options()
    ) {
        let options = TextOptions { skip_special_tokens: false, include_stop: false, ..options };
        let (outcome, pieces) = run(&ids, &options);
        let mut shown = String::new();
        for (at, piece) in pieces.iter().take(outcome.num_tokens).enumerate() {
            shown.push_str(piece);
            if outcome.stop.is_some() && at + 1 == outcome.num_tokens {
                break;
            }
            let so_far: String = characters(&ids[..at + 1], false).iter().filter(|c| c.2 <= at + 1).map(|c| c.0).collect();
            let held = (0..so_far.len())
                .filter(|&from| so_far.is_char_boundary(from))
                .find(|&from| options.stop.iter().any(|stop| stop.len() > so_far.len() - from && stop.starts_with(&so_far[from..])))
                .unwrap_or(so_far.len());
            prop_assert_eq!(&shown, &so_far[..held]);
        }
    }
}

#[test]
fn the_beginning_token_is_known_as_special() {
    assert!(
        TOKENIZER.is_special(BOS) && !TOKENIZER.is_special(0) && !TOKENIZER.is_special(NUM_IDS + 7)
    );
    assert_eq!(TOKENIZER.token_bytes(NUM_IDS + 7), b"");
}

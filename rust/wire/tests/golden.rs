//! The golden messages in Rust: built from their JSON by rules of this file, decoded, encoded to the same bytes.

use std::collections::HashMap;
use std::path::PathBuf;

use proa_wire::{Direction, Kind, Message, decode, encode};
use serde_json::{Map, Value};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/wire")
}

fn json(name: &str) -> Value {
    let text = std::fs::read_to_string(folder().join(format!("{name}.json"))).expect("readable");
    serde_json::from_str(&text).expect("JSON")
}

fn frames(name: &str) -> Vec<Vec<u8>> {
    let data = std::fs::read(folder().join(format!("{name}.bin"))).expect("readable");
    let mut rest = data.as_slice();
    let mut frames = Vec::new();
    while let Some((length, tail)) = rest.split_first_chunk() {
        let (frame, tail) = tail.split_at(u32::from_le_bytes(*length) as usize);
        frames.push(frame.to_vec());
        rest = tail;
    }
    frames
}

fn direction(document: &Value) -> Direction {
    match document["from"].as_str() {
        Some("engine") => Direction::FromEngine,
        _ => Direction::FromFrontEnd,
    }
}

/// Every fixture with its JSON, the good or the bad ones.
fn fixtures(bad: bool) -> Vec<(String, Value)> {
    let entries = std::fs::read_dir(folder()).expect("the fixtures");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut found: Vec<(String, Value)> = paths
        .filter(|path| path.extension().is_some_and(|extension| extension == "bin"))
        .map(|path| {
            path.file_stem()
                .expect("a name")
                .to_string_lossy()
                .into_owned()
        })
        .map(|name| (name.clone(), json(&name)))
        .filter(|(_, document)| document.get("reason").is_some() == bad)
        .collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

fn big_endian(marker: u8, value: u64, width: usize, out: &mut Vec<u8>) {
    out.push(marker);
    out.extend_from_slice(&value.to_be_bytes()[8 - width..]);
}

/// The marker family of a length: fixed form up to `fixed`, then 8 (if there is one), 16 and 32 bits.
fn length(len: usize, (base, fixed): (u8, usize), wide: &[(u8, usize)], out: &mut Vec<u8>) {
    if len <= fixed {
        return out.push(base + len as u8);
    }
    let (marker, width) = wide
        .iter()
        .find(|(_, width)| len >> (8 * width) == 0)
        .expect("a form");
    big_endian(*marker, len as u64, *width, out);
}

fn pack(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null => out.push(0xc0),
        Value::Bool(value) => out.push(0xc2 + u8::from(*value)),
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(value @ 0..=0x7f), _) => out.push(value as u8),
            (Some(value), _) => {
                let (index, width) = [1, 2, 4, 8]
                    .iter()
                    .enumerate()
                    .find(|(_, w)| **w == 8 || value >> (8 * **w) == 0)
                    .unwrap();
                big_endian(0xcc + index as u8, value, *width, out);
            }
            (_, Some(value @ -32..0)) => out.push(value as u8),
            (_, Some(value)) => {
                let fits = |width: &usize| *width == 8 || value >> (8 * width - 1) == -1;
                let (index, width) = [1, 2, 4, 8]
                    .iter()
                    .enumerate()
                    .find(|(_, width)| fits(width))
                    .unwrap();
                big_endian(0xd0 + index as u8, value as u64, *width, out);
            }
            _ => big_endian(0xcb, number.as_f64().expect("a float").to_bits(), 8, out),
        },
        Value::String(text) => {
            length(
                text.len(),
                (0xa0, 31),
                &[(0xd9, 1), (0xda, 2), (0xdb, 4)],
                out,
            );
            out.extend_from_slice(text.as_bytes());
        }
        Value::Array(items) => {
            length(items.len(), (0x90, 15), &[(0xdc, 2), (0xdd, 4)], out);
            items.iter().for_each(|item| pack(item, out));
        }
        Value::Object(entries) => match entries.get("$bin") {
            Some(hex) => pack_bin(hex.as_str().expect("hex"), out),
            None => pack_map(entries, out),
        },
    }
}

fn pack_bin(hex: &str, out: &mut Vec<u8>) {
    let bytes: Vec<u8> = (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex"))
        .collect();
    let (marker, width) = if bytes.len() < 256 {
        (0xc4, 1)
    } else {
        (0xc5, 2)
    };
    big_endian(marker, bytes.len() as u64, width, out);
    out.extend(bytes);
}

fn pack_map(entries: &Map<String, Value>, out: &mut Vec<u8>) {
    length(entries.len(), (0x80, 15), &[(0xde, 2), (0xdf, 4)], out);
    for (key, value) in entries {
        pack(&Value::String(key.clone()), out);
        pack(value, out);
    }
}

fn column(kind: &str, values: &Value) -> Vec<u8> {
    let values = values.as_array().expect("a list");
    let width = kind[1..].parse::<usize>().expect("a width") / 8;
    values
        .iter()
        .flat_map(|value| {
            let bytes = match (kind, value) {
                ("f32", Value::String(text)) => text
                    .parse::<f32>()
                    .expect("a float")
                    .to_bits()
                    .to_le_bytes()
                    .to_vec(),
                ("f32", _) => (value.as_f64().expect("a number") as f32)
                    .to_le_bytes()
                    .to_vec(),
                _ => match value.as_u64() {
                    Some(value) => value.to_le_bytes().to_vec(),
                    None => value.as_i64().expect("an integer").to_le_bytes().to_vec(),
                },
            };
            bytes.into_iter().take(width).collect::<Vec<u8>>()
        })
        .collect()
}

fn frames_of(document: &Value, types: &HashMap<String, String>) -> Vec<Vec<u8>> {
    let mut body = document["body"].as_object().expect("a body").clone();
    let mut frames = vec![
        vec![document["kind"].as_u64().expect("a kind") as u8],
        Vec::new(),
    ];
    if let Some(columns) = document.get("columns").and_then(Value::as_object) {
        let names: Vec<&String> = columns.keys().collect();
        body.insert("columns".to_owned(), serde_json::json!(names));
        frames.extend(
            columns
                .iter()
                .map(|(name, values)| column(&types[name], values)),
        );
    }
    pack_map(&body, &mut frames[1]);
    frames
}

#[test]
fn good_messages() {
    let types: HashMap<String, String> =
        serde_json::from_value(json("columns")).expect("a map of types");
    let good = fixtures(false);
    assert!(good.len() >= 15);
    let mut kinds: Vec<u8> = Vec::new();
    for (name, document) in good {
        let frames = frames(&name);
        assert_eq!(
            frames,
            frames_of(&document, &types),
            "{name}: the .bin is not that of the .json"
        );
        let message =
            decode(direction(&document), 0, &frames).unwrap_or_else(|bad| panic!("{name}: {bad}"));
        assert_eq!(encode(&message), frames, "{name}");
        kinds.push(message.kind() as u8);
    }
    kinds.sort_unstable();
    kinds.dedup();
    assert_eq!(kinds.len(), 9, "every kind: {kinds:x?}");
    assert!(kinds.iter().all(|kind| Kind::from_byte(*kind).is_some()));
}

#[test]
fn bad_messages() {
    let bad = fixtures(true);
    assert!(bad.len() >= 20);
    for (name, document) in bad {
        match decode(direction(&document), 0, &frames(&name)) {
            Ok(message) => panic!("{name} was accepted as {}", message.kind().name()),
            Err(bad) => assert_eq!(
                Some(bad.reason.label()),
                document["reason"].as_str(),
                "{name}: {bad}"
            ),
        }
    }
}

#[test]
fn fields_of_decoded_messages() {
    let Ok(Message::AddRequests(add)) = decode(Direction::FromFrontEnd, 0, &frames("add_rare"))
    else {
        panic!("add_rare");
    };
    let rare = &add.rare[0];
    assert_eq!(
        (rare.row, rare.lora.as_deref(), rare.thinking_budget),
        (1, Some("Ünïcode"), Some(0))
    );
    assert_eq!(
        rare.bad_words.as_ref().map(|words| words.0.clone()),
        Some(vec![vec![7], vec![8, 9]])
    );
    assert_eq!(
        rare.logit_bias.as_ref().map(|bias| bias.values.clone()),
        Some(vec![1.0, -1.0])
    );

    let Ok(Message::StepOutputs(step)) = decode(Direction::FromEngine, 0, &frames("step_logprobs"))
    else {
        panic!("step_logprobs");
    };
    let logprobs = step.sampled_logprobs.expect("logprobs");
    assert_eq!(logprobs.lp_k, [2, -1, 0]);
    assert!(logprobs.lp_value[1].is_nan() && logprobs.lp_value[2] == f32::NEG_INFINITY);
    assert_eq!(logprobs.lp_rank, [1, 0, u32::MAX]);

    let Ok(Message::Ready(ready)) = decode(Direction::FromEngine, 0, &frames("ready")) else {
        panic!("ready");
    };
    let facts = ready.facts.expect("facts");
    assert_eq!(
        (
            facts.vocab_size,
            facts.max_logprobs,
            facts.cache.num_cpu_blocks
        ),
        (49152, -1, None)
    );
}

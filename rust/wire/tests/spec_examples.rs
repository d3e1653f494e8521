//! The three messages whose bytes spec/wire.md section 9 prints, against their meaning.

use proa_wire::{
    Abort, Direction, Map, Message, NO_STOP_TOKEN, Rows, StepOutputs, Utility, Value, decode,
    encode,
};

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex"))
        .collect()
}

fn check(direction: Direction, hex: &[&str], expected: Message) {
    let frames: Vec<Vec<u8>> = hex.iter().map(|frame| bytes(frame)).collect();
    assert_eq!(decode(direction, 0, &frames), Ok(expected.clone()));
    assert_eq!(encode(&expected), frames);
}

#[test]
fn abort() {
    let hex = [
        "03",
        "81a7636f6c756d6e7392ab726571756573745f6b6579a56361757365",
        "07000000000000000000000000010000",
        "0102",
    ];
    check(
        Direction::FromFrontEnd,
        &hex,
        Message::Abort(Abort {
            request_key: vec![7, 1 << 40],
            cause: vec![1, 2],
        }),
    );
}

#[test]
fn step_two_rows() {
    let hex = [
        "82",
        "82ad737465705f7374616d705f6e73ce000f4240a7636f6c756d6e7395ab726571756573745f6b6579aa6e756d5f746f6b656e73\
         a9746f6b656e5f696473a666696e697368aa73746f705f746f6b656e",
        "07000000000000000800000000000000",
        "02000000",
        "05000000ffbf0000",
        "0004",
        "ffffffffffffffff",
    ];
    let rows = Rows {
        request_key: vec![7, 8],
        num_tokens: vec![2, 0],
        token_ids: vec![5, 49151],
        finish: vec![0, 4],
        stop_token: vec![NO_STOP_TOKEN; 2],
    };
    let expected = StepOutputs {
        step_stamp_ns: 1_000_000,
        rows,
        ..StepOutputs::default()
    };
    check(
        Direction::FromEngine,
        &hex,
        Message::StepOutputs(Box::new(expected)),
    );
}

#[test]
fn utility_pause() {
    let hex = [
        "04",
        "83a763616c6c5f696401a66d6574686f64a57061757365a46172677382a46d6f6465a46b656570ab636c6561725f6361636865c2",
    ];
    let args: Map = [
        ("mode", Value::from("keep")),
        ("clear_cache", Value::from(false)),
    ]
    .into_iter()
    .collect();
    let expected = Utility {
        call_id: 1,
        method: "pause".to_owned(),
        args,
    };
    check(Direction::FromFrontEnd, &hex, Message::Utility(expected));
}

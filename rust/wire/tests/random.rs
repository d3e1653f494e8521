//! Random valid messages survive the wire; damaged ones are refused and never harm the receiver.

#[path = "../examples/wire_peer/random.rs"]
mod random;

use proa_wire::{Direction, decode, encode};
use random::{Random, mutate};

fn count(default: usize) -> usize {
    let asked = std::env::var("PROA_TEST_WIRE_MESSAGES")
        .ok()
        .and_then(|count| count.parse().ok());
    asked.unwrap_or(default)
}

#[test]
fn valid_messages_decode_and_encode_to_the_same_bytes() {
    let mut random = Random(1);
    for index in 0..count(10_000) {
        let message = random.message();
        let frames = encode(&message);
        let decoded = decode(message.kind().direction(), 0, &frames)
            .unwrap_or_else(|bad| panic!("message {index} ({}): {bad}", message.kind().name()));
        assert_eq!(encode(&decoded), frames, "message {index}");
        let wrong = match message.kind().direction() {
            Direction::FromEngine => Direction::FromFrontEnd,
            Direction::FromFrontEnd => Direction::FromEngine,
        };
        assert!(decode(wrong, 0, &frames).is_err());
    }
}

#[test]
fn damaged_messages_are_refused_or_whole() {
    let mut random = Random(2);
    let mut refused = 0;
    let total = count(200_000);
    for _ in 0..total {
        let message = random.message();
        let mut frames = encode(&message);
        mutate(&mut random, &mut frames);
        match decode(message.kind().direction(), 0, &frames) {
            // What is accepted is a message: it can be sent again and read again.
            Ok(decoded) => {
                let again = encode(&decoded);
                let twice = decode(decoded.kind().direction(), 0, &again);
                assert_eq!(twice.map(|message| encode(&message)), Ok(again));
            }
            Err(_) => refused += 1,
        }
    }
    assert!(
        refused > total / 2,
        "the damage is real: {refused} of {total} refused"
    );
}

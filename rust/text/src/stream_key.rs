//! The random stream of a choice: one number from a seed, a prompt and a choice (`wire.md`, column `stream_key`).
//!
//! Owns Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", 2011) and the
//! counter's layout. Does not know where seeds come from or how noise is made from the key.

const ROUNDS: u32 = 10;
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
/// "PROA": keeps this use of the generator apart from the engine's, whose third counter word is 0.
const STREAM_TAG: u32 = 0x5052_4F41;

/// Four random words from a counter and a key.
pub fn philox4x32_10(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..ROUNDS {
        if round > 0 {
            key = [
                key[0].wrapping_add(KEY_STEPS[0]),
                key[1].wrapping_add(KEY_STEPS[1]),
            ];
        }
        let a = u64::from(MULTIPLIERS[0]) * u64::from(counter[0]);
        let b = u64::from(MULTIPLIERS[1]) * u64::from(counter[2]);
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
    }
    counter
}

/// The stream key of choice `choice` of prompt `prompt` under `seed`; depends on nothing else.
pub fn stream_key(seed: i64, prompt: u32, choice: u32) -> u64 {
    let seed = seed as u64; // two's complement
    let words = philox4x32_10(
        [prompt, choice, STREAM_TAG, 0],
        [seed as u32, (seed >> 32) as u32],
    );
    u64::from(words[0]) | u64::from(words[1]) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers published with the paper's reference implementation.
    #[test]
    fn known_answers() {
        let ones = u32::MAX;
        assert_eq!(
            philox4x32_10([0; 4], [0; 2]),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        assert_eq!(
            philox4x32_10([ones; 4], [ones; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox4x32_10(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn keys_differ_by_seed_prompt_and_choice() {
        let mut keys = std::collections::HashSet::new();
        for seed in [0, 1, -1, i64::MIN, i64::MAX, 1 << 32] {
            for prompt in 0..4 {
                for choice in 0..4 {
                    assert!(keys.insert(stream_key(seed, prompt, choice)));
                }
            }
        }
    }

    #[test]
    fn layout_is_word_0_low_and_word_1_high() {
        let words = philox4x32_10([3, 5, 0x5052_4F41, 0], [7, 0]);
        assert_eq!(
            stream_key(7, 3, 5),
            u64::from(words[1]) << 32 | u64::from(words[0])
        );
        assert_eq!(
            stream_key(-1, 0, 0) as u32,
            philox4x32_10([0, 0, 0x5052_4F41, 0], [u32::MAX, u32::MAX])[0]
        );
    }
}

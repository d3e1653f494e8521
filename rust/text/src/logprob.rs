//! How log-probabilities and their tokens are written for a client (http-surface.md section 3.4).
//!
//! Owns the printed number, a token's text and the rule for two ids with one text. Does not know JSON.

use crate::Tokenizer;

/// The least log-probability ever printed.
pub const FLOOR: f32 = -9999.0;

/// `value` as a client may see it: NaN, both infinities and everything below -9999 become -9999.0.
pub fn printable_logprob(value: f32) -> f32 {
    if value.is_finite() && value >= FLOOR {
        value
    } else {
        FLOOR
    }
}

/// How tokens are named in logprobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TokenNames {
    /// By their text, where a partial character shows as U+FFFD.
    #[default]
    Text,
    /// As `token_id:N` (`return_tokens_as_token_ids`).
    Ids,
}

impl Tokenizer {
    /// The string that stands for token `id` in logprobs; the true bytes are `token_bytes`.
    pub fn token_name(&self, id: u32, names: TokenNames) -> String {
        match names {
            TokenNames::Text => String::from_utf8_lossy(self.token_bytes(id)).into_owned(),
            TokenNames::Ids => format!("token_id:{id}"),
        }
    }

    /// The entries of a completions `top_logprobs` map: the sampled token and the top ones, falling by value, one per
    /// string; of two ids with one string the likelier stays. Values are printable.
    ///
    /// Args: `sampled` is the drawn token with its value; `top` holds ids and values and may contain the sampled one.
    pub fn top_logprob_map(
        &self,
        sampled: (u32, f32),
        top: impl IntoIterator<Item = (u32, f32)>,
        names: TokenNames,
    ) -> Vec<(String, f32)> {
        let mut all = vec![sampled];
        all.extend(top.into_iter().filter(|entry| entry.0 != sampled.0));
        let mut map: Vec<(String, f32)> = Vec::with_capacity(all.len());
        for (id, value) in all {
            let (name, value) = (self.token_name(id, names), printable_logprob(value));
            match map.iter_mut().find(|entry| entry.0 == name) {
                Some(entry) => entry.1 = entry.1.max(value),
                None => map.push((name, value)),
            }
        }
        // The sort is stable, so equal values keep the engine's order of rank.
        map.sort_by(|a, b| b.1.total_cmp(&a.1));
        map
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_numbers_print_as_the_floor() {
        for odd in [
            f32::NAN,
            f32::INFINITY,
            f32::NEG_INFINITY,
            -20000.0,
            -9999.001,
        ] {
            assert_eq!(printable_logprob(odd), -9999.0);
        }
        for plain in [0.0, -0.5, -9999.0, 1.5] {
            assert_eq!(printable_logprob(plain), plain);
        }
    }
}

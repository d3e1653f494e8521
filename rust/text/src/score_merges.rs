//! Merges for a SentencePiece vocabulary, which a GGUF header gives as scores only.
//!
//! Owns the order of the merges: best score first, then longer left and right parts, then the vocabulary's order. That
//! is the order in which SentencePiece itself would join pieces, told as byte-pair merges.

use std::collections::HashMap;

/// A pair of tokens that join into a third.
struct Merge<'a> {
    left: &'a str,
    right: &'a str,
    rank: f32,
    left_chars: usize,
    right_chars: usize,
}

/// All pairs of `tokens` that join into a token, in merge order.
///
/// Args: `ranks[i]` orders the merges that make `tokens[i]`; the highest comes first. Both have one entry per id.
pub(crate) fn merges_from_scores(tokens: &[&str], ranks: &[f32]) -> Vec<(String, String)> {
    let vocab: HashMap<&str, u32> = tokens
        .iter()
        .zip(0..)
        .map(|(token, id)| (*token, id))
        .collect();
    let mut merges = Vec::new();
    for (token, &rank) in tokens.iter().zip(ranks) {
        let first = merges.len();
        for (left_chars, (at, _)) in token.char_indices().enumerate().skip(1) {
            let (left, right) = token.split_at(at);
            if vocab.contains_key(left) && vocab.contains_key(right) {
                let right_chars = right.chars().count();
                merges.push(Merge {
                    left,
                    right,
                    rank,
                    left_chars,
                    right_chars,
                });
            }
        }
        merges[first..].sort_by_key(|merge| (vocab[merge.left], vocab[merge.right]));
    }
    // Stable, so the vocabulary's order decides what is left.
    merges.sort_by(|a, b| {
        b.rank
            .total_cmp(&a.rank)
            .then_with(|| (b.left_chars, b.right_chars).cmp(&(a.left_chars, a.right_chars)))
    });
    merges
        .into_iter()
        .map(|merge| (merge.left.to_owned(), merge.right.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn better_scores_and_longer_parts_come_first() {
        let tokens = ["a", "b", "ab", "abb", "bb"];
        let ranks = [-10.0, -11.0, -1.0, -2.0, -2.0];
        let pairs = merges_from_scores(&tokens, &ranks);
        let pairs: Vec<(&str, &str)> = pairs
            .iter()
            .map(|(l, r)| (l.as_str(), r.as_str()))
            .collect();
        assert_eq!(pairs, [("a", "b"), ("ab", "b"), ("a", "bb"), ("b", "b")]);
    }

    #[test]
    fn parts_end_at_characters() {
        assert_eq!(
            merges_from_scores(&["▁", "é", "▁é"], &[0.0; 3]),
            [("▁".to_owned(), "é".to_owned())]
        );
    }
}

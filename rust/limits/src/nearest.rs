//! The nearest known name to a mistyped one, for "did you mean" hints.

/// Names longer than this get no hint: no known name is near, and the search stays cheap.
const MAX_NAME_CHARS: usize = 80;

/// The candidate nearest to `name` by edit distance, at most 3 and at most a third of the length
/// of `name`; ties go to the first candidate. None if nothing is near.
pub fn nearest_name<'a, I>(name: &str, candidates: I) -> Option<&'a str>
where
    I: IntoIterator<Item = &'a str>,
{
    if name.len() > MAX_NAME_CHARS * 4 {
        return None;
    }
    let wanted: Vec<char> = name.chars().collect();
    if wanted.len() > MAX_NAME_CHARS {
        return None;
    }
    let largest = (wanted.len() / 3).min(3);
    let mut best: Option<(usize, &str)> = None;
    for candidate in candidates {
        let bound = best.map_or(largest + 1, |(distance, _)| distance);
        if let Some(distance) = distance_below(&wanted, candidate, bound) {
            best = Some((distance, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

/// Levenshtein distance of `wanted` and `candidate` if it is below `bound`.
fn distance_below(wanted: &[char], candidate: &str, bound: usize) -> Option<usize> {
    let other: Vec<char> = candidate.chars().take(MAX_NAME_CHARS + 1).collect();
    if wanted.len().abs_diff(other.len()) >= bound {
        return None;
    }
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in wanted.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in other.iter().enumerate() {
            let substituted = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    let distance = row[other.len()];
    (distance < bound).then_some(distance)
}

#[cfg(test)]
mod tests {
    use super::nearest_name;

    #[test]
    fn finds_the_nearest_within_three_and_a_third() {
        let names = ["temperature", "top_p", "top_k", "max_tokens"];
        assert_eq!(nearest_name("temprature", names), Some("temperature"));
        assert_eq!(nearest_name("topp", names), Some("top_p"));
        assert_eq!(
            nearest_name("top_x", names),
            Some("top_p"),
            "ties go to the first"
        );
        assert_eq!(nearest_name("max_tokns", names), Some("max_tokens"));
        assert_eq!(nearest_name("min_tokens_x", names), None, "distance 4");
        assert_eq!(nearest_name("xy", ["xz"]), None, "a third of 2 is 0");
        assert_eq!(nearest_name("", names), None);
    }

    #[test]
    fn long_names_get_no_hint() {
        let long = "a".repeat(1 << 20);
        assert_eq!(nearest_name(&long, ["aaaa"]), None);
    }
}

//! Reads one value of a flag from text, by the flag's type.
//!
//! Does not know where the text came from, nor whether this build has the feature.

use limits::{nearest_name, quote};

use crate::flag::{Flag, Kind};

/// The value of one flag.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Of a switch.
    Switch(bool),
    /// Of a count.
    Count(i64),
    /// Of a number.
    Number(f64),
    /// Of a word, a text, or JSON as it was written.
    Text(String),
    /// Of a flag that repeats.
    Texts(Vec<String>),
}

/// Reads `text` as a value of `flag`; the error is a phrase without the flag's name.
pub fn parse(flag: &Flag, text: &str) -> Result<Value, String> {
    match flag.kind {
        Kind::Switch => switch(text).map(Value::Switch),
        Kind::Count(min, max) => count(text, min, max).map(Value::Count),
        Kind::Number(min, max) => number(text, min, max).map(Value::Number),
        Kind::Word(words) => word(text, words).map(Value::Text),
        Kind::Json => json(text).map(Value::Text),
        Kind::Text => Ok(Value::Text(text.to_string())),
        Kind::Texts => Ok(Value::Texts(vec![text.to_string()])),
    }
}

fn switch(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "on" | "yes" | "1" => Ok(true),
        "false" | "off" | "no" | "0" => Ok(false),
        _ => Err(format!("expected true or false, got '{}'", quote(text))),
    }
}

fn count(text: &str, min: i64, max: i64) -> Result<i64, String> {
    // A count that may be -1 spells that "as much as there is", which people write as a word.
    if text == "auto" && min == -1 {
        return Ok(-1);
    }
    let unreadable = || {
        format!(
            "expected an integer such as 4096, 32k or 32K, got '{}'",
            quote(text)
        )
    };
    let (digits, unit) = split_unit(text);
    let unit = unit.ok_or_else(unreadable)?;
    let value = scaled(digits, unit).ok_or_else(unreadable)?;
    if value < min as i128 {
        return Err(format!("{value} is below the minimum {min}"));
    }
    if value > max as i128 {
        return Err(format!("{value} is above the maximum {max}"));
    }
    Ok(value as i64)
}

/// The digits and the factor of the unit behind them; None for an unknown unit.
fn split_unit(text: &str) -> (&str, Option<i128>) {
    let end = text
        .find(|c: char| c.is_ascii_alphabetic())
        .unwrap_or(text.len());
    let factor = match &text[end..] {
        "" => Some(1),
        "k" => Some(1_000),
        "m" => Some(1_000_000),
        "g" => Some(1_000_000_000),
        "t" => Some(1_000_000_000_000),
        "K" | "KiB" => Some(1 << 10),
        "M" | "MiB" => Some(1 << 20),
        "G" | "GiB" => Some(1 << 30),
        "T" | "TiB" => Some(1 << 40),
        _ => None,
    };
    (&text[..end], factor)
}

/// `digits` (with an optional fraction) times `factor`, if that is an integer of at most 24 digits.
fn scaled(digits: &str, factor: i128) -> Option<i128> {
    let (negative, digits) = match digits.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, digits),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let plain = |part: &str| part.bytes().all(|b| b.is_ascii_digit() || b == b'_');
    let whole = whole.replace(['_', ','], "");
    if whole.is_empty() || whole.len() + fraction.len() > 24 || !plain(&whole) || !plain(fraction) {
        return None;
    }
    let numerator: i128 = format!("{whole}{fraction}").parse().ok()?;
    let denominator = 10_i128.checked_pow(fraction.len() as u32)?;
    let product = numerator.checked_mul(factor)?;
    let value = (product % denominator == 0).then_some(product / denominator)?;
    Some(if negative { -value } else { value })
}

fn number(text: &str, min: f64, max: f64) -> Result<f64, String> {
    let value: f64 = text
        .parse()
        .ok()
        .filter(|value: &f64| value.is_finite())
        .ok_or_else(|| format!("expected a number, got '{}'", quote(text)))?;
    if value < min {
        return Err(format!("{value} is below the minimum {min}"));
    }
    if value > max {
        return Err(format!("{value} is above the maximum {max}"));
    }
    Ok(value)
}

fn word(text: &str, words: &[&str]) -> Result<String, String> {
    if words.contains(&text) {
        return Ok(text.to_string());
    }
    let hint = match nearest_name(text, words.iter().copied()) {
        Some(near) => format!("; did you mean {near}?"),
        None => String::new(),
    };
    Err(format!(
        "'{}' is none of {}{hint}",
        quote(text),
        words.join(", ")
    ))
}

fn json(text: &str) -> Result<String, String> {
    match serde_json::from_str::<serde_json::Value>(text) {
        Ok(serde_json::Value::Object(_)) => Ok(text.to_string()),
        Ok(_) => Err("expected a JSON object".to_string()),
        Err(error) => Err(format!("expected a JSON object: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_decimal_and_binary_units() {
        let read = |text| count(text, -1, 1 << 50);
        assert_eq!(read("32k"), Ok(32_000));
        assert_eq!(read("32K"), Ok(32_768));
        assert_eq!(read("1.5k"), Ok(1_500));
        assert_eq!(read("2GiB"), Ok(2 << 30));
        assert_eq!(read("-1"), Ok(-1));
        assert_eq!(read("auto"), Ok(-1));
        assert_eq!(read("1_000"), Ok(1000));
        for bad in [
            "", "-", "k", "1.2345k", "1e3", "0x10", "4 k", "99x", "1.2.3", "\u{661}",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn bounds_are_named() {
        assert_eq!(
            count("0", 1, 9),
            Err("0 is below the minimum 1".to_string())
        );
        assert_eq!(
            count("10", 1, 9),
            Err("10 is above the maximum 9".to_string())
        );
        assert_eq!(
            count("999999999999g", 1, 9),
            Err("999999999999000000000 is above the maximum 9".to_string())
        );
        assert!(number("nan", 0.0, 1.0).is_err());
        assert!(number("1.5", 0.0, 1.0).unwrap_err().contains("maximum 1"));
    }

    #[test]
    fn words_hint_at_the_nearest() {
        let error = word("bflot16", &["auto", "bfloat16"]).unwrap_err();
        assert!(error.ends_with("did you mean bfloat16?"), "{error}");
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,40}") {
            let _ = count(&text, i64::MIN, i64::MAX);
            let _ = number(&text, 0.0, 1.0);
            let _ = json(&text);
        }
    }
}

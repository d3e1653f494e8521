//! How Python writes values: numbers, `repr` and `json.dumps`.
//!
//! Published chat templates were written against Python's Jinja, so their output holds Python's spelling of floats,
//! dictionaries and JSON. Owns that spelling. Does not know templates.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// Deepest value that is written; deeper ones are an error, since writing them recurses.
const MAX_DEPTH: usize = 256;

/// `value` as Python's `repr` writes a float: the shortest digits, an exponent from 1e16 on and below 1e-4.
pub(crate) fn float_repr(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    // The shortest digits that give the same number; of two such texts Python takes the nearer one, at equal distance the
    // even one, which is what rounding the exact value to that many digits gives.
    let shortest = format!("{value:e}");
    let num_digits = shortest
        .bytes()
        .take_while(|&byte| byte != b'e')
        .filter(u8::is_ascii_digit)
        .count();
    let nearest = format!("{value:.*e}", num_digits.saturating_sub(1));
    let scientific = if nearest.parse() == Ok(value) {
        nearest
    } else {
        shortest
    };
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.unsigned_abs());
    }
    place_point(digits, exponent)
}

/// `digits` (`-1.25`) times ten to `exponent`, written out with at least one digit on both sides of the point.
fn place_point(digits: &str, exponent: i32) -> String {
    let (sign, digits) = digits
        .strip_prefix('-')
        .map_or(("", digits), |digits| ("-", digits));
    let digits: String = digits.chars().filter(char::is_ascii_digit).collect();
    let whole = usize::try_from(exponent + 1).unwrap_or(0);
    if whole == 0 {
        let zeros = "0".repeat(exponent.unsigned_abs() as usize - 1);
        return format!("{sign}0.{zeros}{digits}");
    }
    let digits = format!("{digits:0<whole$}");
    let (before, behind) = digits.split_at(whole);
    format!(
        "{sign}{before}.{}",
        if behind.is_empty() { "0" } else { behind }
    )
}

fn is_float(value: &Value) -> bool {
    value.kind() == ValueKind::Number && !value.is_integer()
}

fn as_f64(value: &Value) -> f64 {
    f64::try_from(value.clone()).unwrap_or(f64::NAN)
}

fn too_deep() -> Error {
    Error::new(
        ErrorKind::InvalidOperation,
        format!("a value is nested more than {MAX_DEPTH} levels deep"),
    )
}

/// Appends `value` as Python's `str` writes it.
pub(crate) fn write_str(value: &Value, out: &mut String) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Map | ValueKind::Seq => write_repr(value, out, 0),
        ValueKind::Number if is_float(value) => {
            out.push_str(&float_repr(as_f64(value)));
            Ok(())
        }
        _ => {
            out.push_str(&value.to_string());
            Ok(())
        }
    }
}

fn write_repr(value: &Value, out: &mut String, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(too_deep());
    }
    // A namespace or a loop is an object that is no dictionary: it writes itself.
    match value.kind() {
        ValueKind::String => {
            write_string_repr(value.as_str().unwrap_or_default(), out);
            Ok(())
        }
        ValueKind::Seq => {
            let (open, close) = if value.is_tuple() {
                ('(', ')')
            } else {
                ('[', ']')
            };
            out.push(open);
            let mut count = 0;
            for item in value.try_iter()? {
                if count > 0 {
                    out.push_str(", ");
                }
                write_repr(&item, out, depth + 1)?;
                count += 1;
            }
            if value.is_tuple() && count == 1 {
                out.push(',');
            }
            out.push(close);
            Ok(())
        }
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter()?.enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                write_repr(&key, out, depth + 1)?;
                out.push_str(": ");
                write_repr(&value.get_item(&key)?, out, depth + 1)?;
            }
            out.push('}');
            Ok(())
        }
        _ => write_str(value, out),
    }
}

/// A string between quotes, as Python's `repr` chooses and escapes them.
fn write_string_repr(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if !is_printable(c) => {
                let code = c as u32;
                out.push_str(&match code {
                    0..=0xFF => format!("\\x{code:02x}"),
                    0x100..=0xFFFF => format!("\\u{code:04x}"),
                    _ => format!("\\U{code:08x}"),
                });
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

/// Whether Python shows `c` as it is; controls, separators other than the blank, and private characters are not.
fn is_printable(c: char) -> bool {
    let code = c as u32;
    let is_space = c != ' ' && c.is_whitespace();
    let is_format = matches!(code, 0xAD | 0x600..=0x605 | 0x61C | 0x6DD | 0x70F | 0x180E | 0x200B..=0x200F
        | 0x202A..=0x202E | 0x2060..=0x206F | 0xFEFF | 0xFFF9..=0xFFFB | 0xE0001..=0xE007F);
    let is_private = matches!(code, 0xE000..=0xF8FF | 0xF0000..=0x10FFFF);
    !(c.is_control() || is_space || is_format || is_private)
}

/// How `json.dumps` lays a value out.
#[derive(Clone, Debug)]
pub(crate) struct JsonStyle {
    /// Escape everything outside ASCII.
    pub(crate) ensure_ascii: bool,
    /// What one level of indentation is; None = all on one line.
    pub(crate) indent: Option<String>,
    /// Between items.
    pub(crate) item_separator: String,
    /// Between a key and its value.
    pub(crate) key_separator: String,
    /// Keys in code-point order instead of their own.
    pub(crate) sort_keys: bool,
}

/// Appends `value` as `json.dumps` writes it.
pub(crate) fn write_json(
    value: &Value,
    style: &JsonStyle,
    out: &mut String,
    depth: usize,
) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(too_deep());
    }
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number if is_float(value) => out.push_str(&json_float(as_f64(value))),
        ValueKind::Number => out.push_str(&value.to_string()),
        ValueKind::String => {
            write_json_string(value.as_str().unwrap_or_default(), style.ensure_ascii, out)
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            write_json_items(&items, (('[', ']'), depth), style, out, |item, out| {
                write_json(item, style, out, depth + 1)
            })?;
        }
        ValueKind::Map => {
            let mut entries = Vec::new();
            for key in value.try_iter()? {
                entries.push((json_key(&key)?, value.get_item(&key)?));
            }
            if style.sort_keys {
                entries.sort_by(|a, b| a.0.cmp(&b.0));
            }
            write_json_items(
                &entries,
                (('{', '}'), depth),
                style,
                out,
                |(key, item), out| {
                    write_json_string(key, style.ensure_ascii, out);
                    out.push_str(&style.key_separator);
                    write_json(item, style, out, depth + 1)
                },
            )?;
        }
        kind => {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("Object of type {kind} is not JSON serializable"),
            ));
        }
    }
    Ok(())
}

/// Appends `items` between brackets on the lines and with the separators of `style`; `write` appends one.
fn write_json_items<T>(
    items: &[T],
    (brackets, depth): ((char, char), usize),
    style: &JsonStyle,
    out: &mut String,
    mut write: impl FnMut(&T, &mut String) -> Result<(), Error>,
) -> Result<(), Error> {
    out.push(brackets.0);
    let new_line = |out: &mut String, levels: usize| {
        if let Some(indent) = &style.indent {
            out.push('\n');
            (0..levels).for_each(|_| out.push_str(indent));
        }
    };
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push_str(&style.item_separator);
        }
        new_line(out, depth + 1);
        write(item, out)?;
    }
    if !items.is_empty() {
        new_line(out, depth);
    }
    out.push(brackets.1);
    Ok(())
}

fn json_float(value: f64) -> String {
    match value {
        x if x.is_nan() => "NaN".to_owned(),
        f64::INFINITY => "Infinity".to_owned(),
        f64::NEG_INFINITY => "-Infinity".to_owned(),
        x => float_repr(x),
    }
}

fn json_key(key: &Value) -> Result<String, Error> {
    Ok(match key.kind() {
        ValueKind::String => key.as_str().unwrap_or_default().to_owned(),
        ValueKind::None => "null".to_owned(),
        ValueKind::Bool => if key.is_true() { "true" } else { "false" }.to_owned(),
        ValueKind::Number if is_float(key) => json_float(as_f64(key)),
        ValueKind::Number => key.to_string(),
        kind => {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("keys must be str, int, float, bool or None, not {kind}"),
            ));
        }
    })
}

fn write_json_string(text: &str, ensure_ascii: bool, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 => out.push_str(&format!("\\u{:04x}", c as u32)),
            c if ensure_ascii && !(' '..='~').contains(&c) => {
                let mut units = [0u16; 2];
                for unit in c.encode_utf16(&mut units) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_spelled_as_in_python() {
        let cases = [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (-0.0, "-0.0"),
            (123456.789, "123456.789"),
            (1e22, "1e+22"),
            (562949953421312.2, "562949953421312.2"),
            (0.00012345, "0.00012345"),
            (-5e-324, "-5e-324"),
            (1234.0, "1234.0"),
            (f64::NAN, "nan"),
        ];
        for (value, text) in cases {
            assert_eq!(float_repr(value), text);
        }
    }

    #[test]
    fn containers_print_as_in_python() {
        let value: serde_json::Value = serde_json::from_str(
            r#"{"a": [1, 2.0, null, true], "b": "it's", "c": "q\"'", "d": "é\n\u0001"}"#,
        )
        .unwrap();
        let mut out = String::new();
        write_str(&crate::values::from_json(&value), &mut out).unwrap();
        assert_eq!(
            out,
            r#"{'a': [1, 2.0, None, True], 'b': "it's", 'c': 'q"\'', 'd': 'é\n\x01'}"#
        );
    }
}

//! Methods and filters of strings where Python differs from minijinja's own layer, or where that layer has none.
//!
//! Owns Python's idea of white space, which counts the four separators U+001C to U+001F in.

use minijinja::value::{Value, from_args};
use minijinja::{Error, ErrorKind};

fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1C}'..='\u{1F}').contains(&c)
}

/// Which ends of a string are stripped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    Left,
    Right,
    Both,
}

fn strip<'a>(text: &'a str, chars: Option<&str>, ends: Ends) -> &'a str {
    let goes = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    match ends {
        Ends::Left => text.trim_start_matches(goes),
        Ends::Right => text.trim_end_matches(goes),
        Ends::Both => text.trim_matches(goes),
    }
}

/// Jinja's `trim`: Python's `strip` of the value as text.
pub(crate) fn trim(value: &Value, chars: Option<&str>) -> Result<Value, Error> {
    match value.as_str() {
        Some(text) => Ok(strip(text, chars, Ends::Both).into()),
        None => {
            let mut text = String::new();
            crate::python_text::write_str(value, &mut text)?;
            Ok(strip(&text, chars, Ends::Both).into())
        }
    }
}

/// Calls `method` of Python's `str`; None for a method that is left to minijinja's layer.
pub(crate) fn call(text: &str, method: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    let argument = || from_args::<(&str,)>(args).map(|(argument,)| argument);
    let stripped =
        |ends| from_args::<(Option<&str>,)>(args).map(|(chars,)| strip(text, chars, ends).into());
    Some(match method {
        "strip" => stripped(Ends::Both),
        "lstrip" => stripped(Ends::Left),
        "rstrip" => stripped(Ends::Right),
        "split" => split(text, args),
        "rsplit" => rsplit(text, args),
        "splitlines" => splitlines(text, args),
        "isspace" => {
            from_args::<()>(args).map(|()| (!text.is_empty() && text.chars().all(is_space)).into())
        }
        "removeprefix" => argument().map(|prefix| text.strip_prefix(prefix).unwrap_or(text).into()),
        "removesuffix" => argument().map(|suffix| text.strip_suffix(suffix).unwrap_or(text).into()),
        "partition" => argument().map(|at| match text.split_once(at) {
            Some((before, after)) => strings([before, at, after]),
            None => strings([text, "", ""]),
        }),
        "rpartition" => argument().map(|at| match text.rsplit_once(at) {
            Some((before, after)) => strings([before, at, after]),
            None => strings(["", "", text]),
        }),
        "title" => from_args::<()>(args).map(|()| title(text).into()),
        "casefold" => from_args::<()>(args).map(|()| text.to_lowercase().into()),
        _ => return None,
    })
}

fn strings<'a>(items: impl IntoIterator<Item = &'a str>) -> Value {
    items.into_iter().map(Value::from).collect()
}

/// Every letter behind a letter small, every other large.
fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut behind_letter = false;
    for c in text.chars() {
        if behind_letter {
            out.extend(c.to_lowercase());
        } else {
            // A letter that becomes several, as the German sharp s, has one large one.
            let mut large = c.to_uppercase();
            out.extend(large.next());
            out.extend(large.flat_map(char::to_lowercase));
        }
        behind_letter = c.is_lowercase() || c.is_uppercase();
    }
    out
}

/// Separator and largest number of cuts; None = at white space, without end.
fn split_arguments(args: &[Value]) -> Result<(Option<&str>, Option<usize>), Error> {
    let (separator, max): (Option<&str>, Option<i64>) = from_args(args)?;
    if separator == Some("") {
        return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
    }
    Ok((separator, max.and_then(|n| usize::try_from(n).ok())))
}

fn split(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (separator, max) = split_arguments(args)?;
    Ok(match (separator, max) {
        (Some(separator), Some(max)) => strings(text.splitn(max.saturating_add(1), separator)),
        (Some(separator), None) => strings(text.split(separator)),
        (None, max) => {
            let mut parts = Vec::new();
            let mut rest = text.trim_start_matches(is_space);
            while !rest.is_empty() {
                let end = match max {
                    Some(max) if parts.len() >= max => None,
                    _ => rest.find(is_space),
                };
                parts.push(&rest[..end.unwrap_or(rest.len())]);
                rest = end.map_or("", |end| rest[end..].trim_start_matches(is_space));
            }
            strings(parts)
        }
    })
}

fn rsplit(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (separator, max) = split_arguments(args)?;
    let mut parts: Vec<&str> = match (separator, max) {
        (Some(separator), Some(max)) => text.rsplitn(max.saturating_add(1), separator).collect(),
        (Some(separator), None) => text.rsplit(separator).collect(),
        (None, max) => {
            let mut parts = Vec::new();
            let mut rest = text.trim_end_matches(is_space);
            while !rest.is_empty() {
                let cut = match max {
                    Some(max) if parts.len() >= max => None,
                    _ => rest.char_indices().rev().find(|(_, c)| is_space(*c)),
                };
                let start = cut.map_or(0, |(at, c)| at + c.len_utf8());
                parts.push(&rest[start..]);
                rest = cut.map_or("", |(at, _)| rest[..at].trim_end_matches(is_space));
            }
            parts
        }
    };
    parts.reverse();
    Ok(strings(parts))
}

fn splitlines(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (keep_ends,): (Option<bool>,) = from_args(args)?;
    let keep_ends = keep_ends.unwrap_or(false);
    let ends_line = |c: char| matches!(c, '\n'..='\r' | '\u{1C}'..='\u{1E}' | '\u{85}' | '\u{2028}' | '\u{2029}');
    let mut lines = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (line, end) = match rest.find(ends_line) {
            None => (rest.len(), rest.len()),
            Some(at) if rest[at..].starts_with("\r\n") => (at, at + 2),
            Some(at) => (at, at + rest[at..].chars().next().map_or(0, char::len_utf8)),
        };
        lines.push(&rest[..if keep_ends { end } else { line }]);
        rest = &rest[end..];
    }
    Ok(strings(lines))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn called(text: &str, method: &str, args: &[Value]) -> String {
        call(text, method, args)
            .expect("a method of ours")
            .expect("a result")
            .to_string()
    }

    #[test]
    fn methods_do_what_python_does() {
        let cases: [(&str, &str, &[Value], &str); 14] = [
            ("\u{1f} a\n", "strip", &[], "a"),
            ("xxaxx", "lstrip", &["x".into()], "axx"),
            (" a  b c ", "split", &[], "['a', 'b', 'c']"),
            (
                " a  b c ",
                "split",
                &[Value::from(()), 1.into()],
                "['a', 'b c ']",
            ),
            ("a,b,c", "split", &[",".into(), 1.into()], "['a', 'b,c']"),
            ("a,b,c", "rsplit", &[",".into(), 1.into()], "['a,b', 'c']"),
            (
                " a  b c ",
                "rsplit",
                &[Value::from(()), 1.into()],
                "[' a  b', 'c']",
            ),
            ("a\r\nb\u{b}c\n", "splitlines", &[], "['a', 'b', 'c']"),
            (
                "a\n\nb",
                "splitlines",
                &[true.into()],
                "['a\\n', '\\n', 'b']",
            ),
            ("a=b=c", "partition", &["=".into()], "['a', '=', 'b=c']"),
            ("a=b=c", "rpartition", &["=".into()], "['a=b', '=', 'c']"),
            ("they're <b>", "title", &[], "They'Re <B>"),
            ("prefix", "removeprefix", &["pre".into()], "fix"),
            ("", "isspace", &[], "False"),
        ];
        for (text, method, args, result) in cases {
            assert_eq!(called(text, method, args), result, "{text:?}.{method}");
        }
        assert!(
            call("a", "split", &["".into()])
                .expect("a method of ours")
                .is_err()
        );
    }
}

//! Reads the small part of YAML a configuration file needs: `key: value`, lists of scalars, comments, quotes.
//!
//! Of our own, because the whole language (anchors, tags, implicit types, nested documents) is large and surprising and
//! its crates are unkept, while flags are flat. What is not read is an error with its line, never a guess. A JSON object
//! on one line is kept as text, for flags that take JSON. Knows no flag.

/// What stands behind a key.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    /// One scalar, unquoted; `None` for `null`, `~` or nothing.
    Scalar(Option<String>),
    /// A list of scalars.
    List(Vec<String>),
}

/// Largest configuration file.
pub const MAX_FILE_BYTES: usize = 1 << 20;

/// Reads `text` into its keys, in order; the error names the line.
pub fn parse(text: &str) -> Result<Vec<(String, Node)>, String> {
    let mut entries: Vec<(String, Node)> = Vec::new();
    for (index, raw) in text.lines().enumerate() {
        let number = index + 1;
        let fail = |what: &str| format!("line {number}: {what}");
        if raw.trim_start_matches(' ').starts_with('\t') {
            return Err(fail("indentation is made of spaces"));
        }
        let line = strip_comment(raw).trim_end();
        if line.trim().is_empty() || (line == "---" && entries.is_empty()) {
            continue;
        }
        let body = line.trim_start();
        if let Some(item) = list_item(body) {
            let Some((_, node)) = entries.last_mut() else {
                return Err(fail("a list item without a key"));
            };
            push_item(node, scalar(item).map_err(|e| fail(&e))?).map_err(fail)?;
            continue;
        }
        if body.len() != line.len() {
            return Err(fail(
                "nested mappings are not read; give JSON on one line as {\"a\": 1}",
            ));
        }
        let (key, value) = split_key(body).ok_or_else(|| fail("expected `key: value`"))?;
        if entries.iter().any(|(known, _)| known == key) {
            return Err(fail(&format!("key {key} stands here twice")));
        }
        entries.push((key.to_string(), node(value).map_err(|e| fail(&e))?));
    }
    Ok(entries)
}

fn list_item(body: &str) -> Option<&str> {
    if body == "-" {
        return Some("");
    }
    body.strip_prefix("- ").map(str::trim)
}

fn push_item(node: &mut Node, item: Option<String>) -> Result<(), &'static str> {
    let item = item.ok_or("an empty list item")?;
    match node {
        Node::Scalar(None) => *node = Node::List(vec![item]),
        Node::List(items) => items.push(item),
        Node::Scalar(Some(_)) => return Err("a list item after a value"),
    }
    Ok(())
}

/// The key and the text behind its colon.
fn split_key(body: &str) -> Option<(&str, &str)> {
    let colon = body.find(':')?;
    let (key, rest) = (&body[..colon], &body[colon + 1..]);
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let starts_value = rest.is_empty() || rest.starts_with(' ');
    (!key.is_empty() && key.chars().all(plain) && starts_value).then_some((key, rest.trim()))
}

fn node(value: &str) -> Result<Node, String> {
    let Some(inner) = value.strip_prefix('[') else {
        return scalar(value).map(Node::Scalar);
    };
    let inner = inner
        .strip_suffix(']')
        .ok_or("a list in brackets ends on its line")?;
    let mut items = Vec::new();
    for part in split_outside_quotes(inner, ',') {
        if part.trim().is_empty() && inner.trim().is_empty() {
            continue;
        }
        items.push(scalar(part.trim())?.ok_or("an empty list item")?);
    }
    Ok(Node::List(items))
}

/// A scalar's text; `None` for null.
fn scalar(text: &str) -> Result<Option<String>, String> {
    match text.chars().next() {
        None | Some('~') => Ok(None),
        Some('"') => double_quoted(text).map(Some),
        Some('\'') => single_quoted(text).map(Some),
        Some('{') if text.ends_with('}') => Ok(Some(text.to_string())),
        Some(mark @ ('&' | '*' | '!' | '|' | '>' | '%' | '@' | '`' | '{' | '[')) => {
            Err(format!("a value that begins with {mark} needs quotes"))
        }
        _ if text == "null" => Ok(None),
        _ if text.contains(": ") => {
            Err("a value with a colon and a space needs quotes".to_string())
        }
        _ => Ok(Some(text.to_string())),
    }
}

fn single_quoted(text: &str) -> Result<String, String> {
    let inner = text
        .strip_prefix('\'')
        .and_then(|rest| rest.strip_suffix('\''))
        .filter(|_| text.len() >= 2)
        .ok_or("a quote that does not end")?;
    if inner.replace("''", "").contains('\'') {
        return Err("text behind a closing quote".to_string());
    }
    Ok(inner.replace("''", "'"))
}

fn double_quoted(text: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut chars = text.chars().skip(1);
    while let Some(c) = chars.next() {
        match c {
            '"' if chars.next().is_none() => return Ok(out),
            '"' => return Err("text behind a closing quote".to_string()),
            '\\' => out.push(match chars.next() {
                Some('n') => '\n',
                Some('t') => '\t',
                Some(same @ ('"' | '\\' | '/')) => same,
                _ => return Err("an escape other than \\n \\t \\\" \\\\ \\/".to_string()),
            }),
            _ => out.push(c),
        }
    }
    Err("a quote that does not end".to_string())
}

/// The line before a `#` that begins a comment.
fn strip_comment(line: &str) -> &str {
    let mut before = ' ';
    let mut quote = None;
    for (at, c) in line.char_indices() {
        match quote {
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if c == '#' && before.is_whitespace() => return &line[..at],
            None if (c == '"' || c == '\'') && !before.is_alphanumeric() => quote = Some(c),
            None => {}
        }
        before = c;
    }
    line
}

fn split_outside_quotes(text: &str, separator: char) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut quote = None;
    let mut start = 0;
    for (at, c) in text.char_indices() {
        match quote {
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if c == '"' || c == '\'' => quote = Some(c),
            None if c == separator => {
                parts.push(&text[start..at]);
                start = at + c.len_utf8();
            }
            None => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> Node {
        parse(text).unwrap().remove(0).1
    }

    fn text(value: &str) -> Node {
        Node::Scalar(Some(value.to_string()))
    }

    #[test]
    fn scalars_lists_comments_and_quotes() {
        assert_eq!(one("port: 8001  # here"), text("8001"));
        assert_eq!(one("a: 'it''s # no comment'"), text("it's # no comment"));
        assert_eq!(one("a: \"x\\n\\\"y\\\"\""), text("x\n\"y\""));
        assert_eq!(one("a: don't # really"), text("don't"));
        assert_eq!(one("a: b#c"), text("b#c"));
        assert_eq!(one("a: tcp://x:1"), text("tcp://x:1"));
        assert_eq!(one("a: {\"b\": [1, 2]}"), text("{\"b\": [1, 2]}"));
        assert_eq!(one("a:"), Node::Scalar(None));
        assert_eq!(one("a: ~"), Node::Scalar(None));
        let items = Node::List(vec!["x".to_string(), "y z".to_string()]);
        assert_eq!(one("---\nhost:\n  - x\n  - 'y z'\n"), items);
        assert_eq!(one("host:\n- x\n- y z"), items);
        assert_eq!(one("host: [x, \"y z\"]"), items);
        assert_eq!(one("host: []"), Node::List(vec![]));
    }

    #[test]
    fn what_is_not_read_is_an_error_with_its_line() {
        for (bad, line) in [
            ("a: 1\nb:\n  c: 2", 3),
            ("a: 1\na: 2", 2),
            ("- x", 1),
            ("a: 1\n- x", 2),
            ("a: &b 1", 1),
            ("a: |", 1),
            ("a: 'open", 1),
            ("a: \"x\" y", 1),
            ("just text", 1),
            ("a:1", 1),
            ("\ta: 1", 1),
            ("a: b: c", 1),
            ("a: [x", 1),
            ("a: '", 1),
        ] {
            let error = parse(bad).expect_err(bad);
            assert!(
                error.starts_with(&format!("line {line}: ")),
                "{bad}: {error}"
            );
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[a-z:'\"#\\[\\]{}\\-\n \t,é\\\\]{0,60}") {
            let _ = parse(&text);
        }

        #[test]
        fn quoted_text_survives(value in "\\PC{0,40}") {
            let quoted = format!("a: '{}'", value.replace('\'', "''"));
            proptest::prop_assert_eq!(one(&quoted), text(&value));
        }
    }
}

//! Rewrites of a template's source before it is compiled.
//!
//! Jinja as `transformers` runs it knows two things that minijinja does not: `{% generation %}` blocks, which mark text
//! for training and print it unchanged, and `%` on a string. Owns finding them outside texts, comments and raw blocks.
//! Does not parse expressions beyond what ends an operand.

/// A stretch of a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece<'a> {
    /// Text, a comment, or a raw block with its tags: copied as it is.
    Verbatim(&'a str),
    /// A tag or an expression with its brackets: `{% ... %}` or `{{ ... }}`.
    Code(&'a str),
}

/// The source with both rewritten; anything that looks damaged is left for the compiler to refuse.
pub(crate) fn rewrite(source: &str) -> String {
    let mut out = String::with_capacity(source.len() + 64);
    for piece in pieces(source) {
        match piece {
            Piece::Verbatim(text) => out.push_str(text),
            Piece::Code(code) => match tag_name(code) {
                // A `with` block without variables is a scope, as a generation block is.
                "generation" => out.push_str(&code.replacen("generation", "with", 1)),
                "endgeneration" => out.push_str(&code.replacen("endgeneration", "endwith", 1)),
                _ => rewrite_percent(code, &mut out),
            },
        }
    }
    out
}

/// Variables whose first `{% set x = ... %}` reads `x` itself, so that the value comes from outside.
pub(crate) fn variables_read_by_their_own_set(source: &str) -> Vec<String> {
    let mut seen = std::collections::HashSet::new();
    let mut found = Vec::new();
    for piece in pieces(source) {
        let Piece::Code(code) = piece else { continue };
        if tag_name(code) != "set" {
            continue;
        }
        let body = &code[code.find("set").map_or(0, |at| at + 3)..];
        let Some((target, value)) = body.split_once('=') else {
            continue;
        };
        let target = target.trim();
        if seen.insert(target.to_owned()) && identifiers(value).any(|name| name == target) {
            found.push(target.to_owned());
        }
    }
    found
}

/// Names in an expression that are neither attributes nor inside strings.
fn identifiers(code: &str) -> impl Iterator<Item = &str> {
    let mut at = 0;
    std::iter::from_fn(move || {
        while at < code.len() {
            let rest = &code[at..];
            let first = rest.chars().next()?;
            if first == '"' || first == '\'' {
                at += string_len(rest);
                continue;
            }
            let len = identifier_len(rest);
            if len == 0 {
                at += first.len_utf8();
                continue;
            }
            let is_attribute = code[..at].trim_end().ends_with('.');
            at += len;
            if !is_attribute {
                return Some(&rest[..len]);
            }
        }
        None
    })
}

fn tag_name(code: &str) -> &str {
    let Some(inner) = code.strip_prefix("{%") else {
        return "";
    };
    let inner = inner.trim_start_matches(['-', '+']).trim_start();
    &inner[..identifier_len(inner)]
}

fn pieces(source: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let mut rest = source;
    while let Some(start) = find_bracket(rest) {
        if start > 0 {
            pieces.push(Piece::Verbatim(&rest[..start]));
            rest = &rest[start..];
        }
        let len = if rest.starts_with("{#") {
            rest.find("#}").map(|end| end + 2)
        } else {
            code_len(rest)
        };
        let Some(mut len) = len else { break };
        let mut is_code = !rest.starts_with("{#");
        if is_code && tag_name(&rest[..len]) == "raw" {
            is_code = false;
            len += raw_len(&rest[len..]);
        }
        pieces.push(if is_code {
            Piece::Code(&rest[..len])
        } else {
            Piece::Verbatim(&rest[..len])
        });
        rest = &rest[len..];
    }
    pieces.push(Piece::Verbatim(rest));
    pieces
}

fn find_bracket(text: &str) -> Option<usize> {
    ["{%", "{{", "{#"]
        .iter()
        .filter_map(|bracket| text.find(bracket))
        .min()
}

/// Length of the tag or expression that `text` begins with, its brackets included; strings may hold brackets.
fn code_len(text: &str) -> Option<usize> {
    let is_tag = text.starts_with("{%");
    let mut at = 2;
    let mut braces = 0usize;
    while at < text.len() {
        let rest = &text[at..];
        let first = rest.chars().next()?;
        match first {
            '"' | '\'' => {
                at += string_len(rest);
                continue;
            }
            '%' if is_tag && rest.starts_with("%}") => return Some(at + 2),
            '}' if !is_tag && braces == 0 && rest.starts_with("}}") => return Some(at + 2),
            '{' => braces += 1,
            '}' => braces = braces.saturating_sub(1),
            _ => {}
        }
        at += first.len_utf8();
    }
    None
}

/// Length of a raw block's content and end tag.
fn raw_len(text: &str) -> usize {
    let mut at = 0;
    while let Some(start) = text[at..].find("{%") {
        let tag = at + start;
        let end = text[tag..]
            .find("%}")
            .map_or(text.len(), |end| tag + end + 2);
        if tag_name(&text[tag..]) == "endraw" {
            return end;
        }
        at = tag + 2;
    }
    text.len()
}

/// Length of the string literal that `text` begins with.
fn string_len(text: &str) -> usize {
    let mut chars = text.char_indices();
    let Some((_, quote)) = chars.next() else {
        return 0;
    };
    while let Some((at, c)) = chars.next() {
        if c == '\\' {
            chars.next();
        } else if c == quote {
            return at + c.len_utf8();
        }
    }
    text.len()
}

fn identifier_len(text: &str) -> usize {
    let is_part = |(at, c): &(usize, char)| {
        *c == '_' || c.is_ascii_alphabetic() || (*at > 0 && c.is_ascii_digit())
    };
    text.char_indices().take_while(is_part).count()
}

/// Copies `code`, with `"text" % operand` turned into `("text"|format(*percent_args(operand)))`.
fn rewrite_percent(code: &str, out: &mut String) {
    let mut at = 0;
    while at < code.len() {
        let rest = &code[at..];
        let first = rest.chars().next().unwrap_or_default();
        if first != '"' && first != '\'' {
            out.push(first);
            at += first.len_utf8();
            continue;
        }
        let len = string_len(rest);
        let behind = rest[len..].trim_start();
        let operand = behind
            .strip_prefix('%')
            .filter(|operand| !operand.starts_with('}'));
        let operand_len = operand.map_or(0, operand_len);
        match operand {
            Some(operand) if operand_len > 0 => {
                out.push('(');
                out.push_str(&rest[..len]);
                out.push_str("|format(*percent_args(");
                rewrite_percent(&operand[..operand_len], out);
                out.push_str(")))");
                at = code.len() - operand.len() + operand_len;
            }
            _ => {
                out.push_str(&rest[..len]);
                at += len;
            }
        }
    }
}

/// Length of the operand of `%` that `text` begins with: a primary with its attributes, calls and filters.
fn operand_len(text: &str) -> usize {
    let blank = |at: usize| at + (text[at..].len() - text[at..].trim_start().len());
    let mut at = blank(0);
    if text[at..].starts_with(['-', '+']) {
        at = blank(at + 1);
    }
    let primary = primary_len(&text[at..]);
    if primary == 0 {
        return 0;
    }
    at += primary;
    loop {
        let next = blank(at);
        let rest = &text[next..];
        at = match rest.chars().next() {
            Some('.') => next + 1 + identifier_len(&rest[1..]),
            Some('(' | '[') => next + group_len(rest),
            Some('|') => {
                let name = blank(next + 1);
                name + identifier_len(&text[name..])
            }
            _ => return at,
        };
    }
}

fn primary_len(text: &str) -> usize {
    match text.chars().next() {
        Some('"' | '\'') => string_len(text),
        Some('(' | '[' | '{') => group_len(text),
        Some(c) if c.is_ascii_digit() => {
            text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len()
        }
        _ => identifier_len(text),
    }
}

/// Length of the bracketed group that `text` begins with.
fn group_len(text: &str) -> usize {
    let mut depth = 0usize;
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        let first = rest.chars().next().unwrap_or_default();
        match first {
            '"' | '\'' => {
                at += string_len(rest);
                continue;
            }
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
        at += first.len_utf8();
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn generation_blocks_become_scopes() {
        assert_eq!(
            rewrite("{%- generation -%}a{% endgeneration %}"),
            "{%- with -%}a{% endwith %}"
        );
        assert_eq!(
            rewrite("{% raw %}{% generation %}{% endraw %}"),
            "{% raw %}{% generation %}{% endraw %}"
        );
        assert_eq!(
            rewrite("{# {% generation %} #} generation"),
            "{# {% generation %} #} generation"
        );
        assert_eq!(
            rewrite("{{ '{% generation %}' }}"),
            "{{ '{% generation %}' }}"
        );
    }

    #[test]
    fn percent_on_a_string_becomes_a_filter() {
        let cases = [
            ("{{ '%s' % x }}", "{{ ('%s'|format(*percent_args( x))) }}"),
            (
                "{{ \"%s %s\" % (a, b[0].c) ~ d }}",
                "{{ (\"%s %s\"|format(*percent_args( (a, b[0].c)))) ~ d }}",
            ),
            (
                "{{ '%s' % x.y | upper }}",
                "{{ ('%s'|format(*percent_args( x.y | upper))) }}",
            ),
            ("{{ 5 % 2 }}", "{{ 5 % 2 }}"),
            ("{% if a == 'x' %}", "{% if a == 'x' %}"),
            ("{% set a = 'x'%}", "{% set a = 'x'%}"),
        ];
        for (source, rewritten) in cases {
            assert_eq!(rewrite(source), rewritten);
        }
    }

    #[test]
    fn a_variable_set_from_itself_is_read() {
        let source =
            "{% set x = x | default('y') %}{% set y = 'y' %}{% set y = y ~ 'z' %}{% set z.y = z %}";
        assert_eq!(variables_read_by_their_own_set(source), ["x"]);
    }

    proptest! {
        #[test]
        fn never_panics_and_keeps_plain_text(source in "[ a-z{}%#'\"\\\\()|.é\\[\\]0-9+-]{0,60}") {
            let rewritten = rewrite(&source);
            if !source.contains('{') {
                prop_assert_eq!(rewritten, source);
            }
        }
    }
}

//! A value where it lies in a checked body.

use std::borrow::Cow;

use limits::{ApiError, Ranged};

use super::number::Number;
use super::object::Object;

/// A value of a checked body with its path. Reading cannot fail on syntax any more, only on type and range.
#[derive(Clone, Debug)]
pub struct Raw<'a> {
    text: &'a str,
    path: String,
}

impl<'a> Raw<'a> {
    /// The whole of a text that [`super::check`] has returned.
    pub fn root(text: &'a str) -> Self {
        Raw {
            text: text.trim_matches([' ', '\t', '\n', '\r']),
            path: String::new(),
        }
    }

    pub(super) fn new(text: &'a str, path: String) -> Self {
        Raw { text, path }
    }

    /// The value's path: `messages[2].content`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Whether the value is `null`.
    pub fn is_null(&self) -> bool {
        self.text == "null"
    }

    /// The value's JSON type, with its article.
    pub fn kind(&self) -> &'static str {
        match self.text.as_bytes().first() {
            Some(b'{') => "an object",
            Some(b'[') => "an array",
            Some(b'"') => "a string",
            Some(b't' | b'f') => "a boolean",
            Some(b'n') => "null",
            _ => "a number",
        }
    }

    /// The error of another type than `expected`.
    pub fn type_error(&self, expected: &str) -> ApiError {
        ApiError::invalid_type(&self.path, expected, self.kind())
    }

    /// The value as a string.
    pub fn string(&self) -> Result<Cow<'a, str>, ApiError> {
        let inside = self
            .text
            .strip_prefix('"')
            .and_then(|rest| rest.strip_suffix('"'));
        let inside = inside.ok_or_else(|| self.type_error("a string"))?;
        // The syntax pass has proved every escape.
        Ok(unescape(inside).unwrap_or(Cow::Borrowed(inside)))
    }

    /// The value as a string of `min`..=`max` bytes.
    pub fn string_of(
        &self,
        min: usize,
        max: usize,
        flag: Option<&'static str>,
    ) -> Result<Cow<'a, str>, ApiError> {
        let text = self.string()?;
        self.length(Ranged::String, text.len(), min, max, flag)?;
        Ok(text)
    }

    /// The value as a boolean.
    pub fn boolean(&self) -> Result<bool, ApiError> {
        match self.text {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(self.type_error("a boolean")),
        }
    }

    fn number(&self, expected: &str) -> Result<Number<'a>, ApiError> {
        match self.text.as_bytes().first() {
            Some(b'-' | b'0'..=b'9') => Ok(Number(self.text)),
            _ => Err(self.type_error(expected)),
        }
    }

    /// The value as an integer of `min`..=`max`.
    pub fn integer(
        &self,
        min: i128,
        max: i128,
        flag: Option<&'static str>,
    ) -> Result<i128, ApiError> {
        self.number("an integer")?
            .integer_in(&self.path, min, max, flag)
    }

    /// The value as a number of `min`..=`max`.
    pub fn decimal(&self, min: f64, max: f64) -> Result<f64, ApiError> {
        self.number("a number")?.decimal_in(&self.path, min, max)
    }

    /// The value as a token id.
    pub fn token_id(&self, vocab_size: u32) -> Result<u32, ApiError> {
        let number = self.number("an integer")?;
        if number.has_fraction() {
            return Err(ApiError::invalid_type(
                &self.path,
                "an integer",
                "a number with a fraction",
            ));
        }
        let id = number.as_integer().unwrap_or(i128::MAX);
        match u32::try_from(id) {
            Ok(id) if id < vocab_size => Ok(id),
            _ => Err(ApiError::token_id_out_of_range(&self.path, id, vocab_size)),
        }
    }

    /// The items of an array; their paths are `path[i]`.
    pub fn array(&self) -> Result<impl Iterator<Item = Raw<'a>> + use<'a>, ApiError> {
        let Some(inside) = self.text.strip_prefix('[') else {
            return Err(self.type_error("an array"));
        };
        let (mut rest, path, mut index) = (trim(inside), self.path.clone(), 0_usize);
        Ok(std::iter::from_fn(move || {
            if rest.starts_with(']') {
                return None;
            }
            let end = value_end(rest);
            let item = Raw::new(&rest[..end], format!("{path}[{index}]"));
            index += 1;
            rest = trim(&rest[end..]);
            rest = rest.strip_prefix(',').map_or(rest, trim);
            Some(item)
        }))
    }

    /// The items of an array of `min`..=`max` entries.
    pub fn array_of(
        &self,
        min: usize,
        max: usize,
        flag: Option<&'static str>,
    ) -> Result<Vec<Raw<'a>>, ApiError> {
        let mut items = Vec::new();
        let mut count = 0;
        for item in self.array()? {
            count += 1;
            if count <= max {
                items.push(item);
            }
        }
        self.length(Ranged::Array, count, min, max, flag)?;
        Ok(items)
    }

    /// A list of token ids of `min`..=`max` entries; only the ids are kept, so a long prompt costs four bytes a token.
    pub fn token_ids(
        &self,
        vocab_size: u32,
        min: usize,
        max: usize,
        flag: Option<&'static str>,
    ) -> Result<Vec<u32>, ApiError> {
        let mut ids = Vec::new();
        let mut count = 0;
        for item in self.array()? {
            count += 1;
            if count <= max {
                ids.push(item.token_id(vocab_size)?);
            }
        }
        self.length(Ranged::Array, count, min, max, flag)?;
        Ok(ids)
    }

    fn length(
        &self,
        what: Ranged,
        length: usize,
        min: usize,
        max: usize,
        flag: Option<&'static str>,
    ) -> Result<(), ApiError> {
        if length < min {
            return Err(ApiError::below(what, &self.path, length, min));
        }
        if length > max {
            return Err(ApiError::above(what, &self.path, length, max, flag));
        }
        Ok(())
    }

    /// The value as an object.
    pub fn object(&self) -> Result<Object<'a>, ApiError> {
        let Some(inside) = self.text.strip_prefix('{') else {
            return Err(self.type_error("an object"));
        };
        let mut rest = trim(inside);
        let mut entries = Vec::new();
        while !rest.starts_with('}') {
            let key_end = value_end(rest);
            let key =
                unescape(&rest[1..key_end - 1]).unwrap_or(Cow::Borrowed(&rest[1..key_end - 1]));
            rest = trim(&rest[key_end..]);
            rest = trim(rest.strip_prefix(':').unwrap_or(rest));
            let end = value_end(rest);
            let path = if self.path.is_empty() {
                key.to_string()
            } else {
                format!("{}.{key}", self.path)
            };
            entries.push((key, Raw::new(&rest[..end], path)));
            rest = trim(&rest[end..]);
            rest = rest.strip_prefix(',').map_or(rest, trim);
        }
        Ok(Object::new(self.path.clone(), entries))
    }

    /// A free-form part as a tree, at most `max_nodes` values large.
    pub fn tree(&self, max_nodes: usize) -> Result<serde_json::Value, ApiError> {
        let nodes = self
            .text
            .bytes()
            .filter(|byte| matches!(byte, b',' | b':' | b'[' | b'{'))
            .count();
        if nodes > max_nodes {
            return Err(ApiError::above(
                Ranged::Object,
                &self.path,
                nodes,
                max_nodes,
                limits::MAX_JSON_NODES.flag,
            ));
        }
        serde_json::from_str(self.text)
            .map_err(|_| ApiError::invalid_value(&self.path, "a number in it is out of range"))
    }

    /// The value's JSON text.
    pub fn text(&self) -> &'a str {
        self.text
    }
}

fn trim(text: &str) -> &str {
    text.trim_start_matches([' ', '\t', '\n', '\r'])
}

/// Where the value at the beginning of `text` ends; `text` is well formed.
fn value_end(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut depth = 0_usize;
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'"' => {
                at += 1;
                while bytes[at] != b'"' {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                if depth == 0 {
                    return at + 1;
                }
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' | b',' | b':' | b' ' | b'\t' | b'\n' | b'\r' if depth == 0 => return at,
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
        at += 1;
    }
    at
}

/// The text that the inside of a string stands for; the offset of a wrong escape otherwise.
pub(super) fn unescape(inside: &str) -> Result<Cow<'_, str>, usize> {
    if !inside.contains('\\') {
        return Ok(Cow::Borrowed(inside));
    }
    let mut out = String::with_capacity(inside.len());
    let mut rest = inside;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let here = inside.len() - rest.len() + at;
        let (c, length) = escape(&rest[at..]).ok_or(here)?;
        out.push(c);
        rest = &rest[at + length..];
    }
    out.push_str(rest);
    Ok(Cow::Owned(out))
}

/// The character of the escape at the beginning of `text`, and the escape's length.
fn escape(text: &str) -> Option<(char, usize)> {
    let simple = match text.as_bytes().get(1)? {
        b'"' => '"',
        b'\\' => '\\',
        b'/' => '/',
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => {
            let high = hex4(text.get(2..6)?)?;
            if !(0xd800..0xe000).contains(&high) {
                return Some((char::from_u32(high)?, 6));
            }
            let low = text.get(6..12)?.strip_prefix("\\u").and_then(hex4)?;
            let pair = (high < 0xdc00 && (0xdc00..0xe000).contains(&low))
                .then(|| 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00))?;
            return Some((char::from_u32(pair)?, 12));
        }
        _ => return None,
    };
    Some((simple, 2))
}

fn hex4(digits: &str) -> Option<u32> {
    let all_hex = digits.len() == 4 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    all_hex
        .then(|| u32::from_str_radix(digits, 16).ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::check;

    fn root(body: &str) -> Raw<'_> {
        Raw::root(check(body.as_bytes(), 128).unwrap())
    }

    #[test]
    fn values_are_read_in_place_with_their_paths() {
        let root = root(
            r#" { "a" : [ 1 , "x\n\u00e9\ud83d\ude00" , {"b":[[],{}]} ], "c":-2.5e1 , "d":true } "#,
        );
        let mut object = root.object().unwrap();
        let items: Vec<_> = object.take("a").unwrap().array().unwrap().collect();
        assert_eq!(items[0].integer(0, 9, None), Ok(1));
        assert_eq!(items[1].string().unwrap(), "x\né😀");
        assert_eq!(items[1].path(), "a[1]");
        let mut inner = items[2].object().unwrap();
        let lists: Vec<_> = inner.take("b").unwrap().array().unwrap().collect();
        assert_eq!(
            (lists.len(), lists[1].path(), lists[1].kind()),
            (2, "a[2].b[1]", "an object")
        );
        assert_eq!(object.take("c").unwrap().decimal(-100.0, 0.0), Ok(-25.0));
        assert_eq!(object.take("d").unwrap().boolean(), Ok(true));
    }

    #[test]
    fn wrong_types_name_both_types() {
        let mut object = root(r#"{"n":"2"}"#).object().unwrap();
        let error = object.take("n").unwrap().integer(1, 128, None).unwrap_err();
        assert_eq!(
            error.message,
            "Invalid type for 'n': expected an integer, got a string."
        );
    }

    #[test]
    fn token_ids_name_their_place() {
        let mut object = root(r#"{"p":[1,2,70000]}"#).object().unwrap();
        let error = object
            .take("p")
            .unwrap()
            .token_ids(49152, 1, 10, None)
            .unwrap_err();
        assert_eq!(
            (error.code, error.param.as_deref()),
            ("token_id_out_of_range", Some("p[2]"))
        );
    }
}

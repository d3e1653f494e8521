//! The syntax pass over a whole body (RFC 8259, and http-surface.md section 0).

use std::borrow::Cow;
use std::collections::HashSet;

use limits::ApiError;

use super::raw::unescape;

/// Proves that `bytes` hold exactly one JSON object, nested at most `max_depth` deep, without duplicate keys or lone
/// surrogates, in UTF-8 without a byte order mark. Returns the text.
///
/// # Errors
/// `InvalidJson` with the offset of the first byte that breaks a rule.
pub fn check(bytes: &[u8], max_depth: usize) -> Result<&str, ApiError> {
    if bytes.starts_with(b"\xef\xbb\xbf") {
        return Err(ApiError::invalid_json(
            "a byte order mark is not allowed",
            0,
        ));
    }
    let text = std::str::from_utf8(bytes)
        .map_err(|error| ApiError::invalid_json("the body is not UTF-8", error.valid_up_to()))?;
    let mut checker = Checker {
        text,
        at: 0,
        max_depth,
    };
    checker.blanks();
    if checker.peek() != Some(b'{') {
        return Err(checker.fail("expected an object"));
    }
    checker.value(0)?;
    checker.blanks();
    if checker.at < text.len() {
        return Err(checker.fail("more follows after the object"));
    }
    Ok(text)
}

struct Checker<'a> {
    text: &'a str,
    at: usize,
    max_depth: usize,
}

impl<'a> Checker<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn fail(&self, reason: &str) -> ApiError {
        ApiError::invalid_json(reason, self.at)
    }

    fn blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn eat(&mut self, byte: u8, reason: &str) -> Result<(), ApiError> {
        if self.peek() != Some(byte) {
            return Err(self.fail(reason));
        }
        self.at += 1;
        Ok(())
    }

    fn value(&mut self, depth: usize) -> Result<(), ApiError> {
        match self.peek() {
            Some(b'{') => self.nested(depth, Self::object),
            Some(b'[') => self.nested(depth, Self::array),
            Some(b'"') => self.string().map(drop),
            Some(b't') => self.word("true"),
            Some(b'f') => self.word("false"),
            Some(b'n') => self.word("null"),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(_) => Err(self.fail("expected a value")),
            None => Err(self.fail("the body ends too early")),
        }
    }

    fn nested(
        &mut self,
        depth: usize,
        inside: fn(&mut Self, usize) -> Result<(), ApiError>,
    ) -> Result<(), ApiError> {
        if depth == self.max_depth {
            return Err(self.fail("nested too deeply"));
        }
        self.at += 1;
        self.blanks();
        inside(self, depth + 1)
    }

    fn object(&mut self, depth: usize) -> Result<(), ApiError> {
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(());
        }
        let mut keys: HashSet<Cow<'a, str>> = HashSet::new();
        loop {
            let start = self.at;
            if self.peek() != Some(b'"') {
                return Err(self.fail("expected a key"));
            }
            let key = self.string()?;
            if !keys.insert(key) {
                return Err(ApiError::invalid_json(
                    "a key stands twice in one object",
                    start,
                ));
            }
            self.blanks();
            self.eat(b':', "expected ':'")?;
            self.blanks();
            self.value(depth)?;
            self.blanks();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => break,
                _ => return Err(self.fail("expected ',' or '}'")),
            }
            self.blanks();
        }
        self.at += 1;
        Ok(())
    }

    fn array(&mut self, depth: usize) -> Result<(), ApiError> {
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(());
        }
        loop {
            self.value(depth)?;
            self.blanks();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => break,
                _ => return Err(self.fail("expected ',' or ']'")),
            }
            self.blanks();
        }
        self.at += 1;
        Ok(())
    }

    fn word(&mut self, word: &str) -> Result<(), ApiError> {
        if !self.text[self.at..].starts_with(word) {
            return Err(self.fail("expected a value"));
        }
        self.at += word.len();
        Ok(())
    }

    fn digits(&mut self) -> Result<(), ApiError> {
        if !matches!(self.peek(), Some(b'0'..=b'9')) {
            return Err(self.fail("expected a digit"));
        }
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        Ok(())
    }

    fn number(&mut self) -> Result<(), ApiError> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
            if matches!(self.peek(), Some(b'0'..=b'9')) {
                return Err(self.fail("a number begins with 0"));
            }
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    fn string(&mut self) -> Result<Cow<'a, str>, ApiError> {
        let start = self.at;
        self.at += 1;
        loop {
            match self.peek() {
                None => return Err(self.fail("a string without an end")),
                Some(b'"') => break,
                Some(b'\\') => self.at += 2,
                Some(0..=0x1f) => return Err(self.fail("a control character in a string")),
                Some(_) => self.at += 1,
            }
        }
        self.at += 1;
        let inside = self
            .text
            .get(start + 1..self.at - 1)
            .ok_or_else(|| self.fail("a wrong escape"))?;
        unescape(inside)
            .map_err(|offset| ApiError::invalid_json("a wrong escape", start + 1 + offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn offset(body: &str) -> Option<usize> {
        let error = check(body.as_bytes(), 8).err()?;
        let text = error.message.strip_prefix("Invalid JSON at byte ")?;
        text.split(':').next()?.parse().ok()
    }

    #[test]
    fn broken_bodies_fail_where_they_break() {
        for (body, at) in [
            ("", 0),
            ("[]", 0),
            ("{\"a\":1,}", 7),
            ("{\"a\":01}", 6),
            ("{\"a\":1.}", 7),
            ("{\"a\":\"\\ud800\"}", 6),
            ("{\"a\":\"\\udc00\"}", 6),
            ("{\"a\":\"\\x\"}", 6),
            ("{\"a\":\"\\u12\"}", 6),
            ("{\"a\":1,\"a\":2}", 7),
            ("{\"a\":1,\"\\u0061\":2}", 7),
            ("{} {}", 3),
            ("{\"a\":tru}", 5),
            ("{\"a\":\"\n\"}", 6),
            ("{\"a\":[[[[[[[[1]]]]]]]]}", 12),
            ("{\"a\"", 4),
            ("{\"a\":\"b", 7),
            ("{\"a\":NaN}", 5),
        ] {
            assert_eq!(offset(body), Some(at), "{body}");
        }
        assert!(check(b"{\"a\":\"\xff\"}", 8).is_err());
        assert!(check(b"\xef\xbb\xbf{}", 8).is_err());
    }

    #[test]
    fn depth_a_hundred_thousand_is_refused_without_recursion_of_that_depth() {
        let body = format!("{{\"a\":{}", "[".repeat(100_000));
        assert!(
            check(body.as_bytes(), 128)
                .unwrap_err()
                .message
                .contains("nested too deeply")
        );
    }

    #[test]
    fn odd_but_right_bodies_pass() {
        for body in [
            "{}",
            " {\"a\" : [ ] , \"b\":{} }\n",
            "{\"a\":1e400,\"b\":-0.0E-7}",
            "{\"a\":\"\\ud83d\\ude00\\/\"}",
            "{\"\":null}",
        ] {
            assert!(check(body.as_bytes(), 128).is_ok(), "{body}");
        }
    }

    fn json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            any::<f64>()
                .prop_filter("finite", |f| f.is_finite())
                .prop_map(Into::into),
            ".*".prop_map(Into::into),
        ];
        leaf.prop_recursive(4, 32, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
                prop::collection::vec((".*", inner), 0..6).prop_map(|entries| entries
                    .into_iter()
                    .collect::<serde_json::Map<_, _>>()
                    .into()),
            ]
        })
    }

    proptest! {
        #[test]
        fn whatever_serde_json_writes_is_read(value in json()) {
            let body = serde_json::json!({ "v": value }).to_string();
            prop_assert!(check(body.as_bytes(), 128).is_ok());
        }

        #[test]
        fn damaged_bodies_get_the_verdict_of_serde_json(value in json(), at in 0usize..200, byte in 0u8..128) {
            let mut body = serde_json::json!({ "v": value }).to_string().into_bytes();
            let at = at % body.len();
            body[at] = byte;
            let theirs = serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(&body);
            if check(&body, 128).is_ok() {
                prop_assert!(theirs.is_ok() || theirs.is_err_and(|e| e.to_string().contains("out of range")));
            } else if let Ok(map) = theirs {
                // Only doubled keys are ours to refuse.
                let again = serde_json::to_string(&map).unwrap();
                prop_assert!(again.len() < body.len());
            }
        }
    }
}

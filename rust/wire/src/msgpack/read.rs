//! Reading: one token at a time from borrowed bytes, after one scan that checked every limit.

use crate::fault::{Fault, mismatch, undecodable};
use crate::sizes::{MAX_BIN_BYTES, MAX_ENTRIES, MAX_NESTING, MAX_STR_BYTES, MAX_VALUES};

/// One msgpack item; containers give their number of entries and the entries follow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Token<'a> {
    Nil,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(&'a str),
    Bin(&'a [u8]),
    List(usize),
    Map(usize),
}

/// A position in a body. Every read advances it; a failed read leaves it anywhere.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    /// Keys no table names are skipped instead of refused: the sender has a higher minor version.
    lenient: bool,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8], lenient: bool) -> Self {
        Reader {
            rest: bytes,
            lenient,
        }
    }

    pub(crate) fn is_lenient(&self) -> bool {
        self.lenient
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], Fault> {
        match self.rest.split_at_checked(count) {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(taken)
            }
            None => undecodable("the body is cut short"),
        }
    }

    /// A big-endian unsigned number of `width` bytes, at most 8.
    fn number(&mut self, width: usize) -> Result<u64, Fault> {
        Ok(self
            .take(width)?
            .iter()
            .fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    fn length(&mut self, width: usize) -> Result<usize, Fault> {
        // At most 32 bits, so the cast is exact on every platform served.
        Ok(self.number(width)? as usize)
    }

    /// The next item.
    pub(crate) fn token(&mut self) -> Result<Token<'a>, Fault> {
        let marker = self.take(1)?[0];
        Ok(match marker {
            0x00..=0x7f => Token::Int(i128::from(marker)),
            0x80..=0x8f => Token::Map(usize::from(marker & 0x0f)),
            0x90..=0x9f => Token::List(usize::from(marker & 0x0f)),
            0xa0..=0xbf => self.text(usize::from(marker & 0x1f))?,
            0xc0 => Token::Nil,
            0xc2 => Token::Bool(false),
            0xc3 => Token::Bool(true),
            0xc4..=0xc6 => {
                let length = self.length(1 << (marker - 0xc4))?;
                Token::Bin(self.take(length)?)
            }
            0xca => Token::Float(f64::from(f32::from_bits(self.number(4)? as u32))),
            0xcb => Token::Float(f64::from_bits(self.number(8)?)),
            0xcc..=0xcf => Token::Int(i128::from(self.number(1 << (marker - 0xcc))?)),
            0xd0 => Token::Int(i128::from(self.number(1)? as i8)),
            0xd1 => Token::Int(i128::from(self.number(2)? as i16)),
            0xd2 => Token::Int(i128::from(self.number(4)? as i32)),
            0xd3 => Token::Int(i128::from(self.number(8)? as i64)),
            0xd9..=0xdb => {
                let length = self.length(1 << (marker - 0xd9))?;
                self.text(length)?
            }
            0xdc | 0xdd => Token::List(self.length(2 << (marker - 0xdc))?),
            0xde | 0xdf => Token::Map(self.length(2 << (marker - 0xde))?),
            0xe0..=0xff => Token::Int(i128::from(marker as i8)),
            _ => return undecodable("extension types are not used"),
        })
    }

    fn text(&mut self, length: usize) -> Result<Token<'a>, Fault> {
        match std::str::from_utf8(self.take(length)?) {
            Ok(text) => Ok(Token::Str(text)),
            Err(_) => undecodable("a string is not UTF-8"),
        }
    }

    pub(crate) fn map(&mut self) -> Result<usize, Fault> {
        match self.token()? {
            Token::Map(len) => Ok(len),
            _ => mismatch("expected a map"),
        }
    }

    pub(crate) fn list(&mut self) -> Result<usize, Fault> {
        match self.token()? {
            Token::List(len) => Ok(len),
            _ => mismatch("expected a list"),
        }
    }

    pub(crate) fn str(&mut self) -> Result<&'a str, Fault> {
        match self.token()? {
            Token::Str(text) => Ok(text),
            _ => mismatch("expected a string"),
        }
    }

    pub(crate) fn bin(&mut self) -> Result<&'a [u8], Fault> {
        match self.token()? {
            Token::Bin(bytes) => Ok(bytes),
            _ => mismatch("expected bytes"),
        }
    }

    pub(crate) fn int(&mut self) -> Result<i128, Fault> {
        match self.token()? {
            Token::Int(value) => Ok(value),
            _ => mismatch("expected an integer"),
        }
    }

    pub(crate) fn float(&mut self) -> Result<f64, Fault> {
        match self.token()? {
            Token::Float(value) => Ok(value),
            _ => mismatch("expected a float"),
        }
    }

    pub(crate) fn bool(&mut self) -> Result<bool, Fault> {
        match self.token()? {
            Token::Bool(value) => Ok(value),
            _ => mismatch("expected a boolean"),
        }
    }

    /// Whether the next item is nil; it is consumed if so.
    pub(crate) fn take_nil(&mut self) -> bool {
        let nil = self.rest.first() == Some(&0xc0);
        if nil {
            self.rest = &self.rest[1..];
        }
        nil
    }

    /// Passes over one whole value.
    pub(crate) fn skip(&mut self) -> Result<(), Fault> {
        let mut pending = 1usize;
        while pending > 0 {
            pending -= 1;
            pending += match self.token()? {
                Token::List(len) => len,
                Token::Map(len) => 2 * len,
                _ => 0,
            };
        }
        Ok(())
    }

    /// The value of a key no table names: skipped or refused, as the sender's version says.
    pub(crate) fn unknown(&mut self) -> Result<(), Fault> {
        if self.lenient {
            self.skip()
        } else {
            mismatch("unknown key")
        }
    }
}

/// Checks that `body` is exactly one map of the profile within every limit.
///
/// `long_text` lifts the limit for strings under the key `text` to that of `bin` (grammars).
/// Allocates nothing but the keys of the maps that are open, which point into `body`.
pub(crate) fn scan(body: &[u8], long_text: bool) -> Result<(), Fault> {
    if !matches!(body.first(), Some(0x80..=0x8f | 0xde | 0xdf)) {
        return undecodable("the body is not a map");
    }
    let mut scanner = Scanner {
        reader: Reader::new(body, true),
        long_text,
        values: 0,
    };
    scanner.value(0, MAX_STR_BYTES)?;
    if !scanner.reader.rest.is_empty() {
        return undecodable("trailing bytes");
    }
    Ok(())
}

struct Scanner<'a> {
    reader: Reader<'a>,
    long_text: bool,
    values: usize,
}

impl Scanner<'_> {
    fn value(&mut self, depth: usize, max_str_bytes: usize) -> Result<(), Fault> {
        self.values += 1;
        if self.values > MAX_VALUES {
            return undecodable("too many values");
        }
        match self.reader.token()? {
            Token::Str(text) if text.len() > max_str_bytes => undecodable("a string is too long"),
            Token::Bin(bytes) if bytes.len() > MAX_BIN_BYTES => undecodable("a bin is too long"),
            Token::List(len) => {
                check_container(len, depth + 1)?;
                (0..len).try_for_each(|_| self.value(depth + 1, MAX_STR_BYTES))
            }
            Token::Map(len) => {
                check_container(len, depth + 1)?;
                self.entries(len, depth + 1)
            }
            _ => Ok(()),
        }
    }

    fn entries(&mut self, len: usize, depth: usize) -> Result<(), Fault> {
        // Each entry takes two bytes or more: a lying header cannot reserve more than the body's size.
        let mut keys = Vec::with_capacity(len.min(self.reader.rest.len() / 2));
        for _ in 0..len {
            let Token::Str(key) = self.reader.token()? else {
                return undecodable("a key is not a string");
            };
            if key.len() > MAX_STR_BYTES {
                return undecodable("a string is too long");
            }
            keys.push(key);
            let long = self.long_text && key == "text";
            self.value(depth, if long { MAX_BIN_BYTES } else { MAX_STR_BYTES })?;
        }
        keys.sort_unstable();
        match keys.windows(2).any(|pair| pair[0] == pair[1]) {
            true => undecodable("duplicate key"),
            false => Ok(()),
        }
    }
}

fn check_container(len: usize, depth: usize) -> Result<(), Fault> {
    if depth > MAX_NESTING {
        return undecodable("nested too deeply");
    }
    if len > MAX_ENTRIES {
        return undecodable("too many entries");
    }
    Ok(())
}

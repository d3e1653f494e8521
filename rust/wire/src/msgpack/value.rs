//! A value of no fixed type, for the parts whose content the wire does not define.

use super::{Reader, Token, Writer};
use crate::fault::{Fault, mismatch};
use crate::field::Field;

/// Any msgpack value of the profile.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Value {
    /// nil
    #[default]
    Nil,
    /// A boolean.
    Bool(bool),
    /// An integer of -2^63..2^64-1; one beyond is cut to the nearest when written.
    Int(i128),
    /// A float.
    Float(f64),
    /// A string.
    Str(String),
    /// Bytes.
    Bin(Vec<u8>),
    /// A list.
    List(Vec<Value>),
    /// A map.
    Map(Map),
}

/// A map with string keys in the order they were sent; keys are unique.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Map(pub Vec<(String, Value)>);

impl Map {
    /// The value of `key`; None if the map lacks it.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0
            .iter()
            .find(|(name, _)| name == key)
            .map(|(_, value)| value)
    }
}

impl<K: Into<String>, V: Into<Value>> FromIterator<(K, V)> for Map {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        Map(entries
            .into_iter()
            .map(|(key, value)| (key.into(), value.into()))
            .collect())
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Value::Bool(value)
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Value::Int(value.into())
    }
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Value::Int(value.into())
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Value::Float(value)
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Value::Str(value.to_owned())
    }
}

impl From<String> for Value {
    fn from(value: String) -> Self {
        Value::Str(value)
    }
}

impl From<Vec<u8>> for Value {
    fn from(value: Vec<u8>) -> Self {
        Value::Bin(value)
    }
}

impl From<Map> for Value {
    fn from(value: Map) -> Self {
        Value::Map(value)
    }
}

impl Field for Value {
    fn write(&self, out: &mut Writer) {
        match self {
            Value::Nil => out.nil(),
            Value::Bool(value) => out.bool(*value),
            Value::Int(value) => match u64::try_from(*value) {
                Ok(value) => out.uint(value),
                Err(_) if *value > 0 => out.uint(u64::MAX),
                Err(_) => out.int(i64::try_from(*value).unwrap_or(i64::MIN)),
            },
            Value::Float(value) => out.float(*value),
            Value::Str(text) => out.str(text),
            Value::Bin(bytes) => out.bin(bytes),
            Value::List(items) => {
                out.list(items.len());
                items.iter().for_each(|item| item.write(out));
            }
            Value::Map(map) => map.write(out),
        }
    }

    // The nesting was limited by the scan, so the recursion is too.
    fn read(reader: &mut Reader<'_>) -> Result<Self, Fault> {
        Ok(match reader.token()? {
            Token::Nil => Value::Nil,
            Token::Bool(value) => Value::Bool(value),
            Token::Int(value) => Value::Int(value),
            Token::Float(value) => Value::Float(value),
            Token::Str(text) => Value::Str(text.to_owned()),
            Token::Bin(bytes) => Value::Bin(bytes.to_vec()),
            Token::List(len) => Value::List(
                (0..len)
                    .map(|_| Value::read(reader))
                    .collect::<Result<_, _>>()?,
            ),
            Token::Map(len) => Value::Map(Map::entries(reader, len)?),
        })
    }
}

impl Map {
    fn entries(reader: &mut Reader<'_>, len: usize) -> Result<Self, Fault> {
        (0..len)
            .map(|_| Ok((reader.str()?.to_owned(), Value::read(reader)?)))
            .collect::<Result<_, _>>()
            .map(Map)
    }
}

impl Field for Map {
    fn write(&self, out: &mut Writer) {
        out.map(self.0.len());
        for (key, value) in &self.0 {
            out.str(key);
            value.write(out);
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Fault> {
        match reader.token()? {
            Token::Map(len) => Map::entries(reader, len),
            _ => mismatch("expected a map"),
        }
    }
}

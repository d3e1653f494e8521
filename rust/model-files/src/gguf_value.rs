//! The metadata of a GGUF header: typed values under string keys.
//!
//! Owns reading one value from hostile bytes. Does not know which keys exist or what they mean.

use std::ops::Range;

use crate::ModelError;
use crate::gguf_cursor::Cursor;

/// Longest string of a header, in bytes; chat templates and licences are the longest real ones.
pub(crate) const MAX_STRING_BYTES: u64 = 8 << 20;
/// Most elements of one array; the largest vocabularies have under a million tokens.
pub(crate) const MAX_ARRAY_LEN: u64 = 1 << 22;
/// Deepest nesting of arrays in arrays.
const MAX_ARRAY_DEPTH: u32 = 4;

/// The number types a header can hold, with their size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberType {
    /// Unsigned, 1 byte.
    U8,
    /// Signed, 1 byte.
    I8,
    /// Unsigned, 2 bytes.
    U16,
    /// Signed, 2 bytes.
    I16,
    /// Unsigned, 4 bytes.
    U32,
    /// Signed, 4 bytes.
    I32,
    /// IEEE single.
    F32,
    /// One byte, 0 or 1.
    Bool,
    /// Unsigned, 8 bytes.
    U64,
    /// Signed, 8 bytes.
    I64,
    /// IEEE double.
    F64,
}

impl NumberType {
    fn size(self) -> usize {
        match self {
            NumberType::U8 | NumberType::I8 | NumberType::Bool => 1,
            NumberType::U16 | NumberType::I16 => 2,
            NumberType::U32 | NumberType::I32 | NumberType::F32 => 4,
            NumberType::U64 | NumberType::I64 | NumberType::F64 => 8,
        }
    }

    /// The number in the little-endian `bytes`, which are `size()` long.
    fn read(self, bytes: &[u8]) -> Number {
        let mut wide = [0u8; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        let raw = u64::from_le_bytes(wide);
        match self {
            NumberType::U8 | NumberType::U16 | NumberType::U32 | NumberType::U64 => {
                Number::Int(i128::from(raw))
            }
            NumberType::I8 => Number::Int(i128::from(raw as u8 as i8)),
            NumberType::I16 => Number::Int(i128::from(raw as u16 as i16)),
            NumberType::I32 => Number::Int(i128::from(raw as u32 as i32)),
            NumberType::I64 => Number::Int(i128::from(raw as i64)),
            NumberType::F32 => Number::Float(f64::from(f32::from_bits(raw as u32))),
            NumberType::F64 => Number::Float(f64::from_bits(raw)),
            NumberType::Bool => Number::Bool(raw != 0),
        }
    }
}

/// One number of a header, widened without loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// Any integer type.
    Int(i128),
    /// Either float type.
    Float(f64),
    /// A boolean.
    Bool(bool),
}

/// A value of a header.
#[derive(Clone, Debug, PartialEq)]
pub enum MetaValue {
    /// A single number or boolean.
    Number(Number),
    /// A string.
    String(Box<str>),
    /// An array.
    Array(MetaArray),
}

/// An array of a header; numbers stay in the mapped file until somebody asks for them.
#[derive(Clone, Debug, PartialEq)]
pub enum MetaArray {
    /// Numbers of one type at a byte range of the file.
    Numbers(NumberType, Range<usize>),
    /// Strings.
    Strings(Vec<Box<str>>),
    /// Arrays of arrays.
    Arrays(Vec<MetaArray>),
}

impl MetaArray {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            MetaArray::Numbers(kind, range) => range.len() / kind.size(),
            MetaArray::Strings(items) => items.len(),
            MetaArray::Arrays(items) => items.len(),
        }
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The numbers of the array, read from `file`, the bytes of the file it was parsed from; empty for other arrays.
    pub fn numbers<'a>(&self, file: &'a [u8]) -> impl Iterator<Item = Number> + use<'a> {
        let (kind, range) = match self {
            MetaArray::Numbers(kind, range) => (*kind, range.clone()),
            _ => (NumberType::U8, 0..0),
        };
        let bytes = file.get(range).unwrap_or(&[]);
        bytes
            .chunks_exact(kind.size())
            .map(move |chunk| kind.read(chunk))
    }
}

fn number_type(code: u32) -> Option<NumberType> {
    Some(match code {
        0 => NumberType::U8,
        1 => NumberType::I8,
        2 => NumberType::U16,
        3 => NumberType::I16,
        4 => NumberType::U32,
        5 => NumberType::I32,
        6 => NumberType::F32,
        7 => NumberType::Bool,
        10 => NumberType::U64,
        11 => NumberType::I64,
        12 => NumberType::F64,
        _ => return None,
    })
}

const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// Reads a type number and the value that follows it; `key` is for the error.
pub(crate) fn read_value(cursor: &mut Cursor<'_>, key: &str) -> Result<MetaValue, ModelError> {
    let code = cursor.u32("a metadata type")?;
    if let Some(kind) = number_type(code) {
        let bytes = cursor.bytes(kind.size() as u64, "a metadata number")?;
        return Ok(MetaValue::Number(kind.read(bytes)));
    }
    match code {
        STRING => Ok(MetaValue::String(
            cursor.string(MAX_STRING_BYTES, key)?.into(),
        )),
        ARRAY => read_array(cursor, key, 0).map(MetaValue::Array),
        other => Err(cursor.damaged(format!("metadata key '{key}' has the unknown type {other}"))),
    }
}

fn read_array(cursor: &mut Cursor<'_>, key: &str, depth: u32) -> Result<MetaArray, ModelError> {
    if depth >= MAX_ARRAY_DEPTH {
        return Err(cursor.damaged(format!("metadata key '{key}' nests arrays too deeply")));
    }
    let code = cursor.u32("an array's type")?;
    let len = cursor.u64("an array's length")?;
    if len > MAX_ARRAY_LEN {
        return Err(cursor.too_large(format!("the array '{key}'"), len, MAX_ARRAY_LEN));
    }
    if let Some(kind) = number_type(code) {
        // The cap on `len` keeps the product far below 2^64.
        let start = cursor.position();
        cursor.bytes(len * kind.size() as u64, "an array of numbers")?;
        return Ok(MetaArray::Numbers(kind, start..cursor.position()));
    }
    match code {
        STRING => {
            cursor.check_room(len, 8, key)?;
            let mut items = Vec::with_capacity(len as usize);
            for _ in 0..len {
                items.push(cursor.string(MAX_STRING_BYTES, key)?.into());
            }
            Ok(MetaArray::Strings(items))
        }
        ARRAY => {
            cursor.check_room(len, 12, key)?;
            let mut items = Vec::with_capacity(len as usize);
            for _ in 0..len {
                items.push(read_array(cursor, key, depth + 1)?);
            }
            Ok(MetaArray::Arrays(items))
        }
        other => Err(cursor.damaged(format!("array '{key}' has the unknown type {other}"))),
    }
}

//! The header of a GGUF file (versions 2 and 3): metadata and the places of the tensors.
//!
//! Owns every check that makes a tensor's byte range safe to read. Does not know models, and never reads tensor data.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::gguf_cursor::Cursor;
use crate::gguf_value::{MetaArray, MetaValue, Number, read_value};
use crate::{MappedFile, ModelError, Tensor, TensorType};

const MAGIC: &[u8; 4] = b"GGUF";
const MAX_KEY_BYTES: u64 = 1 << 16;
const MAX_TENSOR_NAME_BYTES: u64 = 1 << 10;
const MAX_NUM_KEYS: u64 = 1 << 16;
const MAX_NUM_TENSORS: u64 = 1 << 20;
const MAX_DIMS: u32 = 4;
const DEFAULT_ALIGNMENT: u64 = 32;
const MAX_ALIGNMENT: u64 = 1 << 20;

/// A parsed header: metadata by key and tensors in file order.
#[derive(Debug)]
pub struct Gguf {
    file: Arc<MappedFile>,
    metadata: Vec<(String, MetaValue)>,
    index: HashMap<String, usize>,
    /// The tensors, in the order of the header.
    pub tensors: Vec<Tensor>,
}

/// A tensor's row in the header before the data section's start is known.
struct TensorInfo {
    name: String,
    shape: Vec<u64>,
    tensor_type: TensorType,
    offset: u64,
    num_bytes: u64,
}

/// Whether the file starts as a GGUF file does.
pub(crate) fn is_gguf(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

impl Gguf {
    /// Parses the header of `file` and checks every tensor against the file's size.
    pub fn parse(file: Arc<MappedFile>) -> Result<Self, ModelError> {
        let path = file.path().to_owned();
        let mut cursor = Cursor::new(&path, &file);
        let (num_tensors, num_keys) = read_counts(&mut cursor)?;

        cursor.check_room(num_keys, 13, "metadata")?;
        let mut metadata = Vec::with_capacity(num_keys as usize);
        let mut index = HashMap::with_capacity(num_keys as usize);
        for row in 0..num_keys as usize {
            let key = cursor.string(MAX_KEY_BYTES, "a metadata key")?.to_owned();
            let value = read_value(&mut cursor, &key)?;
            if index.insert(key.clone(), row).is_some() {
                return Err(cursor.damaged(format!("metadata key '{key}' occurs twice")));
            }
            metadata.push((key, value));
        }

        cursor.check_room(num_tensors, 24, "tensors")?;
        let mut infos = Vec::with_capacity(num_tensors as usize);
        for _ in 0..num_tensors {
            infos.push(read_tensor_info(&mut cursor, &path)?);
        }
        let header_end = cursor.position() as u64;

        let mut gguf = Gguf {
            file,
            metadata,
            index,
            tensors: Vec::new(),
        };
        gguf.place_tensors(infos, header_end)?;
        Ok(gguf)
    }

    /// Turns offsets in the data section into checked byte ranges of the file.
    fn place_tensors(&mut self, infos: Vec<TensorInfo>, header_end: u64) -> Result<(), ModelError> {
        let path = self.file.path().to_owned();
        let alignment = self.alignment()?;
        // Neither sum can overflow: the header is in memory and the alignment is capped.
        let data_start = header_end.div_ceil(alignment) * alignment;
        let file_len = self.file.len() as u64;
        let mut names = HashMap::with_capacity(infos.len());
        for (row, info) in infos.into_iter().enumerate() {
            if names.insert(info.name.clone(), row).is_some() {
                return Err(ModelError::damaged(
                    &path,
                    format!("tensor '{}' occurs twice", info.name),
                ));
            }
            if info.offset % alignment != 0 {
                return Err(ModelError::damaged(
                    &path,
                    format!(
                        "tensor '{}' starts at {}, which is not aligned to {alignment}",
                        info.name, info.offset
                    ),
                ));
            }
            let end = data_start
                .checked_add(info.offset)
                .and_then(|start| start.checked_add(info.num_bytes))
                .filter(|&end| end <= file_len);
            let Some(end) = end else {
                return Err(ModelError::damaged(
                    &path,
                    format!(
                        "tensor '{}' ({} bytes at offset {}) reaches beyond the end of the file ({file_len} bytes)",
                        info.name, info.num_bytes, info.offset
                    ),
                ));
            };
            let range = (end - info.num_bytes) as usize..end as usize;
            self.tensors.push(Tensor::new(
                info.name,
                info.tensor_type,
                info.shape,
                self.file.clone(),
                range,
            ));
        }
        Ok(())
    }

    fn alignment(&self) -> Result<u64, ModelError> {
        const KEY: &str = "general.alignment";
        let Some(value) = self.get(KEY) else {
            return Ok(DEFAULT_ALIGNMENT);
        };
        match value {
            MetaValue::Number(Number::Int(n))
                if (1..=i128::from(MAX_ALIGNMENT)).contains(n) && n.count_ones() == 1 =>
            {
                Ok(*n as u64)
            }
            _ => Err(ModelError::config(
                self.file.path(),
                KEY,
                format!("must be a power of two, at most {MAX_ALIGNMENT}"),
            )),
        }
    }

    /// The file the header was read from.
    pub fn file(&self) -> &Arc<MappedFile> {
        &self.file
    }

    /// The metadata in the order of the header.
    pub fn metadata(&self) -> impl Iterator<Item = (&str, &MetaValue)> {
        self.metadata
            .iter()
            .map(|(key, value)| (key.as_str(), value))
    }

    /// The value under `key`.
    pub fn get(&self, key: &str) -> Option<&MetaValue> {
        self.index.get(key).map(|&row| &self.metadata[row].1)
    }

    /// The string under `key`; an error when there is something else.
    pub fn string(&self, key: &str) -> Result<Option<&str>, ModelError> {
        match self.get(key) {
            None => Ok(None),
            Some(MetaValue::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong_type(key, "a string")),
        }
    }

    /// The non-negative integer under `key`.
    pub fn uint(&self, key: &str) -> Result<Option<u64>, ModelError> {
        match self.get(key) {
            None => Ok(None),
            Some(MetaValue::Number(Number::Int(n))) => u64::try_from(*n)
                .map(Some)
                .map_err(|_| self.wrong_type(key, "a non-negative integer")),
            Some(_) => Err(self.wrong_type(key, "a non-negative integer")),
        }
    }

    /// The finite number under `key`.
    pub fn float(&self, key: &str) -> Result<Option<f64>, ModelError> {
        match self.get(key) {
            None => Ok(None),
            Some(MetaValue::Number(Number::Float(x))) if x.is_finite() => Ok(Some(*x)),
            Some(MetaValue::Number(Number::Int(n))) => Ok(Some(*n as f64)),
            Some(_) => Err(self.wrong_type(key, "a finite number")),
        }
    }

    /// The boolean under `key`.
    pub fn boolean(&self, key: &str) -> Result<Option<bool>, ModelError> {
        match self.get(key) {
            None => Ok(None),
            Some(MetaValue::Number(Number::Bool(b))) => Ok(Some(*b)),
            Some(_) => Err(self.wrong_type(key, "a boolean")),
        }
    }

    /// The strings under `key`.
    pub fn strings(&self, key: &str) -> Result<Option<&[Box<str>]>, ModelError> {
        match self.get(key) {
            None => Ok(None),
            Some(MetaValue::Array(MetaArray::Strings(items))) => Ok(Some(items)),
            Some(_) => Err(self.wrong_type(key, "an array of strings")),
        }
    }

    /// The numbers under `key`, as floats.
    pub fn floats(&self, key: &str) -> Result<Option<Vec<f32>>, ModelError> {
        let Some(numbers) = self.numbers(key, "an array of numbers")? else {
            return Ok(None);
        };
        let floats = numbers.map(|number| match number {
            Number::Float(x) => x as f32,
            Number::Int(n) => n as f32,
            Number::Bool(b) => f32::from(u8::from(b)),
        });
        Ok(Some(floats.collect()))
    }

    /// The integers under `key`.
    pub fn ints(&self, key: &str) -> Result<Option<Vec<i64>>, ModelError> {
        let Some(numbers) = self.numbers(key, "an array of integers")? else {
            return Ok(None);
        };
        numbers
            .map(|number| match number {
                Number::Int(n) => i64::try_from(n).ok(),
                _ => None,
            })
            .collect::<Option<Vec<_>>>()
            .map(Some)
            .ok_or_else(|| self.wrong_type(key, "an array of integers"))
    }

    fn numbers(
        &self,
        key: &str,
        wanted: &str,
    ) -> Result<Option<impl Iterator<Item = Number>>, ModelError> {
        match self.get(key) {
            None => Ok(None),
            Some(MetaValue::Array(array @ MetaArray::Numbers(..))) => {
                Ok(Some(array.numbers(&self.file)))
            }
            Some(_) => Err(self.wrong_type(key, wanted)),
        }
    }

    fn wrong_type(&self, key: &str, wanted: &str) -> ModelError {
        ModelError::config(self.file.path(), key, format!("must be {wanted}"))
    }

    /// Where the tensor data lies, for tests that damage only the header.
    pub fn data_range(&self) -> Range<usize> {
        let start = self.tensors.iter().map(|tensor| tensor.range().start).min();
        start.unwrap_or(self.file.len())..self.file.len()
    }
}

/// Magic, version, number of tensors and of metadata keys.
fn read_counts(cursor: &mut Cursor<'_>) -> Result<(u64, u64), ModelError> {
    if cursor.bytes(4, "the magic number")? != MAGIC {
        return Err(cursor.damaged("it does not start with 'GGUF'"));
    }
    let version = cursor.u32("the version")?;
    match version {
        2 | 3 => {}
        v if matches!(v.swap_bytes(), 1..=3) => {
            return Err(cursor
                .damaged("it is a big-endian GGUF file; only little-endian files can be read"));
        }
        v => {
            return Err(cursor.damaged(format!(
                "GGUF version {v} is not supported (supported: 2, 3)"
            )));
        }
    }
    let num_tensors = cursor.u64("the number of tensors")?;
    let num_keys = cursor.u64("the number of metadata keys")?;
    if num_tensors > MAX_NUM_TENSORS {
        return Err(cursor.too_large("the number of tensors", num_tensors, MAX_NUM_TENSORS));
    }
    if num_keys > MAX_NUM_KEYS {
        return Err(cursor.too_large("the number of metadata keys", num_keys, MAX_NUM_KEYS));
    }
    Ok((num_tensors, num_keys))
}

fn read_tensor_info(cursor: &mut Cursor<'_>, path: &Path) -> Result<TensorInfo, ModelError> {
    let name = cursor
        .string(MAX_TENSOR_NAME_BYTES, "a tensor's name")?
        .to_owned();
    let num_dims = cursor.u32("a tensor's number of dimensions")?;
    if num_dims > MAX_DIMS {
        return Err(cursor.damaged(format!(
            "tensor '{name}' has {num_dims} dimensions (at most {MAX_DIMS})"
        )));
    }
    let mut shape = Vec::with_capacity(num_dims as usize);
    for _ in 0..num_dims {
        shape.push(cursor.u64("a tensor's dimensions")?);
    }
    shape.reverse(); // GGUF lists the fastest dimension first; ours come last, as numpy's do.
    let number = cursor.u32("a tensor's type")?;
    let offset = cursor.u64("a tensor's offset")?;
    let tensor_type =
        TensorType::from_gguf(number).map_err(|type_name| ModelError::TensorType {
            path: path.to_owned(),
            tensor: name.clone(),
            type_name,
            supported: TensorType::gguf_names(),
        })?;
    let Some(num_bytes) = tensor_type.num_bytes(&shape) else {
        return Err(cursor.damaged(format!(
            "tensor '{name}' of type {} cannot have the shape {shape:?} (blocks of {})",
            tensor_type.name(),
            tensor_type.block_elements()
        )));
    };
    Ok(TensorInfo {
        name,
        shape,
        tensor_type,
        offset,
        num_bytes,
    })
}

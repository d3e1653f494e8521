//! The headers of safetensors files, single or sharded.
//!
//! Owns every check that makes a tensor's byte range safe to read. Does not know models, and never reads tensor data.

use std::collections::BTreeMap;
use std::path::{Component, Path};
use std::sync::Arc;

use serde::Deserialize;

use crate::json_file::read_json;
use crate::{MappedFile, ModelError, Tensor, TensorType};

/// Largest header of one file; the format's own limit.
const MAX_HEADER_BYTES: u64 = 100_000_000;
const MAX_SHARDS: usize = 4096;
const MAX_DIMS: usize = 8;
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Whether `directory` holds weights in this format.
pub(crate) fn is_present(directory: &Path) -> bool {
    directory.join(SINGLE).is_file() || directory.join(INDEX).is_file()
}

/// The tensors of the model in `directory`, sorted by name.
pub(crate) fn open(directory: &Path) -> Result<Vec<Tensor>, ModelError> {
    let index_path = directory.join(INDEX);
    let mut tensors = if index_path.is_file() {
        open_sharded(directory, &index_path)?
    } else {
        open_file(&directory.join(SINGLE))?
    };
    tensors.sort_by(|a, b| a.name().cmp(b.name()));
    Ok(tensors)
}

fn open_sharded(directory: &Path, index_path: &Path) -> Result<Vec<Tensor>, ModelError> {
    let index: Index = read_json(index_path)?;
    let mut shards: Vec<&str> = index.weight_map.values().map(String::as_str).collect();
    shards.sort_unstable();
    shards.dedup();
    if shards.len() > MAX_SHARDS {
        return Err(ModelError::too_large(
            index_path,
            "the number of files",
            shards.len() as u64,
            MAX_SHARDS as u64,
        ));
    }
    let mut tensors = Vec::with_capacity(index.weight_map.len());
    for shard in shards {
        // A name such as `../x` would read a file the user never named.
        let mut parts = Path::new(shard).components();
        if !matches!(
            (parts.next(), parts.next()),
            (Some(Component::Normal(_)), None)
        ) {
            return Err(ModelError::damaged(
                index_path,
                format!("'{shard}' is not a plain file name"),
            ));
        }
        for tensor in open_file(&directory.join(shard))? {
            match index.weight_map.get(tensor.name()) {
                Some(place) if place == shard => tensors.push(tensor),
                _ => {
                    return Err(ModelError::damaged(
                        index_path,
                        format!(
                            "tensor '{}' stands in '{shard}', but the index says otherwise",
                            tensor.name()
                        ),
                    ));
                }
            }
        }
    }
    if tensors.len() != index.weight_map.len() {
        let found: std::collections::HashSet<_> = tensors.iter().map(Tensor::name).collect();
        let missing = index
            .weight_map
            .iter()
            .find(|(name, _)| !found.contains(name.as_str()));
        if let Some((name, shard)) = missing {
            return Err(ModelError::damaged(
                index_path,
                format!("tensor '{name}' is missing from '{shard}'"),
            ));
        }
    }
    Ok(tensors)
}

/// The tensors of one file.
pub(crate) fn open_file(path: &Path) -> Result<Vec<Tensor>, ModelError> {
    let file = Arc::new(MappedFile::open(path)?);
    let Some(prefix) = file.first_chunk::<8>() else {
        return Err(ModelError::damaged(
            path,
            "it is shorter than the length of its header",
        ));
    };
    let header_len = u64::from_le_bytes(*prefix);
    if header_len > MAX_HEADER_BYTES {
        return Err(ModelError::too_large(
            path,
            "the header's length in bytes",
            header_len,
            MAX_HEADER_BYTES,
        ));
    }
    let data_start = 8 + header_len as usize;
    let Some(header) = file.get(8..data_start) else {
        return Err(ModelError::damaged(
            path,
            format!("it ends inside its header of {header_len} bytes"),
        ));
    };
    let entries: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(header)
        .map_err(|error| {
            ModelError::damaged(path, format!("its header is no JSON object: {error}"))
        })?;
    let mut tensors = Vec::with_capacity(entries.len());
    for (name, value) in entries {
        if name != "__metadata__" {
            tensors.push(read_entry(&file, name, value, data_start)?);
        }
    }
    Ok(tensors)
}

fn read_entry(
    file: &Arc<MappedFile>,
    name: String,
    value: serde_json::Value,
    data_start: usize,
) -> Result<Tensor, ModelError> {
    let path = file.path();
    let entry: Entry = serde_json::from_value(value).map_err(|error| {
        ModelError::damaged(
            path,
            format!("the entry of tensor '{name}' is wrong: {error}"),
        )
    })?;
    let Some(tensor_type) = TensorType::from_safetensors(&entry.dtype) else {
        return Err(ModelError::TensorType {
            path: path.to_owned(),
            tensor: name,
            type_name: entry.dtype,
            supported: TensorType::safetensors_names(),
        });
    };
    if entry.shape.len() > MAX_DIMS {
        return Err(ModelError::damaged(
            path,
            format!("tensor '{name}' has more than {MAX_DIMS} dimensions"),
        ));
    }
    let (start, end) = entry.data_offsets;
    let len = end.checked_sub(start);
    if len.is_none() || len != tensor_type.num_bytes(&entry.shape) {
        return Err(ModelError::damaged(
            path,
            format!(
                "tensor '{name}' of shape {:?} does not fill the bytes {start}..{end}",
                entry.shape
            ),
        ));
    }
    let data_len = (file.len() - data_start) as u64;
    if end > data_len {
        return Err(ModelError::damaged(
            path,
            format!("tensor '{name}' ends at byte {end} of {data_len} bytes of data"),
        ));
    }
    let range = data_start + start as usize..data_start + end as usize;
    Ok(Tensor::new(
        name,
        tensor_type,
        entry.shape,
        file.clone(),
        range,
    ))
}

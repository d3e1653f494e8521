//! Reading the JSON files beside a model, with a cap on their size.

use std::path::Path;

use serde::de::DeserializeOwned;

use crate::{MappedFile, ModelError};

/// Largest JSON file; a tokenizer.json with 262,144 tokens and its merges is about 35 MB.
const MAX_JSON_BYTES: u64 = 256 << 20;

/// The bytes of the file at `path`, refused above the cap.
pub(crate) fn read_capped(path: &Path) -> Result<MappedFile, ModelError> {
    let file = MappedFile::open(path)?;
    if file.len() as u64 > MAX_JSON_BYTES {
        return Err(ModelError::too_large(
            path,
            "the file's size in bytes",
            file.len() as u64,
            MAX_JSON_BYTES,
        ));
    }
    Ok(file)
}

/// The file at `path` as a value of type `T`.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, ModelError> {
    let file = read_capped(path)?;
    serde_json::from_slice(&file)
        .map_err(|error| ModelError::damaged(path, format!("it is not the JSON wanted: {error}")))
}

/// The file at `path`, or None when there is no such file.
pub(crate) fn read_json_if_present<T: DeserializeOwned>(
    path: &Path,
) -> Result<Option<T>, ModelError> {
    if path.is_file() {
        read_json(path).map(Some)
    } else {
        Ok(None)
    }
}

/// The text file at `path`, or None when there is no such file.
pub(crate) fn read_text_if_present(path: &Path) -> Result<Option<String>, ModelError> {
    if !path.is_file() {
        return Ok(None);
    }
    let file = read_capped(path)?;
    match std::str::from_utf8(&file) {
        Ok(text) => Ok(Some(text.to_owned())),
        Err(_) => Err(ModelError::damaged(path, "it is not UTF-8")),
    }
}

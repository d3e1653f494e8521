//! What can be wrong with a model on disk, told so that a person can act on it.
//!
//! Owns the error type of this crate. Does not know HTTP: a model error stops the start of a server, or a load,
//! and is printed; it never answers a request.

use std::path::{Path, PathBuf};

/// Why a model cannot be opened; every variant names the file and the thing in it that is wrong.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A file could not be opened, mapped or read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The path is neither a GGUF file nor a directory with a model in it.
    #[error("{} holds no model: {reason}", path.display())]
    NoModel {
        /// The path as given.
        path: PathBuf,
        /// What was looked for.
        reason: String,
    },
    /// The bytes of a file contradict its format or each other.
    #[error("{} is damaged: {reason}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong and where.
        reason: String,
    },
    /// A size in a file is above a cap that no real model comes near.
    #[error("{}: {what} is {value}, above the limit of {limit}", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The counted thing.
        what: String,
        /// Its value.
        value: u64,
        /// The cap.
        limit: u64,
    },
    /// A tensor is stored in a type that cannot be read.
    #[error("{}: tensor '{tensor}' has type {type_name}, which is not supported (supported: {supported})", path.display())]
    TensorType {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// The type's name, or `type N` for a number nobody has named.
        type_name: String,
        /// The names of the types that are supported.
        supported: String,
    },
    /// The model is well formed, but uses something this build lacks.
    #[error("{}: {reason}", path.display())]
    NotSupported {
        /// The file.
        path: PathBuf,
        /// What is missing.
        reason: String,
    },
    /// A configuration value is missing or has the wrong type.
    #[error("{}: configuration key '{key}' {reason}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// What is wrong with it.
        reason: String,
    },
}

impl ModelError {
    pub(crate) fn io(path: &Path, source: std::io::Error) -> Self {
        ModelError::Io {
            path: path.to_owned(),
            source,
        }
    }

    pub(crate) fn damaged(path: &Path, reason: impl Into<String>) -> Self {
        ModelError::Damaged {
            path: path.to_owned(),
            reason: reason.into(),
        }
    }

    pub(crate) fn too_large(path: &Path, what: impl Into<String>, value: u64, limit: u64) -> Self {
        ModelError::TooLarge {
            path: path.to_owned(),
            what: what.into(),
            value,
            limit,
        }
    }

    pub(crate) fn not_supported(path: &Path, reason: impl Into<String>) -> Self {
        ModelError::NotSupported {
            path: path.to_owned(),
            reason: reason.into(),
        }
    }

    pub(crate) fn config(path: &Path, key: impl Into<String>, reason: impl Into<String>) -> Self {
        ModelError::Config {
            path: path.to_owned(),
            key: key.into(),
            reason: reason.into(),
        }
    }
}

//! A file mapped into memory, shared by everyone who reads from it.
//!
//! Owns the mapping and nothing about its content.

use std::fs::File;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::ModelError;

/// A read-only view of a whole file; unmapped when the last owner goes.
///
/// The file must not be shortened while it is mapped: reading pages that are gone ends the process (SIGBUS), which no
/// reader can prevent. Replacing a file by renaming another over it is safe.
#[derive(Debug)]
pub struct MappedFile {
    path: PathBuf,
    /// None for an empty file, which cannot be mapped.
    map: Option<Mmap>,
}

impl MappedFile {
    /// Maps the file at `path`.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let file = File::open(path).map_err(|error| ModelError::io(path, error))?;
        let meta = file
            .metadata()
            .map_err(|error| ModelError::io(path, error))?;
        if !meta.is_file() {
            return Err(ModelError::NoModel {
                path: path.to_owned(),
                reason: "it is not a regular file".to_owned(),
            });
        }
        let map = if meta.len() == 0 {
            None
        } else {
            // SAFETY: the mapping is read-only and private to this type; the type's documentation states what the
            // owner of the file must not do while it is mapped.
            Some(unsafe { Mmap::map(&file) }.map_err(|error| ModelError::io(path, error))?)
        };
        Ok(MappedFile {
            path: path.to_owned(),
            map,
        })
    }

    /// The file's path as it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.map.as_deref().unwrap_or(&[])
    }
}

//! Bounds-checked little-endian reads from the head of a GGUF file.
//!
//! Owns the position and the wording of "the file ends here". Does not know the layout of a header.

use std::path::Path;

use crate::ModelError;

/// A reading position in a file's bytes; every read checks the bytes that are left.
pub(crate) struct Cursor<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(path: &'a Path, bytes: &'a [u8]) -> Self {
        Cursor {
            path,
            bytes,
            position: 0,
        }
    }

    pub(crate) fn position(&self) -> usize {
        self.position
    }

    pub(crate) fn damaged(&self, reason: impl Into<String>) -> ModelError {
        ModelError::damaged(self.path, reason)
    }

    pub(crate) fn too_large(&self, what: impl Into<String>, value: u64, limit: u64) -> ModelError {
        ModelError::too_large(self.path, what, value, limit)
    }

    fn left(&self) -> u64 {
        (self.bytes.len() - self.position) as u64
    }

    /// The next `len` bytes; `what` names them when the file ends before.
    pub(crate) fn bytes(&mut self, len: u64, what: &str) -> Result<&'a [u8], ModelError> {
        if len > self.left() {
            return Err(self.damaged(format!(
                "the header ends inside {what} at byte {} ({len} bytes needed, {} left)",
                self.position,
                self.left()
            )));
        }
        // `len` is at most the length of a slice, so it fits in usize.
        let slice = &self.bytes[self.position..self.position + len as usize];
        self.position += len as usize;
        Ok(slice)
    }

    /// Refuses a count whose elements, `min_bytes` each, cannot be in what is left: checked before memory is reserved.
    pub(crate) fn check_room(
        &self,
        count: u64,
        min_bytes: u64,
        what: &str,
    ) -> Result<(), ModelError> {
        match count.checked_mul(min_bytes) {
            Some(needed) if needed <= self.left() => Ok(()),
            _ => Err(self.damaged(format!(
                "'{what}' claims {count} elements, but only {} bytes follow",
                self.left()
            ))),
        }
    }

    pub(crate) fn u32(&mut self, what: &str) -> Result<u32, ModelError> {
        let bytes = self.bytes(4, what)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    pub(crate) fn u64(&mut self, what: &str) -> Result<u64, ModelError> {
        let bytes = self.bytes(8, what)?;
        let mut wide = [0u8; 8];
        wide.copy_from_slice(bytes);
        Ok(u64::from_le_bytes(wide))
    }

    /// A length and that many bytes of UTF-8, at most `max_bytes`.
    pub(crate) fn string(&mut self, max_bytes: u64, what: &str) -> Result<&'a str, ModelError> {
        let len = self.u64(what)?;
        if len > max_bytes {
            return Err(self.too_large(format!("a string of '{what}'"), len, max_bytes));
        }
        let start = self.position;
        let bytes = self.bytes(len, what)?;
        std::str::from_utf8(bytes).map_err(|_| {
            self.damaged(format!(
                "the string of '{what}' at byte {start} is not UTF-8"
            ))
        })
    }
}

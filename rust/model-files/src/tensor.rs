//! One named tensor and where its bytes lie.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::{MappedFile, TensorType};

/// A tensor in a mapped file. Cheap to clone; the clone keeps the file mapped.
#[derive(Clone, Debug)]
pub struct Tensor {
    name: String,
    tensor_type: TensorType,
    shape: Vec<u64>,
    file: Arc<MappedFile>,
    range: Range<usize>,
}

impl Tensor {
    /// `range` must lie inside `file`; the readers of both formats check it.
    pub(crate) fn new(
        name: String,
        tensor_type: TensorType,
        shape: Vec<u64>,
        file: Arc<MappedFile>,
        range: Range<usize>,
    ) -> Self {
        debug_assert!(range.start <= range.end && range.end <= file.len());
        Tensor {
            name,
            tensor_type,
            shape,
            file,
            range,
        }
    }

    /// The name as it stands in the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How the numbers are stored.
    pub fn tensor_type(&self) -> TensorType {
        self.tensor_type
    }

    /// Sizes in elements, slowest dimension first (as numpy has them; GGUF files list them the other way round).
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// The file that holds the data.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// The mapping that holds the data.
    pub fn file(&self) -> &Arc<MappedFile> {
        &self.file
    }

    /// Where the data lie in the file, in bytes.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// The stored bytes, little-endian, not decoded. Reading them may touch the disk.
    pub fn bytes(&self) -> &[u8] {
        &self.file[self.range.clone()]
    }
}

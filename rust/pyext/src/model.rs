//! `open_model`: a model's configuration as dicts and its tensors as read-only buffers over the mapped files.

use std::ffi::{c_int, c_void};
use std::path::PathBuf;

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use serde::Serialize;
use serde_json::Value;

use crate::guard::guarded;
use crate::json::to_python;

pyo3::create_exception!(
    proa._rust,
    ModelError,
    PyValueError,
    "A model that cannot be opened; the message names the file and the tensor, key or type at fault."
);

/// A tensor in a mapped file. It supports the buffer protocol: `numpy.frombuffer(tensor, numpy.uint8)` copies nothing,
/// is read-only and keeps the file mapped.
#[pyclass(frozen, module = "proa._rust")]
pub struct Tensor {
    tensor: model_files::Tensor,
}

#[pymethods]
impl Tensor {
    /// The name as it stands in the file.
    #[getter]
    fn name(&self) -> &str {
        self.tensor.name()
    }

    /// How the numbers are stored: "F32", "BF16", "Q4_1", ...
    #[getter]
    fn r#type(&self) -> &'static str {
        self.tensor.tensor_type().name()
    }

    /// Sizes in elements, slowest dimension first.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.tensor.shape())
    }

    /// Elements of one block; 1 for plain numbers.
    #[getter]
    fn block_elements(&self) -> u64 {
        self.tensor.tensor_type().block_elements()
    }

    /// Bytes of one block.
    #[getter]
    fn block_bytes(&self) -> u64 {
        self.tensor.tensor_type().block_bytes()
    }

    /// The file that holds the data.
    #[getter]
    fn path(&self) -> String {
        self.tensor.path().to_string_lossy().into_owned()
    }

    /// Where the data begin in the file, in bytes.
    #[getter]
    fn offset(&self) -> usize {
        self.tensor.range().start
    }

    /// Size of the data in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.tensor.range().len()
    }

    fn __repr__(&self) -> String {
        format!(
            "Tensor({:?}, {}, {:?})",
            self.tensor.name(),
            self.tensor.tensor_type().name(),
            self.tensor.shape()
        )
    }

    /// Lends the stored bytes to a memoryview or an array.
    ///
    /// # Safety
    /// Called by Python with a view to fill, as the buffer protocol says.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let py = slf.py();
        let bytes = slf.get().tensor.bytes();
        let (start, len) = (
            bytes.as_ptr() as *mut c_void,
            bytes.len() as ffi::Py_ssize_t,
        );
        // SAFETY: `view` is Python's to fill. The bytes live as long as the tensor, which the view keeps alive by its
        // reference to `slf`; they are handed out as read-only, so the cast to a mutable pointer is never used.
        let result = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, len, 1, flags) };
        if result == 0 {
            Ok(())
        } else {
            Err(PyErr::fetch(py))
        }
    }
}

/// An opened model.
#[pyclass(frozen, module = "proa._rust")]
pub struct Model {
    files: model_files::ModelFiles,
}

fn as_dict<'py>(py: Python<'py>, value: &impl Serialize) -> PyResult<Bound<'py, PyAny>> {
    let value: Value =
        serde_json::to_value(value).map_err(|error| PyValueError::new_err(error.to_string()))?;
    to_python(py, &value)
}

#[pymethods]
impl Model {
    /// The GGUF file, or the directory.
    #[getter]
    fn path(&self) -> String {
        self.files.path.to_string_lossy().into_owned()
    }

    /// "gguf", "safetensors", or "dummy" when the weights were not looked at.
    #[getter]
    fn format(&self) -> &'static str {
        self.files.format.name()
    }

    /// The normalised configuration; keys are the fields of `ModelConfig` in rust/model-files.
    #[getter]
    fn config<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        as_dict(py, &self.files.config)
    }

    /// The makers' sampling defaults; keys are the fields of `GenerationDefaults` in rust/model-files.
    #[getter]
    fn generation<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        as_dict(py, &self.files.generation)
    }

    /// Every tensor by name, in the order of the file.
    #[getter]
    fn tensors<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for tensor in &self.files.tensors {
            dict.set_item(
                tensor.name(),
                Tensor {
                    tensor: tensor.clone(),
                },
            )?;
        }
        Ok(dict)
    }

    /// The chat template's source; None when the model has none.
    #[getter]
    fn chat_template(&self) -> Option<&str> {
        self.files
            .chat_template
            .as_ref()
            .map(|template| template.text.as_str())
    }

    /// Special tokens by name ("bos_token", ...).
    #[getter]
    fn special_tokens<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        as_dict(py, &self.files.tokenizer_facts.special_tokens)
    }
}

impl Model {
    /// The opened files, for the other classes of this module.
    pub fn files(&self) -> &model_files::ModelFiles {
        &self.files
    }
}

/// Opens the model at `path`: a GGUF file, or a directory with safetensors, config.json and tokenizer.json.
///
/// Reads headers only. With `weights=False` a directory needs no weights. Raises ModelError.
#[pyfunction]
#[pyo3(signature = (path, weights = true))]
pub fn open_model(py: Python<'_>, path: PathBuf, weights: bool) -> PyResult<Model> {
    let open = if weights {
        model_files::open_model
    } else {
        model_files::open_model_without_weights
    };
    guarded(|| {
        let files = py
            .detach(|| open(&path))
            .map_err(|error| ModelError::new_err(error.to_string()))?;
        Ok(Model { files })
    })
}

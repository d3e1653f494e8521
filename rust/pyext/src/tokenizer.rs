//! `Tokenizer`: text to ids and back, and the text of a running choice, for tests and offline use.

use limits::ApiError;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::guard::guarded;
use crate::model::{Model, ModelError};

/// A refused value as Python sees it.
pub fn value_error(error: &ApiError) -> PyErr {
    PyValueError::new_err(error.message.clone())
}

/// The tokenizer of an opened model.
#[pyclass(frozen, module = "proa._rust")]
pub struct Tokenizer {
    tokenizer: text::Tokenizer,
}

#[pymethods]
impl Tokenizer {
    /// Builds the tokenizer of `model`. Raises ModelError.
    #[new]
    fn new(py: Python<'_>, model: &Model) -> PyResult<Self> {
        guarded(|| {
            let tokenizer = py
                .detach(|| text::Tokenizer::from_model(model.files()))
                .map_err(|error| ModelError::new_err(error.to_string()))?;
            Ok(Tokenizer { tokenizer })
        })
    }

    /// The ids of `text`; `add_special` puts the model's beginning and end tokens around it.
    #[pyo3(signature = (text, add_special = true))]
    fn encode(&self, py: Python<'_>, text: &str, add_special: bool) -> PyResult<Vec<u32>> {
        guarded(|| {
            py.detach(|| self.tokenizer.encode(text, add_special))
                .map_err(|error| value_error(&error))
        })
    }

    /// The text of `ids`.
    #[pyo3(signature = (ids, skip_special_tokens = false))]
    fn decode(&self, ids: Vec<u32>, skip_special_tokens: bool) -> PyResult<String> {
        guarded(|| Ok(self.tokenizer.decode(&ids, skip_special_tokens)))
    }

    /// The true bytes of `ids`, put together as `decode` does.
    #[pyo3(signature = (ids, skip_special_tokens = false))]
    fn decode_bytes<'py>(
        &self,
        py: Python<'py>,
        ids: Vec<u32>,
        skip_special_tokens: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        guarded(|| {
            Ok(PyBytes::new(
                py,
                &self.tokenizer.decode_bytes(&ids, skip_special_tokens),
            ))
        })
    }

    /// The bytes that token `id` stands for.
    fn token_bytes<'py>(&self, py: Python<'py>, id: u32) -> PyResult<Bound<'py, PyBytes>> {
        guarded(|| Ok(PyBytes::new(py, self.tokenizer.token_bytes(id))))
    }

    /// The pieces of text that a stream of `ids` would send, one a token and one for the end, and the index of the stop
    /// string that ended it.
    #[pyo3(signature = (ids, stop = Vec::new(), skip_special_tokens = true))]
    fn stream(
        &self,
        ids: Vec<u32>,
        stop: Vec<String>,
        skip_special_tokens: bool,
    ) -> PyResult<(Vec<String>, Option<usize>)> {
        guarded(|| {
            let options = text::TextOptions {
                stop,
                skip_special_tokens,
                ..text::TextOptions::default()
            };
            let mut choice = text::ChoiceText::new(self.tokenizer.clone(), options);
            let mut pieces = Vec::with_capacity(ids.len() + 1);
            for id in ids {
                let mut piece = String::new();
                let effect = choice.push(id, &mut piece);
                pieces.push(piece);
                if effect.stop.is_some() {
                    return Ok((pieces, effect.stop));
                }
            }
            let mut piece = String::new();
            choice.finish(&mut piece);
            pieces.push(piece);
            Ok((pieces, None))
        })
    }

    /// Whether `id` is a special token.
    fn is_special(&self, id: u32) -> bool {
        self.tokenizer.is_special(id)
    }

    /// The token sequences that write `words`, each with and without a leading blank.
    fn bad_word_sequences(&self, words: Vec<String>) -> PyResult<Vec<Vec<u32>>> {
        guarded(|| {
            self.tokenizer
                .bad_word_sequences(&words)
                .map_err(|error| value_error(&error))
        })
    }

    /// The id of the token spelled `text`, or None.
    fn token_to_id(&self, text: &str) -> Option<u32> {
        self.tokenizer.token_to_id(text)
    }

    /// The token that begins a text, or None.
    #[getter]
    fn bos_token_id(&self) -> Option<u32> {
        self.tokenizer.bos_token_id()
    }

    /// Every token that ends a turn or a text.
    #[getter]
    fn eos_token_ids(&self) -> Vec<u32> {
        self.tokenizer.eos_token_ids().to_vec()
    }

    fn __len__(&self) -> usize {
        self.tokenizer.num_ids() as usize
    }
}

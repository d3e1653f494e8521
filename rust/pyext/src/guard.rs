//! Keeps panics out of Python.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// Runs `body`; a panic becomes a `RuntimeError`, whose cause is on stderr already.
///
/// Without this a panic would reach Python as a `PanicException`, which `except Exception` does not see.
pub fn guarded<T>(body: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        Err(PyRuntimeError::new_err(
            "a bug in proa's Rust part; its trace is on stderr",
        ))
    })
}

//! The extension module `proa._rust`: type conversion between Python and the Rust crates, nothing else.
//!
//! One file a concern. No panic crosses into Python: `PanicException` is no `Exception`, so every entry catches.

mod command;

use pyo3::prelude::*;

/// What Python sees of Proa's Rust part.
#[pymodule]
fn _rust(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(command::main, module)?)?;
    Ok(())
}

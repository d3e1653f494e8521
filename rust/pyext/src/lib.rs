//! The extension module `proa._rust`: type conversion between Python and the Rust crates, nothing else.
//!
//! One file a concern. No panic crosses into Python: `PanicException` is no `Exception`, so every entry catches.

mod chat;
mod command;
mod guard;
mod json;
mod model;
mod tokenizer;

use pyo3::prelude::*;

/// What Python sees of Proa's Rust part.
#[pymodule]
fn _rust(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(command::main, module)?)?;
    module.add_function(wrap_pyfunction!(model::open_model, module)?)?;
    module.add_class::<model::Model>()?;
    module.add_class::<model::Tensor>()?;
    module.add_class::<tokenizer::Tokenizer>()?;
    module.add_class::<chat::ChatTemplate>()?;
    module.add("ModelError", module.py().get_type::<model::ModelError>())?;
    Ok(())
}

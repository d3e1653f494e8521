//! The entry of the `proa` command that pip installs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use pyo3::prelude::*;

/// Runs `proa` with the arguments after the program's name and returns the exit code.
///
/// `python` is the interpreter that runs the engine. The interpreter's lock is let go for the whole run.
#[pyfunction]
pub fn main(py: Python<'_>, arguments: Vec<String>, python: PathBuf) -> i32 {
    py.detach(|| {
        let run = AssertUnwindSafe(|| cli::run(&arguments, Some(python)));
        // The panic's own message is on stderr already.
        catch_unwind(run).unwrap_or(cli::EXIT_GAVE_UP)
    })
}

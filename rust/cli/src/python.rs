//! The Python that runs the engine: which one, and whether its package is of our version.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::settings::Refusal;

/// The version of this command and of the package it works with.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Which Python was meant and how sure we are of its package.
#[derive(Clone, Debug)]
pub enum Python {
    /// The interpreter that runs this command; its package is ours.
    Own(PathBuf),
    /// One named by a flag, or found on PATH; its package has to be asked.
    Named(PathBuf),
}

impl Python {
    /// The program to start.
    pub fn program(&self) -> &Path {
        match self {
            Python::Own(path) | Python::Named(path) => path,
        }
    }

    /// Refuses an interpreter that cannot be started or holds another version of the package.
    pub fn check_version(&self) -> Result<(), Refusal> {
        let Python::Named(path) = self else {
            return Ok(());
        };
        let refuse = |what: String| Refusal(format!("--python {}: {what}", path.display()));
        let output = Command::new(path)
            .args(["-c", "import proa; print(proa.__version__)"])
            .stdin(Stdio::null())
            .output()
            .map_err(|error| refuse(error.to_string()))?;
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            let last = errors
                .lines()
                .last()
                .unwrap_or("it said nothing")
                .to_string();
            return Err(refuse(format!(
                "cannot import proa ({last}); install the package of version {VERSION}"
            )));
        }
        let found = String::from_utf8_lossy(&output.stdout).trim().to_string();
        if found != VERSION {
            return Err(refuse(format!(
                "its proa is version {found}, this command is {VERSION}"
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_no_python_is_refused() {
        let missing = Python::Named(PathBuf::from("/nonexistent/python"));
        assert!(
            missing
                .check_version()
                .unwrap_err()
                .0
                .starts_with("--python /nonexistent/python: ")
        );
        let wrong = Python::Named(PathBuf::from("/bin/echo"));
        assert!(
            wrong
                .check_version()
                .unwrap_err()
                .0
                .contains("this command is")
        );
        let failing = Python::Named(PathBuf::from("/bin/false"));
        assert!(
            failing
                .check_version()
                .unwrap_err()
                .0
                .contains("cannot import proa")
        );
    }
}

//! Turns MODEL into an absolute path: a file, a folder, or the default model when none is named.
//!
//! Does not look into the files.

use std::path::{Path, PathBuf};

use limits::quote;

use crate::default_model;
use crate::python::Python;
use crate::settings::Refusal;

/// The absolute path of the model, fetching the default one if none is named and it is not here yet.
pub fn resolve(named: Option<&str>, python: &Python) -> Result<PathBuf, Refusal> {
    match named {
        None => default_model::fetch(python.program()).map_err(Refusal),
        Some(text) => existing(text),
    }
}

/// The name clients see when no other is given: MODEL as it was written, less its folders.
pub fn default_name(named: Option<&str>, path: &Path) -> String {
    let last = match named {
        None => default_model::NAME.to_string(),
        Some(_) => path
            .file_name()
            .unwrap_or(path.as_os_str())
            .to_string_lossy()
            .into_owned(),
    };
    last.strip_suffix(".gguf").unwrap_or(&last).to_string()
}

/// Checks without fetching anything: what `proa check-config` may say about MODEL.
pub fn check(named: Option<&str>) -> Result<(), Refusal> {
    match named {
        None => Ok(()),
        Some(text) => existing(text).map(drop),
    }
}

fn existing(text: &str) -> Result<PathBuf, Refusal> {
    let path = Path::new(text);
    match path.canonicalize() {
        Ok(absolute) => Ok(absolute),
        Err(_) if looks_like_hub_name(text) => Err(Refusal(format!(
            "not supported yet: downloads from a hub; MODEL '{}' is no file or folder here",
            quote(text)
        ))),
        Err(error) => Err(Refusal(format!(
            "MODEL '{}': {}",
            quote(text),
            plain(&error)
        ))),
    }
}

fn looks_like_hub_name(text: &str) -> bool {
    let parts: Vec<&str> = text.split('/').collect();
    let named = |part: &&str| !part.is_empty() && !part.starts_with('.') && !part.starts_with('~');
    parts.len() == 2 && parts.iter().all(named) && !text.ends_with(".gguf")
}

fn plain(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => "no such file or folder".to_string(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_hub_are_told_from_missing_files() {
        let error = |text| existing(text).unwrap_err().0;
        assert!(
            error("meta-llama/Llama-3.2-1B").starts_with("not supported yet: downloads from a hub")
        );
        assert_eq!(
            error("./missing"),
            "MODEL './missing': no such file or folder"
        );
        assert_eq!(
            error("models/x.gguf"),
            "MODEL 'models/x.gguf': no such file or folder"
        );
    }

    #[test]
    fn paths_become_absolute_and_name_the_model() {
        let path = existing("src").unwrap();
        assert!(path.is_absolute());
        assert_eq!(default_name(Some("src"), &path), "src");
        assert_eq!(default_name(Some("x.gguf"), Path::new("/m/x.gguf")), "x");
        assert_eq!(
            default_name(None, Path::new("/m/y.gguf")),
            "SmolLM2-135M-Instruct"
        );
    }
}

//! Reads models from disk: GGUF files, and directories with safetensors, config.json and tokenizer.json.
//!
//! Every byte is hostile input: counts, sizes, offsets, strings and nesting are capped and checked before memory is
//! reserved or a tensor can be read. Owns the normalised configuration of a model and the places of its tensors. Does
//! not know tokenizers, templates or which model families the engine can run.

mod config;
mod config_gguf;
mod config_hf;
mod error;
mod gguf;
mod gguf_cursor;
mod gguf_value;
mod json_file;
mod mapping;
mod safetensors;
mod tensor;
mod tensor_type;
mod tokenizer_source;

use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use config::{GenerationDefaults, ModelConfig, RopeScaling};
pub use error::ModelError;
pub use gguf::Gguf;
pub use gguf_value::{MetaArray, MetaValue, Number, NumberType};
pub use mapping::MappedFile;
pub use tensor::Tensor;
pub use tensor_type::TensorType;
pub use tokenizer_source::{TemplateSource, TokenizerFacts, TokenizerSource};

/// How a model is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One GGUF file.
    Gguf,
    /// A directory with safetensors files.
    Safetensors,
    /// A directory whose weights were not looked at (`open_model_without_weights`).
    ConfigOnly,
}

impl Format {
    /// The name the engine's configuration uses.
    pub fn name(self) -> &'static str {
        match self {
            Format::Gguf => "gguf",
            Format::Safetensors => "safetensors",
            Format::ConfigOnly => "dummy",
        }
    }
}

/// An opened model: everything but the decoded weights.
#[derive(Debug)]
pub struct ModelFiles {
    /// The GGUF file, or the directory.
    pub path: PathBuf,
    /// How the weights are stored.
    pub format: Format,
    /// The shape of the model.
    pub config: ModelConfig,
    /// Every tensor; empty for `Format::ConfigOnly`.
    pub tensors: Vec<Tensor>,
    /// What the tokenizer is built from.
    pub tokenizer: TokenizerSource,
    /// Special tokens and BOS rules.
    pub tokenizer_facts: TokenizerFacts,
    /// The chat template; None = the model has none, and nothing stands in for it.
    pub chat_template: Option<TemplateSource>,
    /// The makers' sampling defaults.
    pub generation: GenerationDefaults,
}

/// Opens the model at `path`: a GGUF file, a directory with safetensors files, or a directory with a single GGUF file.
///
/// Reads headers and JSON files only; tensor data stay on disk until somebody looks at them. Errors name the file and
/// the tensor, key or type at fault.
pub fn open_model(path: &Path) -> Result<ModelFiles, ModelError> {
    if path.is_dir() {
        if safetensors::is_present(path) {
            return open_directory(path, true);
        }
        return match single_gguf(path)? {
            Some(file) => open_gguf(&file),
            None => Err(ModelError::NoModel {
                path: path.to_owned(),
                reason: "no model.safetensors, model.safetensors.index.json or single .gguf file is in it".to_owned(),
            }),
        };
    }
    open_gguf(path)
}

/// Opens the model at `path` without its weights, which need not exist in a directory: for generated weights.
pub fn open_model_without_weights(path: &Path) -> Result<ModelFiles, ModelError> {
    if path.is_dir() && path.join("config.json").is_file() {
        open_directory(path, false)
    } else {
        open_model(path)
    }
}

fn single_gguf(directory: &Path) -> Result<Option<PathBuf>, ModelError> {
    let entries = std::fs::read_dir(directory).map_err(|error| ModelError::io(directory, error))?;
    let mut found = Vec::new();
    for entry in entries {
        let path = entry
            .map_err(|error| ModelError::io(directory, error))?
            .path();
        if path
            .extension()
            .is_some_and(|extension| extension == "gguf")
            && path.is_file()
        {
            found.push(path);
        }
    }
    match found.len() {
        0 | 1 => Ok(found.pop()),
        n => Err(ModelError::NoModel {
            path: directory.to_owned(),
            reason: format!("{n} .gguf files are in it; name one of them"),
        }),
    }
}

fn open_gguf(path: &Path) -> Result<ModelFiles, ModelError> {
    let file = Arc::new(MappedFile::open(path)?);
    if !gguf::is_gguf(&file) {
        return Err(ModelError::NoModel {
            path: path.to_owned(),
            reason: "it is no GGUF file (it does not start with 'GGUF')".to_owned(),
        });
    }
    let gguf = Arc::new(Gguf::parse(file)?);
    let config = config_gguf::read_config(&gguf)?;
    let generation = config_gguf::read_generation(&gguf)?;
    let (tokenizer, tokenizer_facts, chat_template) = tokenizer_source::read_gguf(&gguf)?;
    Ok(ModelFiles {
        path: path.to_owned(),
        format: Format::Gguf,
        config,
        tensors: gguf.tensors.clone(),
        tokenizer,
        tokenizer_facts,
        chat_template,
        generation,
    })
}

fn open_directory(path: &Path, with_weights: bool) -> Result<ModelFiles, ModelError> {
    let mut config = config_hf::read_config(path)?;
    let generation = config_hf::read_generation(path)?;
    // The makers' end tokens are often complete only in the second file.
    config::add_ids(
        &mut config.eos_token_ids,
        generation.eos_token_ids.iter().copied(),
    );
    let (tokenizer, tokenizer_facts, chat_template) = tokenizer_source::read_directory(path)?;
    let tensors = if with_weights {
        safetensors::open(path)?
    } else {
        Vec::new()
    };
    Ok(ModelFiles {
        path: path.to_owned(),
        format: if with_weights {
            Format::Safetensors
        } else {
            Format::ConfigOnly
        },
        config,
        tensors,
        tokenizer,
        tokenizer_facts,
        chat_template,
        generation,
    })
}

impl ModelFiles {
    /// Refuses the model if a tensor is stored in a type outside `supported`; names the first such tensor and its type.
    pub fn require_types(&self, supported: &[TensorType]) -> Result<(), ModelError> {
        match self
            .tensors
            .iter()
            .find(|tensor| !supported.contains(&tensor.tensor_type()))
        {
            None => Ok(()),
            Some(tensor) => Err(ModelError::TensorType {
                path: tensor.path().to_owned(),
                tensor: tensor.name().to_owned(),
                type_name: tensor.tensor_type().name().to_owned(),
                supported: supported
                    .iter()
                    .map(|t| t.name())
                    .collect::<Vec<_>>()
                    .join(", "),
            }),
        }
    }

    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|tensor| tensor.name() == name)
    }
}

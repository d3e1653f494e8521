//! Why a tokenizer cannot be built.

/// A model's tokenizer that cannot be used; stops the start of a server.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The model has no tokenizer that can be read.
    #[error("the model has no tokenizer: neither tokenizer.json nor a vocabulary in a GGUF header")]
    Missing,
    /// The tokenizer uses something this build lacks.
    #[error("the tokenizer is not supported: {0}")]
    NotSupported(String),
    /// The tokenizer's data contradict each other.
    #[error("the tokenizer is damaged: {0}")]
    Damaged(String),
    /// Reading the model's files failed.
    #[error(transparent)]
    Model(#[from] model_files::ModelError),
}

//! `system_fingerprint`: equal for two servers whose answers to one seeded request may be compared.
//!
//! Made of the engine's configuration and of what can be read of the weights without reading all of them.

use model_files::ModelFiles;
use sha2::{Digest, Sha256};

use crate::engine_config::EngineConfig;
use crate::python::VERSION;

/// Bytes of each tensor that are looked at: enough to tell a model from one trained further.
const SAMPLE_BYTES: usize = 256;
/// Bytes of the hash that are shown, as two hex digits each.
const SHOWN_BYTES: usize = 4;

/// SHA-256 of every tensor's name, type, shape and first bytes.
pub fn weights_identity(files: &ModelFiles) -> [u8; 32] {
    let mut hash = Sha256::new();
    for tensor in &files.tensors {
        let bytes = tensor.bytes();
        hash.update(format!(
            "{} {} {:?}\n",
            tensor.name(),
            tensor.tensor_type().name(),
            tensor.shape()
        ));
        hash.update(&bytes[..bytes.len().min(SAMPLE_BYTES)]);
    }
    hash.finalize().into()
}

/// `proa-VERSION-HASH8`; where the model lies and who serves it makes no difference.
pub fn fingerprint(weights: [u8; 32], engine: &EngineConfig) -> String {
    let placeless = EngineConfig {
        connect: String::new(),
        model_path: String::new(),
        engine_index: 0,
        parent_pid: 0,
        ..engine.clone()
    };
    let hash = Sha256::new()
        .chain_update(weights)
        .chain_update(placeless.to_json())
        .finalize();
    let shown: String = hash[..SHOWN_BYTES]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("proa-{VERSION}-{shown}")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::engine_config::EnginePlace;
    use crate::settings::Settings;

    fn of(arguments: &[&str], path: &str, weights: u8) -> String {
        let arguments: Vec<String> = arguments.iter().map(|a| a.to_string()).collect();
        let settings = Settings::load(&arguments, &[], |_| unreachable!()).unwrap();
        let place = EnginePlace {
            connect: "ipc:///x",
            model_path: Path::new(path),
            engine_index: 0,
            tokenizer_vocab_size: None,
            parent_pid: 1,
        };
        fingerprint(
            [weights; 32],
            &EngineConfig::new(&settings, &place).unwrap(),
        )
    }

    #[test]
    fn the_place_makes_no_difference_and_the_numbers_do() {
        let first = of(&[], "/a", 1);
        assert_eq!(first, of(&[], "/b", 1));
        assert_ne!(first, of(&[], "/a", 2));
        assert_ne!(first, of(&["--dtype", "bfloat16"], "/a", 1));
        assert_eq!(first.len(), format!("proa-{VERSION}-").len() + 8);
    }
}

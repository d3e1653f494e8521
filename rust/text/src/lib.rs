//! Everything between text and token ids: tokenizers, the text of a running choice, stop strings, the text of
//! logprobs, and the random stream of a choice.
//!
//! Does not know HTTP, chat templates or the engine.

mod byte_alphabet;
mod choice_text;
mod error;
mod gguf_vocab;
mod logprob;
mod pre_split;
mod score_merges;
mod stop;
mod stream_key;
mod token_table;
mod tokenizer;
mod utf8_stream;

pub use choice_text::{ChoiceText, TextOptions, TokenEffect};
pub use error::TokenizerError;
pub use logprob::{FLOOR, TokenNames, printable_logprob};
pub use stream_key::{philox4x32_10, stream_key};
pub use tokenizer::Tokenizer;

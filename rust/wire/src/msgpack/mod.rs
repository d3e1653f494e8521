//! The part of msgpack that the wire uses: str keys, bin, ints, f64, no extension types.

mod read;
mod value;
mod write;

pub(crate) use read::{Reader, Token, scan};
pub use value::{Map, Value};
pub(crate) use write::Writer;

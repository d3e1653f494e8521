//! The request reader: JSON under our own rules, read where it lies.
//!
//! `check` proves a body well formed (UTF-8, depth, duplicate keys, surrogates) before anything looks at it; `Raw` then
//! reads values in place, with the path of each for error messages. Numbers keep their text, so that `1e400` and 2^63
//! are out of range, never a syntax error and never rounded. No tree is built except for free-form parts.

mod check;
mod number;
mod object;
mod raw;

pub use check::check;
pub use number::Number;
pub use object::Object;
pub use raw::Raw;

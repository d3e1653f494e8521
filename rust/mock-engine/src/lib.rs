//! A scripted engine: the real protocol over real sockets, without a model.
//!
//! What a request gets is a function of its prompt ([`Script`]), so tests and the front-end benchmarks know every token
//! in advance. It also misbehaves on order: bad rows, unreadable frames, silence, death. Never published.

mod engine;
mod script;

pub use engine::{MockEngine, MockHandle};
pub use script::{Fault, MockConfig, MockRequest, Script};

//! The front end's side of the wire: one engine, started, watched, fed with requests and read.
//!
//! Three threads meet here. The *I/O thread* owns the socket and is the one output dispatcher; it hands tokens to the
//! queues of open requests. The *spawner thread* starts the engine, reaps it and starts it again. Routes call
//! [`EngineClient`] from the async runtime. Knows tokens and numbers, never text.

mod cache_info;
mod client;
mod config;
mod death;
mod dispatch;
mod io;
mod life;
mod open_requests;
mod output;
mod process;
mod record;
mod request;
mod socket;
mod status;
mod wake;

pub use client::EngineClient;
pub use config::{ClientConfig, EngineCommand};
pub use output::{
    Ended, Output, OutputStream, PromptChunk, RequestTimes, RequestUsage, TokenBatch, TokenLogprobs,
};
pub use request::{EngineRequest, RequestGroup};
pub use status::{EngineState, EngineStatus, Fatal};

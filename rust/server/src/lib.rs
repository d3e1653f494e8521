//! The HTTP server: OpenAI-compatible routes over one engine (http-surface.md).
//!
//! A request goes through `router` (head, body, errors), `json` and `fields` (what was sent), its route (`completions`,
//! `chat_route`, `tokens`, `plain_routes`), `submit` (engine requests), `choice` (tokens to text) and `respond` (the
//! answer). Knows no flag and starts no process.

mod chat_route;
mod choice;
mod completions;
mod connections;
pub mod fields;
mod generation;
pub mod json;
mod logprobs;
mod plain_routes;
mod reply;
mod respond;
mod router;
mod serve;
mod state;
mod submit;
mod text_pool;
mod tokens;

pub use fields::UnknownFields;
pub use serve::serve;
pub use state::{ServedModel, ServerConfig, ServerState};

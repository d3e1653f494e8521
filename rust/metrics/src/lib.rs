//! The metrics registry: names, help texts, buckets, lock-free values, and the text that a scrape gets.
//!
//! Owns every family of spec/metrics-and-bench.md that this release feeds, and the handles through which the dispatcher
//! and the routes feed them. Takes no sample itself and knows no socket.

mod buckets;
mod engine;
mod http;
mod process;
mod registry;
mod text;
mod value;

pub use buckets::{BucketFamily, request_tokens_bounds};
pub use engine::{EngineMetrics, StepPhase};
pub use http::HttpMetrics;
pub use registry::{FrontEndMetrics, Metrics, NamespaceError};
pub use text::{Format, label};
pub use value::{Counter, Gauge, Histogram};

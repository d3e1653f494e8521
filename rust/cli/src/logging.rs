//! The log: plain lines on stderr, and how much of it.

use tracing_subscriber::filter::LevelFilter;

use crate::settings::Settings;

/// Starts the log at the level of `--log-level`. A second start in one process keeps the first.
pub fn start(settings: &Settings) {
    let level = match settings.text("log_level") {
        Some("trace") => LevelFilter::TRACE,
        Some("debug") => LevelFilter::DEBUG,
        Some("warning" | "warn") => LevelFilter::WARN,
        Some("error") => LevelFilter::ERROR,
        _ => LevelFilter::INFO,
    };
    let started = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(false)
        .with_max_level(level)
        .try_init();
    if started.is_err() {
        tracing::debug!("the log was already started");
    }
    for note in &settings.notes {
        tracing::info!("{note}");
    }
}

//! What the engine is doing, as probes and routes see it.

use std::time::Duration;

use limits::{ApiError, ErrorKind};

/// Where the engine stands.
#[derive(Clone, Debug, PartialEq)]
pub enum EngineState {
    /// Started, not ready: phase of the start and its progress, 0 to 1, where known.
    Loading {
        /// `config`, `device`, `weights`, `kv`, `graphs`, `warm_up`.
        phase: String,
        /// None = unknown.
        progress: Option<f64>,
    },
    /// Serves.
    Ready,
    /// Serves, but has been silent, or in one step, for too long.
    Stale,
    /// Died; a replacement starts after `retry_in`.
    Restarting {
        /// Estimate.
        retry_in: Duration,
    },
    /// Given up.
    Failed(Fatal),
    /// Asked to end.
    Stopping,
}

/// Why an engine is not started again.
#[derive(Clone, Debug, PartialEq)]
pub enum Fatal {
    /// The start was refused; the line says why. Exit code 2.
    Refused(String),
    /// It died too often. Exit code 70.
    TooManyDeaths(String),
}

impl Fatal {
    /// The process's exit code.
    pub fn exit_code(&self) -> i32 {
        match self {
            Fatal::Refused(_) => 2,
            Fatal::TooManyDeaths(_) => 70,
        }
    }

    /// The line for people.
    pub fn message(&self) -> &str {
        match self {
            Fatal::Refused(line) | Fatal::TooManyDeaths(line) => line,
        }
    }
}

/// The engine's state with what hangs on it.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineStatus {
    /// Where it stands.
    pub state: EngineState,
    /// Process id of the child, 0 = none.
    pub pid: u32,
    /// Starts so far, the first one included.
    pub starts: u32,
}

impl EngineStatus {
    /// The error for a request that cannot be taken now; None when it can.
    pub fn refusal(&self) -> Option<ApiError> {
        let unavailable = |code, message: &str, ms: u64| {
            Some(ApiError {
                retry_after_ms: Some(ms),
                ..ApiError::new(ErrorKind::EngineUnavailable, message).with_code(code)
            })
        };
        match &self.state {
            EngineState::Ready | EngineState::Stale => None,
            EngineState::Loading { .. } if self.starts > 1 => {
                unavailable("engine_restarting", "The engine is restarting.", 2000)
            }
            EngineState::Loading { phase, .. } => unavailable(
                "model_loading",
                &format!("The model is loading ({phase})."),
                2000,
            ),
            EngineState::Restarting { retry_in } => unavailable(
                "engine_restarting",
                "The engine is restarting.",
                (*retry_in + Duration::from_secs(2)).as_millis() as u64,
            ),
            EngineState::Failed(_) => {
                unavailable("engine_restarting", "The engine has been given up.", 60_000)
            }
            EngineState::Stopping => Some(ApiError {
                retry_after_ms: Some(1000),
                ..ApiError::new(ErrorKind::ShuttingDown, "The server is shutting down.")
            }),
        }
    }
}

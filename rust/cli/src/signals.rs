//! SIGTERM and SIGINT, as words. Nothing else is caught.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that ask a server to end.
#[derive(Debug)]
pub struct Signals {
    term: Signal,
    interrupt: Signal,
}

impl Signals {
    /// From now on these signals no longer end the process; must run inside the runtime.
    pub fn listen() -> std::io::Result<Signals> {
        Ok(Signals {
            term: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// The name of the next signal. Dropping the future loses none.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.term.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

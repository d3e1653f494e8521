//! The writer that templates print to, with its caps.
//!
//! Owns the caps on bytes and time. Does not know templates.

use std::io;
use std::time::{Duration, Instant};

/// Takes what a template writes, up to a number of bytes and a moment.
pub(crate) struct CappedOutput {
    /// What was written.
    pub(crate) bytes: Vec<u8>,
    max_bytes: usize,
    deadline: Instant,
    /// Whether a write was refused for its size.
    pub(crate) is_full: bool,
    /// Whether a write was refused for coming too late.
    pub(crate) is_late: bool,
}

impl CappedOutput {
    /// An empty output that takes `max_bytes` until `timeout` from now.
    pub(crate) fn new(max_bytes: usize, timeout: Duration) -> Self {
        CappedOutput {
            bytes: Vec::new(),
            max_bytes,
            deadline: Instant::now() + timeout,
            is_full: false,
            is_late: false,
        }
    }
}

impl io::Write for CappedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.is_full |= bytes.len() > self.max_bytes - self.bytes.len();
        self.is_late |= Instant::now() > self.deadline;
        if self.is_full || self.is_late {
            return Err(io::Error::other("a cap of the template was passed"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

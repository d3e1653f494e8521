//! An eventfd that wakes the I/O thread out of its poll.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Signals are counted, never lost; one `drain` takes them all.
#[derive(Debug)]
pub(crate) struct Wake(OwnedFd);

impl Wake {
    pub fn new() -> io::Result<Self> {
        // SAFETY: eventfd takes no pointer; a result below 0 is checked before it becomes a descriptor.
        let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` is a fresh descriptor that nobody else owns.
        Ok(Wake(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub fn signal(&self) {
        let one = 1_u64;
        // SAFETY: writes the 8 bytes of a local. A full counter (EAGAIN) means that the reader is awake anyway.
        unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    pub fn drain(&self) {
        let mut count = 0_u64;
        // SAFETY: reads 8 bytes into a local; EAGAIN means that there was no signal.
        unsafe { libc::read(self.0.as_raw_fd(), (&raw mut count).cast(), 8) };
    }

    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

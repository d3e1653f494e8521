//! Why a message was dropped.

use std::fmt;

use crate::Kind;

/// The label under which a dropped message is counted (wire.md section 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Unknown kind, or one the other side never sends.
    Kind,
    /// The body is not of the msgpack profile, or a limit is passed.
    Decode,
    /// Keys, types, columns or sums are not those of the tables.
    Columns,
}

impl Reason {
    /// The label's value.
    pub const fn label(self) -> &'static str {
        match self {
            Reason::Kind => "kind",
            Reason::Decode => "decode",
            Reason::Columns => "columns",
        }
    }
}

/// A message that was refused by [`crate::decode`] and has to be dropped and counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadFrame {
    /// What to count it under.
    pub reason: Reason,
    /// The message's kind, where it could be read.
    pub kind: Option<Kind>,
    /// What was wrong, for the log; never holds anything of the message.
    pub what: &'static str,
    /// The column `request_key` of AddRequests or StepOutputs where it could still be read, else empty.
    pub request_keys: Vec<u64>,
}

impl fmt::Display for BadFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind.map_or("unknown", Kind::name);
        write!(
            f,
            "bad frame ({}) in a message of kind {kind}: {}",
            self.reason.label(),
            self.what
        )
    }
}

impl std::error::Error for BadFrame {}

/// The inner form of [`BadFrame`], before the kind is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) reason: Reason,
    pub(crate) what: &'static str,
}

/// A fault counted under `decode`.
pub(crate) const fn undecodable<T>(what: &'static str) -> Result<T, Fault> {
    Err(Fault {
        reason: Reason::Decode,
        what,
    })
}

/// A fault counted under `columns`.
pub(crate) const fn mismatch<T>(what: &'static str) -> Result<T, Fault> {
    Err(Fault {
        reason: Reason::Columns,
        what,
    })
}

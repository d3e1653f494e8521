//! The kinds of message and who sends them.

use crate::fault::{Fault, Reason};

/// Who sent a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The front end sent it, the engine reads it.
    FromFrontEnd,
    /// The engine sent it, the front end reads it.
    FromEngine,
}

/// The first frame of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// First word of the front end.
    Hello = 0x01,
    /// Requests to run.
    AddRequests = 0x02,
    /// Requests to end; without keys the front end's heartbeat.
    Abort = 0x03,
    /// A call of a named method.
    Utility = 0x04,
    /// Ask to exit.
    Shutdown = 0x05,
    /// The engine's state while it starts, then what it can do.
    Ready = 0x81,
    /// What a step gave; without rows the engine's heartbeat.
    StepOutputs = 0x82,
    /// Answer to a Utility.
    UtilityReply = 0x83,
    /// Last word of an engine that gives up.
    EngineFailed = 0x84,
}

impl Kind {
    /// The kind with this byte; None for an unknown one.
    pub const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0x01 => Kind::Hello,
            0x02 => Kind::AddRequests,
            0x03 => Kind::Abort,
            0x04 => Kind::Utility,
            0x05 => Kind::Shutdown,
            0x81 => Kind::Ready,
            0x82 => Kind::StepOutputs,
            0x83 => Kind::UtilityReply,
            0x84 => Kind::EngineFailed,
            _ => return None,
        })
    }

    /// The name of the message.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Hello => "Hello",
            Kind::AddRequests => "AddRequests",
            Kind::Abort => "Abort",
            Kind::Utility => "Utility",
            Kind::Shutdown => "Shutdown",
            Kind::Ready => "Ready",
            Kind::StepOutputs => "StepOutputs",
            Kind::UtilityReply => "UtilityReply",
            Kind::EngineFailed => "EngineFailed",
        }
    }

    /// Who sends messages of this kind.
    pub const fn direction(self) -> Direction {
        match self as u8 {
            0x80.. => Direction::FromEngine,
            _ => Direction::FromFrontEnd,
        }
    }

    /// The kind of a message that came from `direction`.
    pub(crate) fn of_frame(frame: Option<&[u8]>, direction: Direction) -> Result<Self, Fault> {
        let what = match frame {
            Some(&[byte]) => match Kind::from_byte(byte) {
                Some(kind) if kind.direction() == direction => return Ok(kind),
                Some(_) => "the kind belongs to the other direction",
                None => "unknown kind",
            },
            _ => "the first frame is not one byte",
        };
        Err(Fault {
            reason: Reason::Kind,
            what,
        })
    }
}

//! From codes and names on the wire back to the closed lists.

use crate::{AbortCause, EndCause, ErrorKind, FailureKind, Finish};

impl ErrorKind {
    /// The kind written as `name` (`NotSupported`); None for an unknown name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.name() == name)
    }
}

impl Finish {
    /// The finish with this code; None above 16.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// Whether the row is the request's last.
    pub fn is_terminal(self) -> bool {
        self != Finish::NotFinished
    }
}

impl AbortCause {
    /// The cause with this code, from 1; None if there is none.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.iter().copied().find(|cause| *cause as u8 == code)
    }

    /// The metrics cause of a request ended for this reason.
    pub fn end_cause(self) -> EndCause {
        match self {
            AbortCause::ClientGone => EndCause::ClientGone,
            AbortCause::Cancelled => EndCause::Cancelled,
            AbortCause::Deadline => EndCause::Deadline,
            AbortCause::SlowReader => EndCause::SlowReader,
            AbortCause::StopString => EndCause::StopString,
            AbortCause::Shutdown => EndCause::Shutdown,
            AbortCause::Internal => EndCause::Internal,
        }
    }
}

impl FailureKind {
    /// The kind written as `label` on the wire; None for an unknown one.
    pub fn from_label(label: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.label() == label)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_round_trip() {
        for (code, finish) in Finish::ALL.iter().enumerate() {
            assert_eq!(*finish as usize, code, "codes are dense, in order");
            assert_eq!(Finish::from_code(code as u8), Some(*finish));
            assert_eq!(finish.is_terminal(), finish.end_cause().is_some());
        }
        assert_eq!(Finish::from_code(17), None);
        assert_eq!(AbortCause::from_code(0), None);
        assert_eq!(AbortCause::from_code(7), Some(AbortCause::Internal));
        assert_eq!(AbortCause::from_code(8), None);
        assert_eq!(
            ErrorKind::from_name("QueueFull"),
            Some(ErrorKind::QueueFull)
        );
        assert_eq!(
            FailureKind::from_label("step_failed"),
            Some(FailureKind::StepFailed)
        );
    }

    #[test]
    fn failures_carry_a_code_of_their_kind() {
        for finish in Finish::ALL {
            if let Some((kind, code)) = finish.error() {
                assert!(kind.codes().contains(&code), "{finish:?}");
            }
        }
        assert_eq!(
            Finish::Corrupted.error(),
            Some((ErrorKind::GenerationFailed, "nonfinite_logits"))
        );
    }

    #[test]
    fn abort_causes_end_as_their_name_says() {
        for cause in AbortCause::ALL {
            assert_eq!(cause.label(), cause.end_cause().label());
        }
    }

    #[test]
    fn error_codes_are_unique() {
        let mut codes: Vec<&str> = ErrorKind::ALL
            .iter()
            .flat_map(|kind| kind.codes())
            .copied()
            .collect();
        let count = codes.len();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), count);
    }
}

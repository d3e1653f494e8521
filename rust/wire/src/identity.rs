//! The name an engine's socket connects under (wire.md section 1).

/// First byte of every identity: some libraries keep those that begin with 0 for themselves.
const MARK: u8 = 0x50;

/// Which engine, and which process of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The index the front end knows the engine by.
    pub engine_index: u16,
    /// Drawn anew by each process; never 0.
    pub incarnation: u64,
}

impl Identity {
    /// The 11 bytes of the identity.
    pub fn to_bytes(self) -> [u8; 11] {
        let mut bytes = [MARK; 11];
        bytes[1..3].copy_from_slice(&self.engine_index.to_le_bytes());
        bytes[3..].copy_from_slice(&self.incarnation.to_le_bytes());
        bytes
    }

    /// The identity in `bytes`; None if they are none.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; 11] = bytes.try_into().ok()?;
        let (&[mark, low, high], incarnation) = bytes.split_first_chunk()?;
        let incarnation = u64::from_le_bytes(incarnation.try_into().ok()?);
        let engine_index = u16::from_le_bytes([low, high]);
        (mark == MARK && incarnation != 0).then_some(Identity {
            engine_index,
            incarnation,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Identity;

    #[test]
    fn is_as_the_spec_prints_it() {
        let identity = Identity {
            engine_index: 3,
            incarnation: 0x0102_0304_0506_0708,
        };
        let bytes = [0x50, 3, 0, 8, 7, 6, 5, 4, 3, 2, 1];
        assert_eq!(identity.to_bytes(), bytes);
        assert_eq!(Identity::from_bytes(&bytes), Some(identity));
    }

    #[test]
    fn refuses_what_is_none() {
        assert_eq!(Identity::from_bytes(&[0x50; 10]), None);
        assert_eq!(Identity::from_bytes(&[0x50; 12]), None);
        assert_eq!(
            Identity::from_bytes(&[0x51, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]),
            None
        );
        assert_eq!(
            Identity::from_bytes(&[0x50, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            None,
            "incarnation 0"
        );
    }
}

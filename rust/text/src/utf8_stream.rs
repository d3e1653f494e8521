//! Bytes in, whole characters out.
//!
//! Owns the bytes of a character that has begun and not ended. What comes out over all calls is what
//! `String::from_utf8_lossy` makes of all bytes at once, so an incomplete end is exactly one U+FFFD.

/// An incremental lossy UTF-8 decoder.
#[derive(Clone, Debug, Default)]
pub(crate) struct Utf8Stream {
    pending: Vec<u8>,
}

impl Utf8Stream {
    /// Appends to `out` every character that is complete now.
    pub(crate) fn push(&mut self, bytes: &[u8], out: &mut String) {
        if self.pending.is_empty() {
            let used = decode(bytes, out);
            self.pending.extend_from_slice(&bytes[used..]);
        } else {
            self.pending.extend_from_slice(bytes);
            let used = decode(&self.pending, out);
            self.pending.drain(..used);
        }
    }

    /// Whether a character has begun and not ended.
    pub(crate) fn is_inside_character(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Ends the text: an incomplete character becomes one U+FFFD.
    pub(crate) fn finish(&mut self, out: &mut String) {
        if self.is_inside_character() {
            self.pending.clear();
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

/// Decodes `bytes` up to an incomplete end; returns how many were used.
fn decode(bytes: &[u8], out: &mut String) -> usize {
    let mut used = 0;
    loop {
        match std::str::from_utf8(&bytes[used..]) {
            Ok(text) => {
                out.push_str(text);
                return bytes.len();
            }
            Err(error) => {
                let valid = used + error.valid_up_to();
                // The slice up to `valid` was just checked.
                out.push_str(std::str::from_utf8(&bytes[used..valid]).unwrap_or_default());
                let Some(bad) = error.error_len() else {
                    return valid;
                };
                out.push(char::REPLACEMENT_CHARACTER);
                used = valid + bad;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn byte() -> impl Strategy<Value = u8> {
        // Mostly the bytes that begin and continue characters.
        prop_oneof![
            any::<u8>(),
            Just(0xF0),
            Just(0x9F),
            Just(0x98),
            Just(0x80),
            Just(0xE2),
            Just(0x82),
            Just(b'a')
        ]
    }

    proptest! {
        #[test]
        fn equals_the_lossy_decoding_under_every_split(
            pieces in proptest::collection::vec(proptest::collection::vec(byte(), 0..6), 0..20)
        ) {
            let mut stream = Utf8Stream::default();
            let mut out = String::new();
            for piece in &pieces {
                stream.push(piece, &mut out);
            }
            stream.finish(&mut out);
            let all = pieces.concat();
            prop_assert_eq!(out, String::from_utf8_lossy(&all));
        }
    }

    #[test]
    fn half_a_character_waits() {
        let mut stream = Utf8Stream::default();
        let mut out = String::new();
        stream.push("€".as_bytes().split_at(2).0, &mut out);
        assert_eq!(out, "");
        stream.push(&"€".as_bytes()[2..], &mut out);
        assert_eq!(out, "€");
    }
}

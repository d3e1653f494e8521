//! GPT-2's alphabet: 256 printable characters that stand for the 256 bytes.
//!
//! Printable Latin-1 characters stand for their own code; the other bytes follow from U+0100 on, in order.

/// Whether byte `b` stands for itself.
fn is_printable(b: u8) -> bool {
    matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// The character that stands for `byte`.
pub(crate) fn char_of(byte: u8) -> char {
    if is_printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&b| !is_printable(b)).count() as u32;
    char::from_u32(0x100 + before).expect("at most 68 above U+0100, all of them characters")
}

/// The byte that `c` stands for; None outside the alphabet.
pub(crate) fn byte_of(c: char) -> Option<u8> {
    let code = c as u32;
    match u8::try_from(code) {
        Ok(byte) => is_printable(byte).then_some(byte),
        // The 68 others, in order: 0..=32, 127..=160 and 173.
        Err(_) => match code - 0x100 {
            n @ 0..=32 => Some(n as u8),
            n @ 33..=66 => Some((n - 33 + 127) as u8),
            67 => Some(173),
            _ => None,
        },
    }
}

/// `text` as a byte-level vocabulary spells it.
pub(crate) fn spell(text: &str) -> String {
    text.bytes().map(char_of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_one_character() {
        for byte in 0..=255 {
            assert_eq!(byte_of(char_of(byte)), Some(byte));
        }
        assert_eq!(char_of(b' '), 'Ġ');
        assert_eq!(char_of(b'\n'), 'Ċ');
        assert_eq!(byte_of('€'), None);
    }
}

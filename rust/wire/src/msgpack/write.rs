//! Writing: ints in their shortest form, floats as f64.

/// A body under construction.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    pub(crate) fn finish(self) -> Vec<u8> {
        self.bytes
    }

    /// Adds what another writer wrote.
    pub(crate) fn append(&mut self, other: Writer) {
        self.bytes.extend(other.bytes);
    }

    pub(crate) fn nil(&mut self) {
        self.bytes.push(0xc0);
    }

    pub(crate) fn bool(&mut self, value: bool) {
        self.bytes.push(if value { 0xc3 } else { 0xc2 });
    }

    pub(crate) fn float(&mut self, value: f64) {
        self.bytes.push(0xcb);
        self.bytes.extend_from_slice(&value.to_bits().to_be_bytes());
    }

    pub(crate) fn uint(&mut self, value: u64) {
        match value {
            0..=0x7f => self.bytes.push(value as u8),
            0x80..=0xff => self.sized(0xcc, &(value as u8).to_be_bytes()),
            0x100..=0xffff => self.sized(0xcd, &(value as u16).to_be_bytes()),
            0x1_0000..=0xffff_ffff => self.sized(0xce, &(value as u32).to_be_bytes()),
            _ => self.sized(0xcf, &value.to_be_bytes()),
        }
    }

    pub(crate) fn int(&mut self, value: i64) {
        match value {
            0.. => self.uint(value as u64),
            -32..0 => self.bytes.push(value as u8),
            -0x80..-32 => self.sized(0xd0, &(value as i8).to_be_bytes()),
            -0x8000..-0x80 => self.sized(0xd1, &(value as i16).to_be_bytes()),
            -0x8000_0000..-0x8000 => self.sized(0xd2, &(value as i32).to_be_bytes()),
            _ => self.sized(0xd3, &value.to_be_bytes()),
        }
    }

    pub(crate) fn str(&mut self, text: &str) {
        match text.len() {
            len @ 0..=31 => self.bytes.push(0xa0 | len as u8),
            len @ 32..=0xff => self.sized(0xd9, &[len as u8]),
            len => self.wide(0xda, len),
        }
        self.bytes.extend_from_slice(text.as_bytes());
    }

    pub(crate) fn bin(&mut self, bytes: &[u8]) {
        match bytes.len() {
            len @ 0..=0xff => self.sized(0xc4, &[len as u8]),
            len => self.wide(0xc5, len),
        }
        self.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn list(&mut self, len: usize) {
        match len {
            0..=15 => self.bytes.push(0x90 | len as u8),
            _ => self.wide(0xdc, len),
        }
    }

    pub(crate) fn map(&mut self, len: usize) {
        match len {
            0..=15 => self.bytes.push(0x80 | len as u8),
            _ => self.wide(0xde, len),
        }
    }

    fn sized(&mut self, marker: u8, number: &[u8]) {
        self.bytes.push(marker);
        self.bytes.extend_from_slice(number);
    }

    /// A length of 16 or 32 bits; the marker of the 32-bit form follows that of the 16-bit form.
    fn wide(&mut self, marker: u8, len: usize) {
        match u16::try_from(len) {
            Ok(len) => self.sized(marker, &len.to_be_bytes()),
            Err(_) => self.sized(marker + 1, &(len as u32).to_be_bytes()),
        }
    }
}

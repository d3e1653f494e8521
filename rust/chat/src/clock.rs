//! The date in a prompt: `strftime_now`.
//!
//! Owns formatting the local time as Python's `datetime.now().strftime` does.

use std::ffi::CString;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::{Error, ErrorKind};

const MAX_FORMAT_BYTES: usize = 256;
const MAX_TEXT_BYTES: usize = 4096;

/// The local time now in `format` (`%d %b %Y`).
pub(crate) fn strftime_now(format: String) -> Result<String, Error> {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    strftime(&format, now.as_secs() as i64, now.subsec_micros())
}

fn strftime(format: &str, seconds: i64, micros: u32) -> Result<String, Error> {
    let wrong = |reason: &str| {
        Error::new(
            ErrorKind::InvalidOperation,
            format!("strftime_now: {reason}"),
        )
    };
    if format.is_empty() {
        return Ok(String::new());
    }
    if format.len() > MAX_FORMAT_BYTES {
        return Err(wrong("the format is too long"));
    }
    // A time without a zone has none to print, and C knows no microseconds.
    let format = format
        .replace("%f", &format!("{micros:06}"))
        .replace("%Z", "")
        .replace("%z", "");
    // A first character that is cut off again tells an empty result from one that did not fit.
    let format =
        CString::new(format!("x{format}")).map_err(|_| wrong("the format holds a zero byte"))?;
    let seconds = seconds as libc::time_t;
    // SAFETY: all fields of `tm` are integers or a pointer that may be null, so zero bytes are a valid value.
    let mut parts: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to live locals; localtime_r writes to `parts` only.
    if unsafe { libc::localtime_r(&seconds, &mut parts) }.is_null() {
        return Err(wrong("the time cannot be converted"));
    }
    let mut text = vec![0u8; MAX_TEXT_BYTES];
    // SAFETY: `text` has MAX_TEXT_BYTES bytes, `format` ends with a zero byte, `parts` was filled above.
    let len = unsafe {
        libc::strftime(
            text.as_mut_ptr().cast(),
            MAX_TEXT_BYTES,
            format.as_ptr(),
            &parts,
        )
    };
    if len == 0 {
        return Err(wrong("the result is too long"));
    }
    String::from_utf8(text[1..len].to_vec()).map_err(|_| wrong("the result is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_as_python_does() {
        // Midday, so that the date is the same in every zone of the test machine.
        assert_eq!(
            strftime("%d %b %Y", 1_700_049_600, 0).unwrap(),
            "15 Nov 2023"
        );
        assert_eq!(strftime("%f|%Z|%%", 0, 42).unwrap(), "000042||%");
        assert_eq!(strftime("", 0, 0).unwrap(), "");
        assert!(strftime("a\0b", 0, 0).is_err());
        assert!(strftime(&"%A".repeat(128), 0, 0).is_ok());
    }
}

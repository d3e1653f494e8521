//! The message texts of http-surface.md section 0, word for word.

use proa_limits::{ApiError, ErrorKind, ErrorValue, Ranged, quote};

#[test]
fn out_of_range() {
    let error = ApiError::above(Ranged::Integer, "n", 129, 128, Some("--max-n"));
    assert_eq!(
        error.message,
        "Invalid 'n': 129 is above the maximum 128 (--max-n)."
    );
    assert_eq!(
        (error.kind, error.code),
        (ErrorKind::OutOfRange, "integer_above_max_value")
    );
    assert_eq!(error.param.as_deref(), Some("n"));
    assert_eq!(
        (error.limit, error.value),
        (Some(ErrorValue::Int(128)), Some(ErrorValue::Int(129)))
    );
    assert_eq!(error.flag, Some("--max-n"));

    let error = ApiError::above(Ranged::Decimal, "temperature", 2.5, 2, None);
    assert_eq!(
        error.message,
        "Invalid 'temperature': 2.5 is above the maximum 2."
    );
    let error = ApiError::above(Ranged::Decimal, "temperature", "1e400", 2, None);
    assert_eq!(
        error.message,
        "Invalid 'temperature': 1e400 is above the maximum 2."
    );

    let error = ApiError::below(Ranged::String, "stop[0]", 0usize, 1);
    assert_eq!(
        error.message,
        "Invalid 'stop[0]': 0 is below the minimum 1."
    );
    assert_eq!(error.code, "string_below_min_length");
    assert_eq!(error.flag, None);
}

#[test]
fn types_and_names() {
    let error = ApiError::invalid_type("n", "an integer", "a string");
    assert_eq!(
        error.message,
        "Invalid type for 'n': expected an integer, got a string."
    );
    let error = ApiError::unknown_field("temprature", Some("temperature"));
    assert_eq!(
        error.message,
        "Unknown parameter: 'temprature'. Did you mean 'temperature'?"
    );
    assert_eq!(
        ApiError::unknown_field("x", None).message,
        "Unknown parameter: 'x'."
    );
    let error = ApiError::token_id_out_of_range("prompt[7]", 49152, 49152);
    assert_eq!(
        (error.limit, error.value),
        (Some(ErrorValue::Int(49151)), Some(ErrorValue::Int(49152)))
    );
}

#[test]
fn client_text_is_cut_and_cleaned() {
    assert_eq!(quote("a\nb"), "a\u{FFFD}b");
    assert_eq!(
        quote(&"é".repeat(65)).chars().count(),
        65,
        "64 characters and the mark"
    );
    assert_eq!(quote(&"é".repeat(64)).chars().count(), 64);
    let error = ApiError::unknown_field(&"x".repeat(1 << 20), None);
    assert!(error.message.len() < 120);
}

//! A number as the client wrote it.

use limits::{ApiError, ErrorValue, Ranged, quote};

/// The text of a JSON number; exact until somebody asks for a type.
#[derive(Clone, Copy, Debug)]
pub struct Number<'a>(pub(super) &'a str);

/// Decimal exponents beyond this are taken as infinite, or as 0.
const MAX_EXPONENT: i64 = 400;

impl Number<'_> {
    /// The value as an integer if it has no fraction (`16.0` and `1e2` have none); None otherwise, or beyond i128.
    pub fn as_integer(&self) -> Option<i128> {
        if let Ok(integer) = self.0.parse::<i128>() {
            return Some(integer);
        }
        let (mantissa, exponent) = self.0.split_once(['e', 'E']).unwrap_or((self.0, "0"));
        let exponent: i64 = exponent.parse().unwrap_or(MAX_EXPONENT + 1);
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let fraction = fraction.trim_end_matches('0');
        let shift = exponent.checked_sub(fraction.len() as i64)?;
        let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
        if digits == 0 {
            return Some(0);
        }
        if shift < 0 {
            let divisor = 10_i128.checked_pow(u32::try_from(-shift).ok()?)?;
            return (digits % divisor == 0).then(|| digits / divisor);
        }
        10_i128
            .checked_pow(u32::try_from(shift).ok()?)?
            .checked_mul(digits)
    }

    /// Whether the number has a fraction, as far as that can be told; huge ones have none.
    pub fn has_fraction(&self) -> bool {
        self.as_integer().is_none() && self.as_f64().is_finite() && self.as_f64().fract() != 0.0
    }

    /// The nearest f64; infinite beyond its range.
    pub fn as_f64(&self) -> f64 {
        self.0.parse().unwrap_or(f64::INFINITY)
    }

    /// The number for `error.value`.
    pub fn shown(&self) -> ErrorValue {
        match self.as_integer() {
            Some(integer) => ErrorValue::Int(integer),
            None if self.as_f64().is_finite() => ErrorValue::Float(self.as_f64()),
            None => ErrorValue::Text(quote(self.0)),
        }
    }

    /// The value as an integer of min..=max, for the field at `path`.
    pub fn integer_in(
        &self,
        path: &str,
        min: i128,
        max: i128,
        flag: Option<&'static str>,
    ) -> Result<i128, ApiError> {
        if self.has_fraction() {
            return Err(ApiError::invalid_type(
                path,
                "an integer",
                "a number with a fraction",
            ));
        }
        let negative = self.0.starts_with('-');
        match self.as_integer() {
            Some(value) if value < min => Err(ApiError::below(
                Ranged::Integer,
                path,
                self.shown(),
                ErrorValue::Int(min),
            )),
            Some(value) if value > max => Err(ApiError::above(
                Ranged::Integer,
                path,
                self.shown(),
                ErrorValue::Int(max),
                flag,
            )),
            Some(value) => Ok(value),
            None if negative => Err(ApiError::below(
                Ranged::Integer,
                path,
                self.shown(),
                ErrorValue::Int(min),
            )),
            None => Err(ApiError::above(
                Ranged::Integer,
                path,
                self.shown(),
                ErrorValue::Int(max),
                flag,
            )),
        }
    }

    /// The value as a number of min..=max, for the field at `path`.
    pub fn decimal_in(&self, path: &str, min: f64, max: f64) -> Result<f64, ApiError> {
        let value = self.as_f64();
        if value < min {
            return Err(ApiError::below(Ranged::Decimal, path, self.shown(), min));
        }
        if value > max {
            return Err(ApiError::above(
                Ranged::Decimal,
                path,
                self.shown(),
                max,
                None,
            ));
        }
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_exact_and_fractions_are_told() {
        for (text, integer) in [
            ("16.0", Some(16)),
            ("1e2", Some(100)),
            ("1.50e1", Some(15)),
            ("-0", Some(0)),
            ("9223372036854775808", Some(1_i128 << 63)),
            ("120e-1", Some(12)),
            ("1.5", None),
            ("1e400", None),
            ("1e-400", None),
            ("0e99999999999999999999", Some(0)),
        ] {
            assert_eq!(Number(text).as_integer(), integer, "{text}");
        }
        assert!(Number("1.5").has_fraction());
        assert!(!Number("1e400").has_fraction());
        assert!(!Number("16.0").has_fraction());
    }

    #[test]
    fn out_of_range_is_told_by_side() {
        let code = |text: &str| {
            Number(text)
                .integer_in("n", 1, 128, Some("--max-n"))
                .unwrap_err()
                .code
        };
        assert_eq!(code("0"), "integer_below_min_value");
        assert_eq!(code("129"), "integer_above_max_value");
        assert_eq!(code("1e400"), "integer_above_max_value");
        assert_eq!(code("-1e400"), "integer_below_min_value");
        assert_eq!(code("1.5"), "invalid_type");
        assert_eq!(
            Number("1e400").decimal_in("t", 0.0, 2.0).unwrap_err().code,
            "decimal_above_max_value"
        );
    }
}

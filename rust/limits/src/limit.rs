//! One numeric limit: what it is called, which flag sets it, what the flag accepts.

/// A cap of the request surface or of the server (http-surface.md section 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Name in snake case; the flag's name without dashes, and the key in `/v1/settings`.
    pub name: &'static str,
    /// Default value; None = off, or decided at start as `doc` says.
    pub default: Option<i64>,
    /// Smallest value the flag accepts.
    pub min: i64,
    /// Largest value the flag accepts.
    pub max: i64,
    /// The flag, with its dashes; None = a fixed cap.
    pub flag: Option<&'static str>,
    /// Whether the value may change while serving.
    pub live: bool,
    /// Unit of the value, as a word.
    pub unit: &'static str,
    /// One sentence for help texts.
    pub doc: &'static str,
}

impl Limit {
    /// The value of a fixed cap, or the default of a settable one.
    ///
    /// # Panics
    /// In constant evaluation, for a limit without a default.
    pub const fn value(&self) -> i64 {
        match self.default {
            Some(value) => value,
            None => panic!("this limit has no default"),
        }
    }

    /// Checks a value given for the flag; the error is a message without the flag's name.
    pub fn check(&self, value: i64) -> Result<i64, String> {
        if value < self.min {
            return Err(format!("{value} is below the minimum {}", self.min));
        }
        if value > self.max {
            return Err(format!("{value} is above the maximum {}", self.max));
        }
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use crate::{LIMITS, LimitValues, MAX_LOGPROBS, MAX_N};

    #[test]
    fn bounds_are_inclusive() {
        assert_eq!(MAX_N.check(1), Ok(1));
        assert_eq!(MAX_N.check(65_536), Ok(65_536));
        assert_eq!(MAX_N.check(0), Err("0 is below the minimum 1".into()));
        assert_eq!(
            MAX_N.check(65_537),
            Err("65537 is above the maximum 65536".into())
        );
        assert_eq!(MAX_LOGPROBS.check(-1), Ok(-1));
    }

    #[test]
    fn values_start_at_the_defaults_and_can_be_stored() {
        let mut values = LimitValues::default();
        for limit in LIMITS.iter().filter(|limit| limit.flag.is_some()) {
            assert_eq!(values.get(limit.name), limit.default, "{}", limit.name);
            assert!(values.store(limit.name, limit.min));
            assert_eq!(values.get(limit.name), Some(limit.min), "{}", limit.name);
        }
        assert!(
            !values.store("max_template_bytes", 1),
            "a fixed cap cannot be stored"
        );
    }

    #[test]
    fn defaults_lie_in_their_bounds_and_flags_follow_names() {
        for limit in LIMITS {
            assert!(
                limit.default.is_none_or(|value| limit.check(value).is_ok()),
                "{}",
                limit.name
            );
            if let Some(flag) = limit.flag {
                assert_eq!(flag.trim_start_matches('-').replace('-', "_"), limit.name);
            }
        }
    }
}

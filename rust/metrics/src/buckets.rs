//! Bucket bounds (metrics-and-bench.md 1.2). vLLM's bounds are all kept, finer leading ones added.

/// A family of bounds that several histograms share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BucketFamily {
    /// Whole requests, seconds.
    RequestLatency,
    /// First tokens, seconds.
    TimeToFirstToken,
    /// Gaps between tokens, seconds.
    InterTokenLatency,
    /// Tokens of a step.
    IterationTokens,
    /// Choices of a request.
    RequestParamsN,
    /// Preemptions of a request.
    RequestNumPreemptions,
    /// Seconds of an HTTP exchange, by handler.
    HttpDuration,
    /// Seconds of an HTTP exchange, overall.
    HttpDurationHighr,
}

impl BucketFamily {
    /// The bounds, rising strictly, without `+Inf`.
    pub fn bounds(self) -> &'static [f64] {
        match self {
            BucketFamily::RequestLatency => &[
                0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5,
                5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0,
                7680.0,
            ],
            BucketFamily::TimeToFirstToken => &[
                0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06,
                0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
                640.0, 2560.0,
            ],
            BucketFamily::InterTokenLatency => &[
                0.0001, 0.0002, 0.0003, 0.0005, 0.00075, 0.001, 0.0015, 0.002, 0.003, 0.005,
                0.0075, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0,
                2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
            ],
            BucketFamily::IterationTokens => &[
                1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0,
                8192.0, 16384.0, 32768.0, 65536.0,
            ],
            BucketFamily::RequestParamsN => &[1.0, 2.0, 5.0, 10.0, 20.0],
            BucketFamily::RequestNumPreemptions => &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0],
            BucketFamily::HttpDuration => &[0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0],
            BucketFamily::HttpDurationHighr => &[
                0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5,
                2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 7.5, 10.0, 30.0, 60.0,
            ],
        }
    }
}

/// Bounds of token counts of requests: 1 2 5 10 20 50 ... up to the context, then the context itself.
pub fn request_tokens_bounds(max_model_len: u32) -> Vec<f64> {
    let max = f64::from(max_model_len.max(1));
    let mut bounds = Vec::new();
    let mut decade = 1.0;
    'decades: loop {
        for factor in [1.0, 2.0, 5.0] {
            if decade * factor > max {
                break 'decades;
            }
            bounds.push(decade * factor);
        }
        decade *= 10.0;
    }
    if bounds.last() != Some(&max) {
        bounds.push(max);
    }
    bounds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_bounds_end_on_the_context() {
        assert!(request_tokens_bounds(3000).ends_with(&[1000.0, 2000.0, 3000.0]));
        assert!(request_tokens_bounds(2000).ends_with(&[1000.0, 2000.0]));
        assert_eq!(request_tokens_bounds(1), [1.0]);
    }

    #[test]
    fn bounds_rise() {
        for family in [
            BucketFamily::RequestLatency,
            BucketFamily::TimeToFirstToken,
            BucketFamily::InterTokenLatency,
            BucketFamily::IterationTokens,
            BucketFamily::RequestParamsN,
            BucketFamily::RequestNumPreemptions,
            BucketFamily::HttpDuration,
            BucketFamily::HttpDurationHighr,
        ] {
            assert!(family.bounds().is_sorted_by(|a, b| a < b), "{family:?}");
        }
    }
}

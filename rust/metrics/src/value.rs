//! The three kinds of values. Writing one never locks or allocates.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A whole number that only rises.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    /// The total.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A number that is what it was last set to.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// Sets the value.
    pub fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Relaxed);
    }

    /// Adds `delta`, atomically.
    pub fn add(&self, delta: f64) {
        let _ = self.0.fetch_update(Relaxed, Relaxed, |bits| {
            Some((f64::from_bits(bits) + delta).to_bits())
        });
    }

    /// The value.
    pub fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Relaxed))
    }
}

/// Bucket counts and an integer sum. `_count` is derived from the buckets, so it equals `+Inf` in every scrape.
#[derive(Debug)]
pub struct Histogram {
    /// Empty until the bounds are known; samples before that are nobody's, for no request is accepted then.
    buckets: OnceLock<Buckets>,
    sum: AtomicU64,
    units_per_one: f64,
}

#[derive(Debug)]
struct Buckets {
    bounds: Vec<f64>,
    /// Bounds in the unit of samples: nanoseconds, or tokens.
    scaled: Vec<u64>,
    counts: Vec<AtomicU64>,
}

impl Histogram {
    /// A histogram of times; samples are in nanoseconds, bounds and the shown sum in seconds.
    pub fn of_seconds(bounds: &[f64]) -> Self {
        let histogram = Self::without_bounds(1e9);
        histogram.set_bounds(bounds);
        histogram
    }

    /// A histogram of counts.
    pub fn of_counts(bounds: &[f64]) -> Self {
        let histogram = Self::deferred_counts();
        histogram.set_bounds(bounds);
        histogram
    }

    /// A histogram of counts whose bounds come later, by [`Histogram::set_bounds`].
    pub fn deferred_counts() -> Self {
        Self::without_bounds(1.0)
    }

    fn without_bounds(units_per_one: f64) -> Self {
        Histogram {
            buckets: OnceLock::new(),
            sum: AtomicU64::new(0),
            units_per_one,
        }
    }

    /// Sets the bounds, rising strictly, without `+Inf`. The first call counts: samples stay in the buckets they are in.
    pub fn set_bounds(&self, bounds: &[f64]) {
        self.buckets.get_or_init(|| Buckets {
            bounds: bounds.to_vec(),
            scaled: bounds
                .iter()
                .map(|bound| (bound * self.units_per_one).round() as u64)
                .collect(),
            counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
        });
    }

    /// Takes one sample, in nanoseconds or in counts; it lands in the first bucket whose bound is at least it.
    pub fn observe(&self, sample: u64) {
        let Some(buckets) = self.buckets.get() else {
            return;
        };
        let bucket = buckets.scaled.partition_point(|bound| *bound < sample);
        buckets.counts[bucket].fetch_add(1, Relaxed);
        self.sum.fetch_add(sample, Relaxed);
    }

    /// Bounds, without `+Inf`.
    pub fn bounds(&self) -> &[f64] {
        self.buckets.get().map_or(&[], |buckets| &buckets.bounds)
    }

    /// Cumulative counts, `+Inf` last; none before the bounds are set.
    pub fn cumulative(&self) -> Vec<u64> {
        let mut total = 0;
        let counts = self
            .buckets
            .get()
            .map_or(&[][..], |buckets| &buckets.counts);
        counts
            .iter()
            .map(|count| {
                total += count.load(Relaxed);
                total
            })
            .collect()
    }

    /// Number of samples.
    pub fn count(&self) -> u64 {
        self.cumulative().last().copied().unwrap_or(0)
    }

    /// Sum of the samples as an integer: nanoseconds or counts.
    pub fn raw_sum(&self) -> u64 {
        self.sum.load(Relaxed)
    }

    /// Sum of the samples in the unit of the bounds.
    pub fn sum(&self) -> f64 {
        self.raw_sum() as f64 / self.units_per_one
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_on_a_bound_is_in_that_bucket() {
        let histogram = Histogram::of_seconds(&[0.0001, 0.5, 1.0]);
        for ns in [0, 100_000, 100_001, 500_000_000, 1_000_000_001] {
            histogram.observe(ns);
        }
        assert_eq!(histogram.cumulative(), [2, 4, 4, 5]);
        assert_eq!(histogram.count(), 5);
        assert_eq!(histogram.raw_sum(), 1_500_200_002);
    }

    #[test]
    fn bounds_that_come_later_are_set_once() {
        let histogram = Histogram::deferred_counts();
        histogram.observe(1);
        assert_eq!((histogram.count(), histogram.raw_sum()), (0, 0));
        histogram.set_bounds(&[1.0, 2.0]);
        histogram.observe(2);
        histogram.set_bounds(&[5.0]);
        assert_eq!(histogram.cumulative(), [0, 1, 1]);
        assert_eq!(histogram.bounds(), [1.0, 2.0]);
    }

    #[test]
    fn gauges_add_and_set() {
        let gauge = Gauge::default();
        gauge.add(2.0);
        gauge.add(-0.5);
        assert_eq!(gauge.get(), 1.5);
        gauge.set(7.0);
        assert_eq!(gauge.get(), 7.0);
    }
}

//! Families of HTTP exchanges, by route template; series appear with the first exchange of a route.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use crate::buckets::BucketFamily;
use crate::text::{TextWriter, label};
use crate::value::Histogram;

#[derive(Debug)]
struct HandlerSeries {
    duration: Histogram,
    by_status: BTreeMap<&'static str, u64>,
    request_bytes: (u64, u64),
    response_bytes: (u64, u64),
}

/// Counts, durations and sizes by method and route template. Routes are a closed list, so series are bounded.
#[derive(Debug)]
pub struct HttpMetrics {
    handlers: Mutex<BTreeMap<(&'static str, &'static str), HandlerSeries>>,
    highr: Histogram,
}

impl Default for HttpMetrics {
    fn default() -> Self {
        HttpMetrics {
            handlers: Mutex::default(),
            highr: Histogram::of_seconds(BucketFamily::HttpDurationHighr.bounds()),
        }
    }
}

/// `2xx` to `5xx`.
fn status_class(status: u16) -> &'static str {
    match status {
        0..=199 => "1xx",
        200..=299 => "2xx",
        300..=399 => "3xx",
        400..=499 => "4xx",
        _ => "5xx",
    }
}

impl HttpMetrics {
    /// Counts a finished exchange: `handler` is the route template, `none` for unknown paths; a client that left counts
    /// as 499.
    pub fn observe(
        &self,
        method: &'static str,
        handler: &'static str,
        status: u16,
        duration: Duration,
        bytes: (u64, u64),
    ) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.highr.observe(ns);
        let mut handlers = self
            .handlers
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let series = handlers
            .entry((method, handler))
            .or_insert_with(|| HandlerSeries {
                duration: Histogram::of_seconds(BucketFamily::HttpDuration.bounds()),
                by_status: BTreeMap::new(),
                request_bytes: (0, 0),
                response_bytes: (0, 0),
            });
        series.duration.observe(ns);
        *series.by_status.entry(status_class(status)).or_default() += 1;
        series.request_bytes = (series.request_bytes.0 + bytes.0, series.request_bytes.1 + 1);
        series.response_bytes = (
            series.response_bytes.0 + bytes.1,
            series.response_bytes.1 + 1,
        );
    }

    pub(crate) fn write(&self, writer: &mut TextWriter) {
        let handlers = self
            .handlers
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let labels_of = |(method, handler): &(&str, &str)| {
            format!("{},{}", label("method", method), label("handler", handler))
        };
        let name = writer.family(
            "http_requests_total",
            "counter",
            "Finished HTTP exchanges.",
            false,
        );
        for ((method, handler), series) in handlers.iter() {
            for (status, count) in &series.by_status {
                let labels = [
                    label("method", method),
                    label("status", status),
                    label("handler", handler),
                ]
                .join(",");
                writer.sample(&name, &labels, *count as f64);
            }
        }
        let name = writer.family(
            "http_request_duration_seconds",
            "histogram",
            "Head parsed to last body byte handed over.",
            false,
        );
        for (key, series) in handlers.iter() {
            writer.histogram(&name, &labels_of(key), &series.duration);
        }
        let name = writer.family(
            "http_request_duration_highr_seconds",
            "histogram",
            "The same over all routes.",
            false,
        );
        writer.histogram(&name, "", &self.highr);
        for (family, help, pick) in [
            (
                "http_request_size_bytes",
                "Body bytes received.",
                (|s: &HandlerSeries| s.request_bytes) as fn(&HandlerSeries) -> (u64, u64),
            ),
            (
                "http_response_size_bytes",
                "Body bytes sent.",
                |s: &HandlerSeries| s.response_bytes,
            ),
        ] {
            let name = writer.family(family, "summary", help, false);
            for ((_, handler), series) in handlers.iter() {
                let (sum, count) = pick(series);
                writer.sample(
                    &format!("{name}_sum"),
                    &label("handler", handler),
                    sum as f64,
                );
                writer.sample(
                    &format!("{name}_count"),
                    &label("handler", handler),
                    count as f64,
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::Format;

    #[test]
    fn exchanges_count_by_class() {
        let http = HttpMetrics::default();
        http.observe(
            "POST",
            "/v1/completions",
            200,
            Duration::from_millis(3),
            (10, 20),
        );
        http.observe(
            "POST",
            "/v1/completions",
            499,
            Duration::from_millis(3),
            (10, 0),
        );
        let mut writer = TextWriter::new(Format::Prometheus, "proa");
        http.write(&mut writer);
        let text = writer.finish();
        assert!(text.contains(
            "http_requests_total{method=\"POST\",status=\"4xx\",handler=\"/v1/completions\"} 1"
        ));
        assert!(text.contains(
            "http_request_duration_seconds_count{method=\"POST\",handler=\"/v1/completions\"} 2"
        ));
        assert!(text.contains("http_response_size_bytes_sum{handler=\"/v1/completions\"} 20"));
    }
}

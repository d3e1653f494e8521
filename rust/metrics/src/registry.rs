//! All families of a front end, and their text.

use std::sync::{Arc, Mutex, RwLock};

use crate::engine::EngineMetrics;
use crate::http::HttpMetrics;
use crate::process;
use crate::text::{Format, TextWriter, label};
use crate::value::{Counter, Gauge, Histogram};

/// What a sample reads.
pub(crate) enum Value<'a> {
    Counter(&'a Counter),
    Gauge(&'a Gauge),
    Histogram(&'a Histogram),
    Number(f64),
}

/// One family with its series: (escaped labels, value).
pub(crate) struct Family<'a> {
    pub name: &'static str,
    pub kind: &'static str,
    pub help: &'static str,
    pub samples: Vec<(String, Value<'a>)>,
}

impl<'a> Family<'a> {
    pub fn new(
        name: &'static str,
        kind: &'static str,
        help: &'static str,
        samples: Vec<(String, Value<'a>)>,
    ) -> Self {
        Family {
            name,
            kind,
            help,
            samples,
        }
    }
}

/// `--metrics-namespace` is no `[a-z][a-z0-9_]*`.
#[derive(Debug, PartialEq, Eq)]
pub struct NamespaceError(pub String);

/// Families without an engine.
#[derive(Debug)]
pub struct FrontEndMetrics {
    /// By [`FrontEndMetrics::REJECTIONS`].
    admission_rejections: Vec<Counter>,
    build_info: String,
}

impl FrontEndMetrics {
    /// Why a request was refused with 429 or 503.
    pub const REJECTIONS: [&'static str; 5] = [
        "max_num_queued_reqs",
        "max_num_queued_tokens",
        "rate_limit",
        "draining",
        "not_ready",
    ];

    fn new(version: &str, device: &str) -> Self {
        let labels = [
            label("version", version),
            label("commit", option_env!("PROA_COMMIT").unwrap_or("unknown")),
            label("device", device),
        ];
        FrontEndMetrics {
            admission_rejections: Self::REJECTIONS
                .iter()
                .map(|_| Counter::default())
                .collect(),
            build_info: labels.join(","),
        }
    }

    /// Counts a refusal; `reason` is one of [`FrontEndMetrics::REJECTIONS`].
    pub fn reject(&self, reason: &str) {
        if let Some(index) = Self::REJECTIONS.iter().position(|known| *known == reason) {
            self.admission_rejections[index].add(1);
        }
    }

    fn families(&self) -> Vec<Family<'_>> {
        let rejections = Self::REJECTIONS
            .iter()
            .zip(&self.admission_rejections)
            .map(|(reason, counter)| (label("reason", reason), Value::Counter(counter)))
            .collect();
        vec![
            Family::new(
                "admission_rejections_total",
                "counter",
                "Requests refused with 429 or 503.",
                rejections,
            ),
            Family::new(
                "build_info",
                "gauge",
                "Constant 1.",
                vec![(self.build_info.clone(), Value::Number(1.0))],
            ),
        ]
    }
}

/// Everything one `/metrics` shows.
#[derive(Debug)]
pub struct Metrics {
    namespace: String,
    model_name: String,
    engines: RwLock<Vec<Arc<EngineMetrics>>>,
    /// Held while one snapshot's gauges are written and while a scrape reads, so that a scrape sees whole snapshots.
    pub snapshot: Mutex<()>,
    /// Families without an engine.
    pub front_end: FrontEndMetrics,
    /// Families of HTTP exchanges.
    pub http: HttpMetrics,
}

impl Metrics {
    /// An empty registry. `model_name` is the first served name.
    pub fn new(
        namespace: &str,
        model_name: &str,
        version: &str,
        device: &str,
    ) -> Result<Self, NamespaceError> {
        let mut chars = namespace.chars();
        let valid = chars.next().is_some_and(|c| c.is_ascii_lowercase())
            && chars.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        if !valid {
            return Err(NamespaceError(namespace.to_owned()));
        }
        Ok(Metrics {
            namespace: namespace.to_owned(),
            model_name: model_name.to_owned(),
            engines: RwLock::default(),
            snapshot: Mutex::default(),
            front_end: FrontEndMetrics::new(version, device),
            http: HttpMetrics::default(),
        })
    }

    /// The handles of an engine, made on the first call for its index and the same ever after.
    pub fn engine(&self, engine_index: u16) -> Arc<EngineMetrics> {
        let mut engines = self
            .engines
            .write()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        while engines.len() <= usize::from(engine_index) {
            let index = engines.len() as u16;
            engines.push(Arc::new(EngineMetrics::new(&self.model_name, index)));
        }
        Arc::clone(&engines[usize::from(engine_index)])
    }

    /// The text of a scrape.
    pub fn render(&self, format: Format) -> String {
        let _whole = self
            .snapshot
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let engines = self
            .engines
            .read()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut writer = TextWriter::new(format, &self.namespace);
        let by_engine: Vec<Vec<Family<'_>>> =
            engines.iter().map(|engine| engine.families()).collect();
        for index in 0..by_engine.first().map_or(0, Vec::len) {
            let families: Vec<&Family<'_>> =
                by_engine.iter().map(|families| &families[index]).collect();
            write_family(&mut writer, &families, true);
        }
        for family in self.front_end.families() {
            write_family(&mut writer, &[&family], true);
        }
        self.http.write(&mut writer);
        process::write(&mut writer);
        writer.finish()
    }
}

fn write_family(writer: &mut TextWriter, parts: &[&Family<'_>], prefixed: bool) {
    let first = parts[0];
    if parts.iter().all(|part| part.samples.is_empty()) {
        return; // nothing to say yet
    }
    let name = writer.family(first.name, first.kind, first.help, prefixed);
    for (labels, value) in parts.iter().flat_map(|part| &part.samples) {
        match value {
            // Counters of times are kept in nanoseconds.
            Value::Counter(counter) if first.name.ends_with("_seconds_total") => {
                writer.sample(&name, labels, counter.get() as f64 / 1e9)
            }
            Value::Counter(counter) => writer.sample(&name, labels, counter.get() as f64),
            Value::Gauge(gauge) => writer.sample(&name, labels, gauge.get()),
            Value::Histogram(histogram) => writer.histogram(&name, labels, histogram),
            Value::Number(number) => writer.sample(&name, labels, *number),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_series_of_an_engine_exists_at_zero() {
        let metrics = Metrics::new("vllm", "m", "0", "cpu").unwrap();
        metrics.engine(0).become_ready(3000);
        let text = metrics.render(Format::Prometheus);
        for line in [
            "vllm:num_requests_running{model_name=\"m\",engine=\"0\"} 0",
            "vllm:request_success_total{model_name=\"m\",engine=\"0\",finished_reason=\"abort\"} 0",
            "vllm:step_tokens_bucket{model_name=\"m\",engine=\"0\",le=\"16384.0\"} 0",
            "vllm:time_to_first_token_seconds_bucket{model_name=\"m\",engine=\"0\",le=\"0.0005\"} 0",
            "vllm:request_prompt_tokens_bucket{model_name=\"m\",engine=\"0\",le=\"3000.0\"} 0",
            "vllm:wire_bad_frames_total{model_name=\"m\",engine=\"0\",side=\"front_end\",reason=\"decode\"} 0",
            "vllm:admission_rejections_total{reason=\"draining\"} 0",
        ] {
            assert!(text.lines().any(|have| have == line), "{line}\n{text}");
        }
        assert!(!text.contains("proa:") && !text.contains("le=\"1\""));
        assert!(text.contains("process_resident_memory_bytes "));
        let series = text.lines().filter(|line| !line.starts_with('#')).count();
        assert!(series < 900, "{series} series");
    }

    #[test]
    fn before_ready_an_engine_shows_its_start_only() {
        let metrics = Metrics::new("proa", "m", "0", "cpu").unwrap();
        let engine = metrics.engine(0);
        engine.engine_restarts[0].add(1);
        let text = metrics.render(Format::Prometheus);
        let shown: Vec<&str> = text
            .lines()
            .filter(|line| line.contains("engine=\"0\""))
            .collect();
        assert_eq!(
            shown,
            [
                "proa:engine_restarts_total{model_name=\"m\",engine=\"0\",cause=\"crash\"} 1",
                "proa:engine_restarts_total{model_name=\"m\",engine=\"0\",cause=\"hang\"} 0",
                "proa:engine_restarts_total{model_name=\"m\",engine=\"0\",cause=\"requested\"} 0",
                "proa:engine_up{model_name=\"m\",engine=\"0\"} 0",
                "proa:engine_start_seconds{model_name=\"m\",engine=\"0\"} 0",
            ]
        );
        assert!(!text.contains("generation_tokens"));
    }

    #[test]
    fn open_metrics_ends_with_eof_and_names_counters_without_total() {
        let metrics = Metrics::new("proa", "m", "0", "cpu").unwrap();
        metrics.engine(0).become_ready(100);
        let text = metrics.render(Format::of_accept(Some(
            "application/openmetrics-text; version=1.0.0",
        )));
        assert!(text.ends_with("# EOF\n"));
        assert!(text.contains("# TYPE proa:generation_tokens counter"));
        assert!(text.contains("proa:generation_tokens_total{"));
    }

    #[test]
    fn a_bad_namespace_is_refused() {
        for namespace in ["9x", "", "A", "a-b"] {
            assert_eq!(
                Metrics::new(namespace, "m", "0", "cpu").err(),
                Some(NamespaceError(namespace.to_owned()))
            );
        }
    }

    #[test]
    fn handles_outlive_an_engine() {
        let metrics = Metrics::new("proa", "m", "0", "cpu").unwrap();
        metrics.engine(1).generation_tokens.add(3);
        metrics.engine(1).generation_tokens.add(4);
        assert_eq!(metrics.engine(1).generation_tokens.get(), 7);
    }
}

//! The exposition text: Prometheus 0.0.4, or OpenMetrics 1.0 when the scraper asks for it.

use std::fmt::Write;

use crate::value::Histogram;

/// Which text a scrape gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `text/plain; version=0.0.4`.
    Prometheus,
    /// `application/openmetrics-text; version=1.0.0`.
    OpenMetrics,
}

impl Format {
    /// The format an `Accept` header asks for.
    pub fn of_accept(accept: Option<&str>) -> Self {
        if accept.is_some_and(|value| value.contains("application/openmetrics-text")) {
            Format::OpenMetrics
        } else {
            Format::Prometheus
        }
    }

    /// The response's `Content-Type`.
    pub fn content_type(self) -> &'static str {
        match self {
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Writes families one after another.
pub(crate) struct TextWriter {
    pub out: String,
    format: Format,
    namespace: String,
}

impl TextWriter {
    pub fn new(format: Format, namespace: &str) -> Self {
        TextWriter {
            out: String::with_capacity(64 << 10),
            format,
            namespace: namespace.to_owned(),
        }
    }

    /// Begins a family; `prefixed` families get the namespace. Returns the full name.
    pub fn family(&mut self, name: &str, kind: &str, help: &str, prefixed: bool) -> String {
        let full = if prefixed {
            format!("{}:{name}", self.namespace)
        } else {
            name.to_owned()
        };
        // OpenMetrics names a counter's family without its suffix.
        let shown = match self.format {
            Format::OpenMetrics if kind == "counter" => full.trim_end_matches("_total"),
            _ => &full,
        };
        let _ = writeln!(self.out, "# HELP {shown} {help}\n# TYPE {shown} {kind}");
        full
    }

    /// Writes one sample; `labels` is already escaped, without braces.
    pub fn sample(&mut self, name: &str, labels: &str, value: f64) {
        self.out.push_str(name);
        if !labels.is_empty() {
            let _ = write!(self.out, "{{{labels}}}");
        }
        let _ = writeln!(self.out, " {}", number(value));
    }

    pub fn histogram(&mut self, name: &str, labels: &str, histogram: &Histogram) {
        let separator = if labels.is_empty() { "" } else { "," };
        let cumulative = histogram.cumulative();
        let bounds = histogram
            .bounds()
            .iter()
            .map(|bound| bound_text(*bound))
            .chain(["+Inf".to_owned()]);
        for (bound, count) in bounds.zip(&cumulative) {
            let _ = writeln!(
                self.out,
                "{name}_bucket{{{labels}{separator}le=\"{bound}\"}} {count}"
            );
        }
        self.sample(&format!("{name}_sum"), labels, histogram.sum());
        self.sample(
            &format!("{name}_count"),
            labels,
            cumulative.last().copied().unwrap_or(0) as f64,
        );
    }

    pub fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.out.push_str("# EOF\n");
        }
        self.out
    }
}

/// A sample's value: whole numbers without a fraction.
fn number(value: f64) -> String {
    if value.is_nan() {
        "NaN".to_owned()
    } else if value.fract() == 0.0 && value.abs() < 1e15 {
        format!("{value:.0}")
    } else {
        format!("{value}")
    }
}

/// A bound as Python prints it: always with a fraction, `1e+06` from a million up, `1e-05` below 1e-4.
fn bound_text(bound: f64) -> String {
    if bound != 0.0 && (bound.abs() >= 1e6 || bound.abs() < 1e-4) {
        let text = format!("{bound:e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, digits) = exponent
            .strip_prefix('-')
            .map_or(('+', exponent), |digits| ('-', digits));
        return format!("{mantissa}e{sign}{digits:0>2}");
    }
    format!("{bound:?}")
}

/// A label pair, escaped.
pub fn label(name: &str, value: &str) -> String {
    let mut text = format!("{name}=\"");
    for c in value.chars() {
        match c {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            c => text.push(c),
        }
    }
    text.push('"');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_read_as_python_writes_them() {
        let cases = [
            (1.0, "1.0"),
            (0.0005, "0.0005"),
            (16384.0, "16384.0"),
            (0.1, "0.1"),
            (1e6, "1e+06"),
            (2.5e7, "2.5e+07"),
            (1e-5, "1e-05"),
        ];
        for (bound, text) in cases {
            assert_eq!(bound_text(bound), text);
        }
    }

    #[test]
    fn labels_are_escaped() {
        assert_eq!(
            label("model_name", "a\"b\\c\nd"),
            r#"model_name="a\"b\\c\nd""#
        );
    }
}

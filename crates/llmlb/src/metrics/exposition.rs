//! The page as text: Prometheus 0.0.4 or OpenMetrics 1.0. The two differ in the names of counters, in units and
//! in the end of the page.

use std::fmt::{self, Write};

use super::Format;
use super::catalog::{Metric, MetricKind};
use super::histogram::{Bounds, Histogram};

/// A page in progress.
#[derive(Debug)]
pub(crate) struct Exposition {
    format: Format,
    text: String,
}

/// A number of a sample.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Number {
    Whole(u64),
    /// A number of microseconds, written in seconds.
    Micros(u64),
}

impl From<u64> for Number {
    fn from(number: u64) -> Self {
        Self::Whole(number)
    }
}

impl From<usize> for Number {
    fn from(number: usize) -> Self {
        Self::Whole(number as u64)
    }
}

impl From<bool> for Number {
    fn from(is_true: bool) -> Self {
        Self::Whole(u64::from(is_true))
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Whole(number) => write!(f, "{number}"),
            Self::Micros(micros) => write_seconds(f, micros),
        }
    }
}

/// Writes seconds with at least one digit after the point, as OpenMetrics does: `1.0`, `0.0025`. Both
/// formats have the same text, so that a bucket is one series whichever format is scraped.
fn write_seconds(out: &mut impl Write, micros: u64) -> fmt::Result {
    let fraction = format!("{:06}", micros % 1_000_000);
    let digits = fraction.trim_end_matches('0');
    let digits = if digits.is_empty() { "0" } else { digits };
    write!(out, "{}.{digits}", micros / 1_000_000)
}

impl Exposition {
    pub(crate) fn new(format: Format) -> Self {
        Self {
            format,
            text: String::with_capacity(32 << 10),
        }
    }

    /// Begins a metric. Its samples must follow before the next metric begins.
    pub(crate) fn metric(&mut self, metric: &'static Metric) -> Samples<'_> {
        let family = match (self.format, metric.kind) {
            (Format::OpenMetrics, MetricKind::Counter) => {
                metric.name.strip_suffix("_total").unwrap_or(metric.name)
            }
            _ => metric.name,
        };
        let kind = metric.kind.name();
        // Writing to a `String` does not fail.
        let _ = write!(self.text, "# HELP {family} ");
        escape(
            &mut self.text,
            metric.help,
            self.format == Format::OpenMetrics,
        );
        let _ = write!(self.text, "\n# TYPE {family} {kind}\n");
        let units = ["seconds", "bytes"];
        let unit = units.iter().find(|unit| family.ends_with(**unit));
        if let (Format::OpenMetrics, Some(unit)) = (self.format, unit) {
            let _ = writeln!(self.text, "# UNIT {family} {unit}");
        }
        Samples {
            metric,
            text: &mut self.text,
            labels: String::new(),
            bounds: Vec::new(),
        }
    }

    /// Returns the page.
    pub(crate) fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }
}

/// Writer of the samples of one metric.
#[derive(Debug)]
pub(crate) struct Samples<'a> {
    metric: &'static Metric,
    text: &'a mut String,
    /// Labels of the sample, as far as its lines share them.
    labels: String,
    /// Upper bounds of the buckets as text.
    bounds: Vec<String>,
}

impl Samples<'_> {
    /// Writes a sample. `values` are those of the metric's labels, in their order.
    pub(crate) fn put(&mut self, values: &[&str], number: impl Into<Number>) {
        self.set_labels(values);
        self.line("", number.into());
    }

    pub(super) fn put_histogram(&mut self, values: &[&str], bounds: &Bounds, times: &Histogram) {
        if self.bounds.is_empty() {
            let bounds = bounds
                .iter()
                .map(|bound| Number::Micros(*bound).to_string());
            self.bounds = bounds.chain(["+Inf".to_owned()]).collect();
        }
        self.set_labels(values);
        let counts = times.cumulative();
        for (bound, count) in self.bounds.iter().zip(counts) {
            self.text.push_str(self.metric.name);
            self.text.push_str("_bucket{");
            self.text.push_str(&self.labels);
            if !self.labels.is_empty() {
                self.text.push(',');
            }
            self.text.push_str("le=\"");
            self.text.push_str(bound);
            self.text.push_str("\"} ");
            self.text.push_str(itoa::Buffer::new().format(count));
            self.text.push('\n');
        }
        self.line("_sum", Number::Micros(times.sum_micros()));
        self.line("_count", Number::Whole(counts[bounds.len()]));
    }

    fn set_labels(&mut self, values: &[&str]) {
        debug_assert_eq!(values.len(), self.metric.labels.len(), "{:?}", self.metric);
        self.labels.clear();
        for (name, value) in self.metric.labels.iter().zip(values) {
            if !self.labels.is_empty() {
                self.labels.push(',');
            }
            self.labels.push_str(name);
            self.labels.push_str("=\"");
            escape(&mut self.labels, value, true);
            self.labels.push('"');
        }
    }

    fn line(&mut self, suffix: &str, number: Number) {
        self.text.push_str(self.metric.name);
        self.text.push_str(suffix);
        if !self.labels.is_empty() {
            self.text.push('{');
            self.text.push_str(&self.labels);
            self.text.push('}');
        }
        self.text.push(' ');
        match number {
            Number::Whole(number) => self.text.push_str(itoa::Buffer::new().format(number)),
            Number::Micros(micros) => {
                // Writing to a `String` does not fail.
                let _ = write_seconds(self.text, micros);
            }
        }
        self.text.push('\n');
    }
}

/// Appends a text in which backslashes and line feeds are escaped, and double quotes if `quotes`.
fn escape(out: &mut String, text: &str, quotes: bool) {
    if !text.contains(['\\', '\n', '"']) {
        return out.push_str(text); // The usual case.
    }
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' if quotes => out.push_str("\\\""),
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{catalog, histogram};
    use super::*;

    #[test]
    fn counter_has_its_suffix_where_the_format_wants_it() {
        let write = |format| {
            let mut page = Exposition::new(format);
            page.metric(&catalog::RETRIES).put(&[], 7_u64);
            page.finish()
        };
        let help = catalog::RETRIES.help;
        assert_eq!(
            write(Format::Prometheus),
            format!(
                "# HELP llmlb_retries_total {help}\n# TYPE llmlb_retries_total counter\nllmlb_retries_total 7\n"
            )
        );
        assert_eq!(
            write(Format::OpenMetrics),
            format!(
                "# HELP llmlb_retries {help}\n# TYPE llmlb_retries counter\nllmlb_retries_total 7\n# EOF\n"
            )
        );
    }

    #[test]
    fn values_of_labels_are_escaped() {
        let mut page = Exposition::new(Format::Prometheus);
        let value = "a\"} 1\nllmlb_up{x=\"\\";
        page.metric(&catalog::BACKEND_UP).put(&[value], true);
        let text = page.finish();
        let line = text.lines().last().unwrap();
        assert_eq!(
            line,
            r#"llmlb_backend_up{backend="a\"} 1\nllmlb_up{x=\"\\"} 1"#
        );
    }

    #[test]
    fn histogram_has_cumulative_buckets_sum_and_count() {
        let mut times = Histogram::default();
        times.observe(&histogram::QUEUE, Duration::from_millis(3));
        times.observe(&histogram::QUEUE, Duration::from_secs(61));
        let mut page = Exposition::new(Format::OpenMetrics);
        let mut samples = page.metric(&catalog::QUEUE_TIME);
        samples.put_histogram(&["m"], &histogram::QUEUE, &times);
        let text = page.finish();
        for line in [
            "# UNIT llmlb_queue_seconds seconds",
            r#"llmlb_queue_seconds_bucket{model="m",le="0.001"} 0"#,
            r#"llmlb_queue_seconds_bucket{model="m",le="0.005"} 1"#,
            r#"llmlb_queue_seconds_bucket{model="m",le="1.0"} 1"#,
            r#"llmlb_queue_seconds_bucket{model="m",le="+Inf"} 2"#,
            r#"llmlb_queue_seconds_sum{model="m"} 61.003"#,
            r#"llmlb_queue_seconds_count{model="m"} 2"#,
        ] {
            assert!(text.lines().any(|one| one == line), "{line}\n{text}");
        }
    }
}

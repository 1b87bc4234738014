//! Strict parser of the page, for tests.

use std::collections::{BTreeMap, BTreeSet};

use testkit::{LlmlbServer, Request};

/// Value of `Accept` with which Prometheus prefers OpenMetrics.
pub(crate) const OPEN_METRICS: &str = "application/openmetrics-text;version=1.0.0,\
     application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";

/// Labels of a sample by name.
pub(crate) type Labels = BTreeMap<String, String>;

/// A page of metrics.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) text: String,
    /// Types by the name of the metric.
    pub(crate) types: BTreeMap<String, String>,
    /// Samples by name: labels and value.
    samples: Vec<(String, Labels, f64)>,
}

impl Page {
    /// Requests the page in Prometheus text.
    #[track_caller]
    pub(crate) fn of(server: &LlmlbServer) -> Self {
        Self::in_format(server, "text/plain")
    }

    /// Requests the page with this `Accept`.
    #[track_caller]
    pub(crate) fn in_format(server: &LlmlbServer, accept: &str) -> Self {
        let request = Request::get("/metrics").field("accept", accept);
        let response = server.send(&request).unwrap();
        assert_eq!(response.status(), 200, "{}", response.text());
        Self::parse(&response.text())
    }

    /// Parses a page, and fails if it breaks a rule of its format.
    #[track_caller]
    pub(crate) fn parse(text: &str) -> Self {
        let mut page = Self {
            text: text.to_owned(),
            ..Self::default()
        };
        let is_open = text.ends_with("\n# EOF\n");
        let mut current = (String::new(), String::new());
        let mut series = BTreeSet::new();
        for line in text.lines() {
            if let Some(comment) = line.strip_prefix("# ") {
                let words: Vec<&str> = comment.splitn(3, ' ').collect();
                match words[..] {
                    ["HELP", name, help] => {
                        assert!(!page.types.contains_key(name), "{name} begins twice");
                        assert!(help.len() > 3, "{line}");
                        current = (name.to_owned(), String::new());
                    }
                    ["TYPE", name, kind] => {
                        assert_eq!(current.0, name, "{line}");
                        kind.clone_into(&mut current.1);
                        page.types.insert(name.to_owned(), kind.to_owned());
                    }
                    ["UNIT", name, unit] => {
                        assert!(
                            is_open && name == current.0 && name.ends_with(unit),
                            "{line}"
                        );
                    }
                    ["EOF"] => assert!(is_open),
                    _ => panic!("{line}"),
                }
                continue;
            }
            let (name, labels, value) = sample(line);
            let suffix = name.strip_prefix(&*current.0);
            let suffix = suffix.unwrap_or_else(|| panic!("{line} is not of {current:?}"));
            let is_expected = match current.1.as_str() {
                "gauge" => suffix.is_empty(),
                "counter" if is_open => suffix == "_total",
                "counter" => suffix.is_empty() && name.ends_with("_total"),
                "histogram" => ["_bucket", "_sum", "_count"].contains(&suffix),
                _ => false,
            };
            assert!(is_expected, "{line} is not a sample of {current:?}");
            assert_eq!(suffix == "_bucket", labels.contains_key("le"), "{line}");
            assert!(
                series.insert((name.clone(), labels.clone())),
                "twice: {line}"
            );
            page.samples.push((name, labels, value));
        }
        page.check_histograms();
        page
    }

    /// Checks that buckets increase and that the last one has the count.
    fn check_histograms(&self) {
        let mut last: BTreeMap<(String, Labels), f64> = BTreeMap::new();
        for (name, labels, value) in &self.samples {
            if let Some(base) = name.strip_suffix("_bucket") {
                let mut labels = labels.clone();
                labels.remove("le");
                let before = last.insert((base.to_owned(), labels), *value);
                assert!(before.is_none_or(|before| before <= *value), "{name}");
            } else if let Some(base) = name.strip_suffix("_count") {
                let key = (base.to_owned(), labels.clone());
                assert_eq!(last.get(&key), Some(value), "{name}");
            }
        }
    }

    /// Returns the samples of a name whose labels include these.
    pub(crate) fn matching<'a>(
        &'a self,
        name: &'a str,
        wanted: &'a [(&'a str, &'a str)],
    ) -> impl Iterator<Item = (&'a Labels, f64)> {
        let is_one = move |labels: &Labels| {
            let has =
                |(name, value): &(&str, &str)| labels.get(*name).is_some_and(|it| it == value);
            wanted.iter().all(has)
        };
        let named = self.samples.iter().filter(move |(one, ..)| one == name);
        named.filter_map(move |(_, labels, value)| is_one(labels).then_some((labels, *value)))
    }

    /// Returns the sum of the samples of a name whose labels include these; `None` if there are none.
    pub(crate) fn sum(&self, name: &str, wanted: &[(&str, &str)]) -> Option<f64> {
        let values = self.matching(name, wanted).map(|(_, value)| value);
        values.fold(None, |sum, value| Some(sum.unwrap_or(0.0) + value))
    }

    /// Returns the values of a label in all samples of a name.
    pub(crate) fn values(&self, name: &str, label: &str) -> BTreeSet<String> {
        let labels = self.matching(name, &[]).map(|(labels, _)| labels);
        labels
            .filter_map(|labels| labels.get(label).cloned())
            .collect()
    }

    /// Names of all samples.
    pub(crate) fn names(&self) -> BTreeSet<&str> {
        self.samples
            .iter()
            .map(|(name, ..)| name.as_str())
            .collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.samples.len()
    }
}

/// Parses a line with a sample.
#[track_caller]
fn sample(line: &str) -> (String, Labels, f64) {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let end = line.find(|c| !is_name(c)).unwrap();
    let (name, mut rest) = line.split_at(end);
    let mut labels = Labels::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        loop {
            let (label, after) = rest.split_once("=\"").unwrap();
            assert!(label.chars().all(is_name), "{line}");
            let (value, after) = quoted(after);
            assert!(labels.insert(label.to_owned(), value).is_none(), "{line}");
            if let Some(after) = after.strip_prefix('}') {
                rest = after;
                break;
            }
            rest = after.strip_prefix(',').unwrap();
        }
    }
    let value = rest.strip_prefix(' ').unwrap();
    (name.to_owned(), labels, value.parse().unwrap())
}

/// Reads an escaped value up to its closing quote. Returns the value and the rest.
#[track_caller]
fn quoted(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (value, &text[at + 1..]),
            '\\' => value.push(match chars.next().unwrap().1 {
                'n' => '\n',
                c @ ('\\' | '"') => c,
                c => panic!("\\{c}"),
            }),
            c => value.push(c),
        }
    }
    panic!("no closing quote: {text}");
}

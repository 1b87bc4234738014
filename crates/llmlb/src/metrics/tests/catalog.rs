//! The table of metrics in docs/metrics.md is that of the code.

use std::fmt::Write;

use crate::metrics::catalog::{ALL, Metric, MetricKind};

const PAGE: &str = include_str!("../../../../../docs/metrics.md");
const BEGIN: &str = "<!-- generated from metrics/catalog.rs -->\n";
const END: &str = "<!-- end -->\n";

fn generated() -> String {
    let mut table = String::from("| metric | type | labels | meaning |\n|---|---|---|---|\n");
    for metric in ALL {
        let Metric { name, kind, .. } = metric;
        let labels: Vec<String> = metric.labels.iter().map(|one| format!("`{one}`")).collect();
        let (kind, labels, help) = (kind.name(), labels.join(", "), metric.help);
        writeln!(table, "| `{name}` | {kind} | {labels} | {help} |").unwrap();
    }
    table
}

#[test]
fn page_has_the_table_of_metrics() {
    let page = PAGE.replace("\r\n", "\n");
    let written = page
        .split_once(BEGIN)
        .and_then(|(_, rest)| rest.split_once(END));
    let (written, _) = written.expect("docs/metrics.md lost its markers");
    let generated = generated();
    if std::env::var_os("UPDATE_PAGES").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
        std::fs::write(path, page.replace(written, &generated)).unwrap();
        return;
    }
    assert!(
        written == generated,
        "docs/metrics.md is out of date; run this test with UPDATE_PAGES=1, which writes:\n\n{generated}"
    );
}

#[test]
fn names_follow_the_rules_of_prometheus() {
    let mut names: Vec<&str> = ALL.iter().map(|metric| metric.name).collect();
    for metric in ALL {
        let is_total = metric.name.ends_with("_total");
        assert_eq!(
            is_total,
            metric.kind == MetricKind::Counter,
            "{}",
            metric.name
        );
        assert!(metric.help.ends_with('.'), "{}", metric.name);
    }
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), ALL.len(), "a name is there twice");
}

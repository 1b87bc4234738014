//! The alerts and the dashboard in `examples/` use metrics that exist, and `promtool` accepts them.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use testkit::Finished;
use testkit::backends::{backend, ok, serve};

use crate::page::Page;

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../examples")
        .join(name)
}

fn read(name: &str) -> String {
    fs::read_to_string(example(name)).unwrap()
}

/// Names of all metrics in docs/metrics.md.
fn documented() -> BTreeSet<String> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
    let page = fs::read_to_string(page).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let names = rows.filter_map(|row| row.split('`').next());
    let is_metric = |name: &&str| name.starts_with("llmlb_") || name.starts_with("process_");
    names.filter(is_metric).map(str::to_owned).collect()
}

/// Returns the names of metrics in a text.
fn used(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let is_metric = |word: &&str| word.starts_with("llmlb_") || word.starts_with("process_");
    words.filter(is_metric).map(str::to_owned).collect()
}

/// Returns all PromQL expressions of the dashboard.
fn expressions(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(text) if name == "expr" => found.push(text.clone()),
                    value => expressions(value, found),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| expressions(value, found)),
        _ => {}
    }
}

fn dashboard() -> (Value, Vec<String>) {
    let dashboard: Value = serde_json::from_str(&read("grafana/llmlb.json")).unwrap();
    let mut found = Vec::new();
    expressions(&dashboard, &mut found);
    (dashboard, found)
}

#[test]
fn documented_metrics_are_those_of_the_page() {
    let sandbox = testkit::sandbox!();
    let backend = backend(ok);
    let server = serve(&sandbox, &[&backend], &[]);
    let page = Page::of(&server);
    let names: BTreeSet<String> = page.types.keys().cloned().collect();
    assert_eq!(names, documented());
}

#[test]
fn alerts_and_dashboard_use_metrics_that_exist() {
    let known = documented();
    let (dashboard, expressions) = dashboard();
    let queries = dashboard["templating"]["list"].to_string();
    let suffixes = ["_bucket", "_sum", "_count"];
    for (file, text) in [
        ("llmlb-rules.yml", read("prometheus/llmlb-rules.yml")),
        (
            "llmlb-rules-test.yml",
            read("prometheus/llmlb-rules-test.yml"),
        ),
        ("llmlb.json", expressions.join(" ") + &queries),
    ] {
        let used = used(&text);
        assert!(used.len() > 10, "{file}: {used:?}");
        let is_known = |name: &String| {
            let base = suffixes.iter().find_map(|suffix| name.strip_suffix(suffix));
            known.contains(name) || base.is_some_and(|base| known.contains(base))
        };
        let missing: Vec<_> = used.iter().filter(|name| !is_known(name)).collect();
        assert!(missing.is_empty(), "{file} uses {missing:?}");
    }
}

#[test]
fn every_alert_has_a_test_in_which_it_fires() {
    let (rules, tests) = (
        read("prometheus/llmlb-rules.yml"),
        read("prometheus/llmlb-rules-test.yml"),
    );
    let alerts = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "));
    let alerts: Vec<&str> = alerts.collect();
    assert!(alerts.len() > 15, "{alerts:?}");
    for alert in alerts {
        let fires = format!("alertname: {alert}\n        exp_alerts:");
        assert!(tests.contains(&fires), "{alert}");
        let silent = format!("{{eval_time: 60m, alertname: {alert}}}");
        assert!(tests.contains(&silent), "{alert}");
    }
}

#[test]
fn promtool_accepts_the_alerts_and_the_dashboard() {
    if !testkit::has_tool("promtool").unwrap() {
        return;
    }
    let promtool = |words: &[&str], file: &Path| {
        let mut command = Command::new("promtool");
        let done = Finished::run(command.args(words).arg(file));
        assert!(done.output().contains("SUCCESS"), "{}", done.output());
        done.assert_code(0);
    };
    promtool(&["check", "rules"], &example("prometheus/llmlb-rules.yml"));
    promtool(
        &["test", "rules"],
        &example("prometheus/llmlb-rules-test.yml"),
    );
    // promtool reads no dashboards: its expressions become rules.
    let mut rules = String::from("groups:\n- name: dashboard\n  rules:\n");
    let (_, expressions) = dashboard();
    for (number, expression) in expressions.iter().enumerate() {
        let plain = expression
            .replace("$__rate_interval", "1m")
            .replace("$__range", "1h");
        let plain = Value::String(plain).to_string();
        let _ = writeln!(
            rules,
            "  - record: panel:number_{number}\n    expr: {plain}"
        );
    }
    let sandbox = testkit::sandbox!();
    promtool(&["check", "rules"], &sandbox.file("dashboard.yml", rules));
}

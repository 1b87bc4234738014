//! Fields of the access log, as text and as JSON, and their documentation.

use std::collections::BTreeSet;

use serde_json::Value;
use testkit::{
    LlmlbServer,
    backends::{UNPROBED, serve},
    eventually,
};

use crate::support::{fail_over, failing, good};

fn line_with(server: &LlmlbServer, mark: &str) -> String {
    eventually("the request is logged", || {
        let log = server.process.stderr();
        let line = log.lines().find(|line| line.contains(mark));
        line.map(str::to_owned)
    })
}

#[test]
fn text_line_has_reason_candidates_and_times_of_attempts() {
    let sandbox = testkit::sandbox!();
    let (bad, fine) = (failing(503), good());
    let server = serve(&sandbox, &[&bad, &fine], UNPROBED);
    let id = fail_over(&server, &bad);
    let line = line_with(&server, &format!("id={id}"));
    for part in [
        &format!(" backend={} why=fail_over candidates=2 ", fine.address) as &str,
        &format!(" failed={} error=503 failed_ms=", bad.address),
        " tokens=7+5 ",
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
}

#[test]
fn json_log_is_one_object_on_each_line_with_documented_fields() {
    let sandbox = testkit::sandbox!();
    let (bad, fine) = (failing(503), good());
    let mut settings = UNPROBED.to_vec();
    settings.push(("LLMLB_LOG_FORMAT", "json"));
    let server = serve(&sandbox, &[&bad, &fine], &settings);
    let id = fail_over(&server, &bad);
    let line = line_with(&server, &format!("\"{id}\""));
    let object: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(object["message"], "request");
    assert_eq!(object["level"], "info");
    assert_eq!(object["method"], "POST");
    assert_eq!(object["path"], "/v1/chat/completions");
    assert_eq!(object["status"], 200);
    assert_eq!(object["outcome"], "complete");
    assert_eq!(object["model"], "m");
    assert_eq!(object["backend"], fine.address.to_string());
    assert_eq!(object["why"], "fail_over");
    assert_eq!(object["candidates"], 2);
    assert_eq!(object["attempts"][0]["backend"], bad.address.to_string());
    assert_eq!(object["attempts"][0]["error"], "503");
    assert_eq!(object["queue_ms"], 0);
    assert_eq!(object["prompt_tokens"], 7);
    assert_eq!(object["completion_tokens"], 5);
    assert!(!line.contains("hello"), "no prompt is logged: {line}");
    for line in server.process.stderr().lines() {
        if line.starts_with('{') {
            let object: Value = serde_json::from_str(line).unwrap();
            assert!(
                object["time"].is_string() && object["level"].is_string(),
                "{line}"
            );
        }
    }
    let fields: BTreeSet<String> = object.as_object().unwrap().keys().cloned().collect();
    assert_eq!(
        fields,
        documented("### JSON"),
        "docs/troubleshooting.md lists the fields"
    );
}

/// Returns the fields in the first column of the table of a section of docs/troubleshooting.md.
fn documented(heading: &str) -> BTreeSet<String> {
    let page = include_str!("../../../../docs/troubleshooting.md").replace("\r\n", "\n");
    let (_, rest) = page
        .split_once(&format!("\n{heading}\n"))
        .expect("the heading");
    let section = rest.split("\n#").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let cells = rows.filter_map(|row| row.split(" | ").next());
    cells
        .flat_map(|cell| cell.split('`').skip(1).step_by(2).map(str::to_owned))
        .collect()
}

#[test]
fn every_field_of_the_text_line_is_documented() {
    let source = include_str!("../../src/request/access_log/text.rs");
    let page = include_str!("../../../../docs/troubleshooting.md");
    let mut fields = 0;
    for part in source.split("\" ").skip(1) {
        let name = part.split('"').next().unwrap();
        let Some(name) = name.strip_suffix('=').or(name.strip_suffix("=~")) else {
            continue;
        };
        fields += 1;
        assert!(
            page.contains(&format!("`{name}=`")),
            "{name}= is not documented"
        );
    }
    assert!(fields > 10, "the parser finds only {fields} fields");
}

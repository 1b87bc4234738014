//! `llmlb status --json` prints every field that the server reports, and docs/status-json.md names them all.
//! (promise L3)

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;
use testkit::Request;

/// Fields of `/status` that `llmlb status --json` prints under another name.
const RENAMED: [(&str, &str); 3] = [
    ("status", "health"),
    ("version", "llmlb_version"),
    ("uptime_ms", "uptime_s"),
];

fn names(value: &Value) -> BTreeSet<String> {
    value.as_object().unwrap().keys().cloned().collect()
}

#[test]
fn status_json_has_every_field_of_the_servers_response() {
    let sandbox = testkit::sandbox!();
    let server = sandbox.serve("--demo");
    let request = Request::chat("demo", "Hello").field("x-team", "search");
    assert_eq!(server.send(&request).unwrap().status(), 200);
    let response = server.status();
    let document = sandbox.run("status --json").json();
    let printed = &document["servers"][0];

    let of_server = names(&response).into_iter().map(|name| {
        let renamed = RENAMED.iter().find(|(from, _)| *from == name);
        renamed.map_or(name, |(_, to)| (*to).to_owned())
    });
    let missing: Vec<_> = of_server
        .filter(|name| !names(printed).contains(name))
        .collect();
    assert!(missing.is_empty(), "only in /status: {missing:?}");
    assert_eq!(names(&printed["usage"]), names(&response["usage"]));
    assert_eq!(printed["dropped_headers"]["x-team"], 1, "{printed}");

    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/status-json.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, section) = page.split_once("\n## llmlb status --json\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let named: BTreeSet<String> = rows
        .filter_map(|row| row.split(" | ").next())
        .flat_map(|cell| cell.split('`').step_by(2))
        .map(str::to_owned)
        .collect();
    assert_eq!(names(printed), named, "in docs/status-json.md");
    let (_, usage) = section.split_once("\n| `usage` | ").unwrap();
    let usage = usage.lines().next().unwrap();
    for name in names(&printed["usage"]) {
        assert!(usage.contains(&format!("`{name}`")), "usage.{name}");
    }
}

//! `GET /dashboard/snapshot` agrees with what clients sent, and docs/status-json.md has its fields.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;

use crate::world::World;

/// Adds the paths of all fields, such as `backends[].name`. Objects whose names are data have `NAME`.
fn paths(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let last = path.rsplit('.').next();
                let is_data = path.contains('.') && matches!(last, Some("model" | "key"));
                let name = if is_data { "NAME" } else { name };
                let dot = if path.is_empty() { "" } else { "." };
                paths(value, &format!("{path}{dot}{name}"), found);
            }
        }
        Value::Array(all) => {
            for value in all {
                paths(value, &format!("{path}[]"), found);
            }
        }
        _ => {
            found.insert(path.to_owned());
        }
    }
}

#[test]
fn snapshot_agrees_with_what_was_sent_and_has_the_documented_fields() {
    let world = World::start();
    for _ in 0..3 {
        assert_eq!(world.chat("m"), 200);
    }
    assert_eq!(world.chat("broken"), 500);
    assert_eq!(world.chat("unknown"), 404);
    let _stream = world.open_stream();
    // The files are read at the first view, and again after 30 s at the earliest.
    let snapshot = world.until("the files are read", |snapshot| {
        !snapshot["usage"].is_null() && snapshot["spool"]["books"] == "balanced"
    });

    assert_eq!(snapshot["requests"], 6, "{snapshot:#}");
    assert_eq!(snapshot["in_flight"], 1);
    assert_eq!(snapshot["pid"], world.server.pid());
    assert_eq!(snapshot["port"], world.server.port());
    let [good, bad] = [&snapshot["backends"][0], &snapshot["backends"][1]];
    assert_eq!(
        (&good["name"], &good["state"]),
        (&"good".into(), &"up".into())
    );
    assert_eq!((&good["requests"], &good["failed"]), (&4.into(), &0.into()));
    assert_eq!(
        (&good["in_flight"], &good["max_concurrent"]),
        (&1.into(), &8.into())
    );
    assert_eq!((&bad["requests"], &bad["failed"]), (&1.into(), &1.into()));

    let live = &snapshot["live"][0];
    assert_eq!(
        (&live["model"], &live["backend"]),
        (&"held".into(), &"good".into())
    );
    assert_eq!(
        (&live["key"], &live["state"]),
        (&"alice".into(), &"streaming".into())
    );
    assert!(live["tokens"].as_u64().unwrap() > 0, "{live}");

    let errors = snapshot["errors"].as_array().unwrap();
    let statuses: Vec<_> = errors.iter().map(|error| &error["status"]).collect();
    assert_eq!(statuses, [404, 500], "newest first");
    assert_eq!(errors[0]["code"], "model_not_found");
    assert_eq!(errors[1]["backend"], "bad");

    // The current hour may have begun while the test ran.
    let hours = snapshot["usage"]["hours"].as_array().unwrap();
    let sum = |field: &str, name: &str, what: &str| -> u64 {
        let sums = hours
            .iter()
            .filter_map(|hour| hour[field][name][what].as_u64());
        sums.sum()
    };
    assert_eq!(hours.len(), 24);
    assert_eq!(sum("model", "m", "requests"), 3);
    assert_eq!(
        (sum("model", "m", "prompt"), sum("model", "m", "completion")),
        (21, 15)
    );
    assert_eq!(sum("key", "alice", "requests"), 5);

    let limit = &snapshot["limits"][0];
    assert_eq!(
        (&limit["key"], &limit["kind"]),
        (&"alice".into(), &"requests_per_minute".into())
    );
    assert_eq!(limit["limit"], 100);

    let mut found = BTreeSet::new();
    paths(&snapshot, "", &mut found);
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/status-json.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, section) = page.split_once("\n## GET /dashboard/snapshot\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    // Objects that can be `null` have rows of their own.
    let is_object = |name: &String| {
        let inner = format!("{name}.");
        found.iter().any(|path| path.starts_with(&inner))
    };
    let named: BTreeSet<String> = rows
        .filter_map(|row| row.split(" | ").next())
        .flat_map(|cell| cell.split('`').step_by(2).map(str::to_owned))
        .filter(|name| !is_object(name))
        .collect();
    assert_eq!(found, named, "in docs/status-json.md");

    world.gate.open();
    world.until("the stream has ended", |snapshot| {
        snapshot["in_flight"] == 0 && snapshot["live"].as_array().unwrap().is_empty()
    });
}

#[test]
fn tokens_of_a_stream_count_while_it_runs() {
    let world = World::start();
    let stream = world.open_stream();
    let rate = |snapshot: &Value| snapshot["completion_tokens_per_s"].as_f64().unwrap();
    let snapshot = world.until("the rate rises", |snapshot| rate(snapshot) > 0.0);
    assert_eq!(snapshot["in_flight"], 1, "the stream has not ended");
    let of_backend = snapshot["backends"][0]["tokens_per_s"].as_f64().unwrap();
    assert!((of_backend - rate(&snapshot)).abs() < 0.01, "{snapshot:#}");
    drop(stream);
    world.gate.open();
}

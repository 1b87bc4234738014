//! Examples of the documentation work: the receiver in `examples/`, and staging a file by hand.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::UsageSandbox;
use testkit::{Finished, UsageReceiver, eventually};

fn python(script: &str, words: &[&str]) -> Option<Finished> {
    let mut command = Command::new("python3");
    command
        .arg("-c")
        .arg(script)
        .args(words)
        .stdin(Stdio::null());
    command.output().ok().map(Finished::from)
}

#[test]
fn example_receiver_stores_each_record_once() {
    if python("import sqlite3", &[]).is_none_or(|ran| ran.code != Some(0)) {
        return testkit::skip("python3").unwrap();
    }
    let sandbox = UsageSandbox::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    drop(listener);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/receiver.py");
    let lines = std::fs::read_to_string(&script).unwrap().lines().count();
    assert!(lines <= 30, "{lines} lines");
    let database = sandbox.file("usage.db", "").to_str().unwrap().to_owned();
    let mut receiver = Command::new("python3");
    receiver
        .arg(script)
        .args([&port, &database])
        .env("TOKEN", "s3cret");
    let receiver = sandbox.start(&mut receiver);
    let url = format!("http://127.0.0.1:{port}/usage");
    eventually("the receiver accepts connections", || {
        std::net::TcpStream::connect(format!("127.0.0.1:{port}")).ok()
    });

    sandbox.stage(250);
    let deliver = |token: &str, format: &str| {
        let words = ["deliver", "--now", "--to", &url, "--format", format];
        Finished::run(sandbox.command(&words).env("LLMLB_USAGE_TOKEN", token))
    };
    let ran = deliver("wrong", "json");
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let ran = deliver("s3cret", "json");
    assert_eq!(ran.code, Some(0), "{ran:?} {}", receiver.output());
    // The example receiver must also accept batches in the format CloudEvents.
    sandbox.stage(30);
    let ran = deliver("s3cret", "cloudevents");
    assert_eq!(ran.code, Some(0), "{ran:?} {}", receiver.output());
    // Send the same batch twice, as a sender does whose response was lost. The receiver must store
    // its record once.
    let send_twice = "import sys, json, urllib.request as u\n\
        body = json.dumps({'records': [{'id': 'a', 'n': 1}]}).encode()\n\
        head = {'Authorization': 'Bearer s3cret', 'Idempotency-Key': 'k'}\n\
        for _ in range(2):\n    \
            u.urlopen(u.Request(sys.argv[1], body, head))";
    let ran = python(send_twice, &[&url]).unwrap();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let count = "import sqlite3, sys\n\
        print(sqlite3.connect(sys.argv[1]).execute('SELECT count(*) FROM records').fetchone()[0])";
    let ran = python(count, &[&database]).unwrap();
    assert_eq!(ran.stdout.trim(), "281", "{ran:?}");
}

/// Linux only: the commands of the example need GNU tools.
#[cfg(target_os = "linux")]
#[test]
fn file_is_staged_with_the_documented_commands() {
    let page = include_str!("../../../../docs/billing.md");
    let (_, rest) = page.split_once("```sh\nstaging=~/").expect("the example");
    let (script, _) = rest.split_once("```").expect("the end of the example");
    let sandbox = UsageSandbox::new();
    sandbox.stage(1);
    let home = sandbox.data();
    let data = home.join(".local/share/llmlb");
    std::fs::create_dir_all(data.join("_staging")).unwrap();
    let mut shell = Command::new("sh");
    shell
        .args(["-ec", &format!("staging=~/{script}")])
        .env("HOME", &home);
    for _ in 0..3 {
        let ran = Finished::run(&mut shell);
        assert_eq!((ran.code, ran.output().as_str()), (Some(0), ""));
    }
    let ran = sandbox.usage(&["--data", data.to_str().unwrap(), "consolidate"]);
    assert_eq!(
        ran.stdout, "consolidated 3 entries: 3 records in 1 batch\n",
        "{ran:?}"
    );
}

/// Returns the names in backquotes in the first column of a Markdown table: the fields in
/// `docs/billing.md`, which a test compares with those of a record.
fn listed(table: &str) -> Vec<&str> {
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let names = rows.flat_map(|row| row[2..].split(" | ").next().unwrap_or_default().split(", "));
    names.map(|name| name.trim_matches('`')).collect()
}

#[test]
fn billing_page_names_every_field_of_a_record() {
    let page = include_str!("../../../../docs/billing.md");
    let (_, rest) = page.split_once("## What is recorded").expect("the section");
    let (section, _) = rest
        .split_once("**Never recorded")
        .expect("the end of the example");
    let fields = listed(section);
    let sandbox = UsageSandbox::new();
    let receiver = UsageReceiver::always(200);
    let settings = [
        ("LLMLB_USAGE_URL", receiver.url.as_str()),
        ("LLMLB_USAGE_EVERY", "1s"),
    ];
    let server = sandbox.serve(&settings);
    let body = r#"{"model":"demo","messages":[{"role":"user","content":"Rumpelstilzchen"}]}"#;
    server.fetch("POST /v1/chat/completions", body);
    server.until("the record is delivered", |usage| usage["delivered"] == 1);
    let request = receiver.batches().remove(0);
    let body = request.json();
    let record = body["records"][0].as_object().expect("a record");
    let undocumented: Vec<_> = (record.keys())
        .filter(|name| !fields.contains(&name.as_str()))
        .collect();
    assert!(undocumented.is_empty(), "not on the page: {undocumented:?}");
    let optional = [
        "served_model",
        "team",
        "reason",
        "reasoning_tokens",
        "estimated_tokens",
        "queue_ms",
        "sent_ms",
    ];
    for field in fields.iter().filter(|field| !optional.contains(field)) {
        assert!(record.contains_key(*field), "no {field} in {record:?}");
    }
    let text = body.to_string();
    assert!(!text.contains("Rumpelstilzchen"), "{text}");
}

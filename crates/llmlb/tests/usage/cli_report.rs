//! `llmlb usage` without a verb: the report of used tokens.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use uuid::{NoContext, Timestamp, Uuid};

use crate::support::UsageSandbox;
use testkit::{Finished, UsageReceiver};

/// Returns a record like those of `serve`, from this number of hours ago.
fn record(hours: u64, fields: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let then = now.checked_sub(Duration::from_secs(hours * 3600)).unwrap();
    let id = Uuid::new_v7(Timestamp::from_unix(
        NoContext,
        then.as_secs(),
        then.subsec_nanos(),
    ));
    format!("{{\"id\":\"{id}\",{fields}}}\n")
}

fn stage(sandbox: &UsageSandbox, lines: &str) {
    let ran = sandbox.usage_with(&["stage"], lines);
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

/// Stages records of each kind that a report must distinguish: reported, estimated, without a key,
/// without tokens.
fn fill(sandbox: &UsageSandbox) {
    let lines = [
        record(
            0,
            r#""model":"llama3","key":"acme","backend":"gpu-1","prompt_tokens":1000000,
               "completion_tokens":234567,"cached_tokens":512,"tokens":1234567,
               "tokens_from":"reported","outcome":"complete""#,
        ),
        record(
            0,
            r#""model":"llama3","key":"zeta","backend":"gpu-2","prompt_tokens":10,
               "completion_tokens":5,"cached_tokens":0,"tokens":15,
               "tokens_from":"estimated","outcome":"cancelled""#,
        ),
        record(
            0,
            r#""model":"phi, \"small\"","key":null,"backend":"gpu-1","prompt_tokens":2,
               "completion_tokens":1,"cached_tokens":0,"tokens":3,
               "tokens_from":"reported","outcome":"complete""#,
        ),
        record(
            0,
            r#""model":null,"key":null,"backend":null,"tokens_from":"none","outcome":"refused""#,
        ),
    ];
    stage(
        sandbox,
        &lines.map(|line| line.replace('\n', " ") + "\n").concat(),
    );
}

fn archive(sandbox: &UsageSandbox) {
    assert_eq!(sandbox.usage(&["deliver", "--archive"]).code, Some(0));
}

fn report(sandbox: &UsageSandbox, words: &[&str]) -> Finished {
    let ran = sandbox.usage(words);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    ran
}

fn requests(sandbox: &UsageSandbox, words: &[&str]) -> u64 {
    let ran = report(sandbox, &[words, &["--json"]].concat());
    ran.json()["total"]["requests"].as_u64().unwrap()
}

#[test]
fn report_is_the_same_for_staged_batched_and_delivered_records() {
    let sandbox = UsageSandbox::new();
    fill(&sandbox);
    let check = |state: &str| {
        let ran = report(&sandbox, &[]);
        let lines: Vec<&str> = ran.stdout.lines().collect();
        assert!(
            lines[0].starts_with("Usage since ") && lines[0].ends_with(" (UTC)"),
            "{ran:?}"
        );
        assert_eq!(
            lines[1..],
            [
                "",
                "MODEL         REQUESTS     PROMPT  COMPLETION  CACHED      TOTAL  ESTIMATED  NO TOKENS",
                "llama3               2  1,000,010     234,572     512  1,234,582          1          0",
                "phi, \"small\"         1          2           1       0          3          0          0",
                "-                    1          0           0       0          0          0          1",
                "TOTAL                4  1,000,012     234,573     512  1,234,585          1          1",
            ],
            "{state}"
        );
    };
    check("staged");
    assert_eq!(sandbox.usage(&["consolidate"]).code, Some(0));
    check("in batches");
    let receiver = UsageReceiver::always(200);
    assert_eq!(
        sandbox.usage(&["deliver", "--to", &receiver.url]).code,
        Some(0)
    );
    check("delivered");
}

#[test]
fn terminal_control_characters_are_escaped_in_every_format() {
    let sandbox = UsageSandbox::new();
    // The name contains an escape sequence, its C1 form, a line end, a right-to-left override and a line
    // separator.
    let name = "a\u{1b}[2J\u{9b}31m\r\nb\u{202e}c\u{2028}";
    let json = serde_json::to_string(name).unwrap();
    let line = record(
        0,
        &format!(r#""model":{json},"tokens":1,"tokens_from":"reported""#),
    );
    stage(&sandbox, &line);
    for words in [&[][..], &["--csv"], &["--json"]] {
        let ran = report(&sandbox, words);
        let is_unsafe =
            |c: char| (c.is_control() && c != '\n') || matches!(c, '\u{202e}' | '\u{2028}');
        assert!(
            !ran.stdout.contains(is_unsafe),
            "{words:?}: {:?}",
            ran.stdout
        );
    }
    let document = report(&sandbox, &["--json"]).json();
    assert_eq!(document["rows"][0]["model"], name);
    let table = report(&sandbox, &["--csv"]).stdout;
    let escaped = r"a\u001b[2J\u009b31m\u000d\u000ab\u202ec\u2028,1,";
    assert!(
        table.lines().nth(1).unwrap().starts_with(escaped),
        "{table}"
    );
}

#[test]
fn report_is_available_as_json_and_csv() {
    let sandbox = UsageSandbox::new();
    fill(&sandbox);
    archive(&sandbox);
    let document = report(&sandbox, &["--by", "key,backend", "--json"]).json();
    assert_eq!(document["version"], 1);
    assert_eq!(document["by"], json!(["key", "backend"]));
    assert_eq!(document["until"], Value::Null);
    assert!(
        document["from"].as_str().unwrap().ends_with(":00:00Z"),
        "{document}"
    );
    assert_eq!(document["problems"], json!([]));
    assert_eq!(
        document["rows"][0],
        json!({
            "key": "acme", "backend": "gpu-1", "requests": 1, "prompt_tokens": 1_000_000,
            "completion_tokens": 234_567, "cached_tokens": 512, "tokens": 1_234_567,
            "estimated": 0, "without_tokens": 0, "outcomes": { "complete": 1 },
        })
    );
    assert_eq!(
        document["total"],
        json!({
            "requests": 4, "prompt_tokens": 1_000_012, "completion_tokens": 234_573,
            "cached_tokens": 512, "tokens": 1_234_585, "estimated": 1, "without_tokens": 1,
            "outcomes": { "complete": 2, "cancelled": 1, "refused": 1 },
        })
    );
    let ran = report(&sandbox, &["--by", "model", "--csv"]);
    assert_eq!(
        ran.stdout,
        "model,requests,prompt_tokens,completion_tokens,cached_tokens,tokens,estimated,without_tokens\n\
         llama3,2,1000010,234572,512,1234582,1,0\n\
         \"phi, \"\"small\"\"\",1,2,1,0,3,0,0\n\
         ,1,0,0,0,0,0,1\n"
    );
    let twice = report(&sandbox, &["--by", "key", "--by", "key,backend", "--csv"]);
    assert!(
        twice.stdout.starts_with("key,backend,requests,"),
        "{twice:?}"
    );
}

#[test]
fn days_are_sorted_and_since_and_until_bound_the_report() {
    let sandbox = UsageSandbox::new();
    let lines = [0, 0, 26, 74, 24 * 50].map(|hours| record(hours, r#""model":"m","tokens":1"#));
    stage(&sandbox, &lines.concat());
    let check = || {
        assert_eq!(requests(&sandbox, &[]), 4, "the last 30 days");
        assert_eq!(requests(&sandbox, &["--since", "24h"]), 2);
        assert_eq!(requests(&sandbox, &["--since", "27h"]), 3);
        assert_eq!(requests(&sandbox, &["--since", "27h", "--until", "25h"]), 1);
        assert_eq!(requests(&sandbox, &["--since", "60d"]), 5);
        assert_eq!(requests(&sandbox, &["--since", "2020-01-01"]), 5);
        assert_eq!(
            requests(&sandbox, &["--since", "2020-01", "--until", "2020-12"]),
            0
        );
        let document = report(&sandbox, &["--by", "day,model", "--json"]).json();
        let rows = document["rows"].as_array().unwrap();
        let days: Vec<&str> = rows
            .iter()
            .map(|row| row["day"].as_str().unwrap())
            .collect();
        let mut sorted = days.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(days, sorted);
        // The report of the oldest day must count the same requests as the row of that day in the
        // report of all days.
        let oldest = rows[0]["day"].as_str().unwrap();
        let count = rows[0]["requests"].as_u64().unwrap();
        assert_eq!(
            requests(&sandbox, &["--since", oldest, "--until", oldest]),
            count
        );
        let ran = report(&sandbox, &["--since", oldest, "--until", oldest]);
        assert!(
            ran.stdout
                .starts_with(&format!("Usage on {oldest} (UTC)\n")),
            "{ran:?}"
        );
    };
    check();
    archive(&sandbox);
    check();
}

#[test]
fn report_without_records_hints_how_to_record_usage() {
    let sandbox = UsageSandbox::new();
    for words in [&[] as &[&str], &["--since", "today"]] {
        let ran = sandbox.usage(words);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(ran.stdout.starts_with("No usage since "), "{ran:?}");
        assert!(ran.stderr.contains("with `llmlb serve`"), "{ran:?}");
        assert!(ran.stderr.contains("with `llmlb usage stage`\n"), "{ran:?}");
    }
    let document = report(&sandbox, &["--json"]).json();
    assert_eq!(
        (&document["rows"], &document["total"]["requests"]),
        (&json!([]), &0.into())
    );
    assert_eq!(report(&sandbox, &["--csv"]).stdout.lines().count(), 1);
    assert!(!sandbox.data().exists(), "a report creates no directory");
    // A missing data directory is an error only if `--data` names it: the name may be misspelt.
    let ran = sandbox.usage(&["--data", "gone"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{ran:?}");
}

/// Returns the names and contents of all files in the data directory.
fn files(sandbox: &UsageSandbox) -> BTreeMap<String, Vec<u8>> {
    let parts = ["_staging", "spool", "sent", "usage", "archive", "failed"];
    let named = |part: &str| {
        let part = part.to_owned();
        let names = sandbox.files(&part);
        names.into_iter().map(move |name| format!("{part}/{name}"))
    };
    let names = parts.iter().flat_map(|part| named(part));
    names
        .map(|name| {
            (
                name.clone(),
                std::fs::read(sandbox.data().join(&name)).unwrap(),
            )
        })
        .collect()
}

#[test]
fn report_changes_no_file() {
    let sandbox = UsageSandbox::new();
    fill(&sandbox);
    archive(&sandbox);
    fill(&sandbox);
    let before = files(&sandbox);
    assert_eq!(requests(&sandbox, &["--since", "7d"]), 8);
    report(&sandbox, &["--by", "day"]);
    assert_eq!(files(&sandbox), before);
}

#[test]
fn report_is_correct_while_a_server_consolidates_and_delivers() {
    let sandbox = UsageSandbox::new();
    let receiver = UsageReceiver::always(200);
    let server = sandbox.serve(&[
        ("LLMLB_USAGE_EVERY", "1s"),
        ("LLMLB_USAGE_URL", &receiver.url),
    ]);
    for count in 1..=20 {
        sandbox.stage(5);
        assert_eq!(requests(&sandbox, &[]), 5 * count);
    }
    server.until("all records are delivered", |usage| {
        usage["delivered"] == 100
    });
    assert_eq!(requests(&sandbox, &[]), 100);
    assert_eq!(requests(&sandbox, &["--since", "1h"]), 100);
}

#[test]
fn request_is_in_the_report_as_soon_as_its_response_is_received() {
    let sandbox = UsageSandbox::new();
    let server = sandbox.serve(&[("LLMLB_USAGE_EVERY", "1s")]);
    let (mut prompt, mut completion) = (0, 0);
    for count in 1..=20 {
        let body = r#"{"model":"demo","max_tokens":4,"messages":[{"role":"user","content":"Hi"}]}"#;
        let answer = server.fetch("POST /v1/chat/completions", body);
        let answer: Value = serde_json::from_str(&answer).unwrap();
        prompt += answer["usage"]["prompt_tokens"].as_u64().unwrap();
        completion += answer["usage"]["completion_tokens"].as_u64().unwrap();
        let document = report(&sandbox, &["--since", "1h", "--json"]).json();
        assert_eq!(document["rows"].as_array().unwrap().len(), 1, "{document}");
        let row = &document["rows"][0];
        assert_eq!(
            (&row["model"], &row["requests"]),
            (&"demo".into(), &count.into())
        );
        assert_eq!(row["prompt_tokens"], prompt);
        assert_eq!(row["completion_tokens"], completion);
        assert_eq!(row["tokens"], prompt + completion);
        assert_eq!(
            (&row["estimated"], &row["without_tokens"]),
            (&0.into(), &0.into())
        );
    }
}

#[test]
fn damaged_totals_are_reported_and_the_rest_is_shown() {
    let sandbox = UsageSandbox::new();
    stage(&sandbox, &record(48, r#""model":"old","tokens":1"#));
    stage(&sandbox, &record(0, r#""model":"new","tokens":1"#));
    archive(&sandbox);
    let mut days = sandbox.files("usage");
    days.retain(|name| name.len() == "2026-11-16.json".len());
    let path = sandbox.data().join("usage").join(&days[0]);
    std::fs::write(&path, "{}").unwrap();
    let ran = sandbox.usage(&["--since", "60d"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.stdout.contains("\nnew ") && !ran.stdout.contains("old"),
        "{ran:?}"
    );
    assert!(
        ran.stderr.contains("1 file with totals cannot be read"),
        "{ran:?}"
    );
    assert!(ran.stderr.contains(&days[0]), "{ran:?}");
    let ran = sandbox.usage(&["--since", "60d", "--json"]);
    assert_eq!(ran.json()["problems"].as_array().unwrap().len(), 1);
}

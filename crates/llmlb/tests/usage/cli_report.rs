//! `llmlb usage`: how much was used.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use uuid::{NoContext, Timestamp, Uuid};

use crate::support::Place;
use testkit::{Finished, UsageReceiver};

/// A record as `serve` makes it, from so many hours ago.
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

fn stage(place: &Place, lines: &str) {
    let ran = place.usage_with(&["stage"], lines);
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

/// Some of every kind.
fn fill(place: &Place) {
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
        place,
        &lines.map(|line| line.replace('\n', " ") + "\n").concat(),
    );
}

fn archive(place: &Place) {
    assert_eq!(place.usage(&["deliver", "--archive"]).code, Some(0));
}

fn report(place: &Place, words: &[&str]) -> Finished {
    let ran = place.usage(words);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    ran
}

fn requests(place: &Place, words: &[&str]) -> u64 {
    let ran = report(place, &[words, &["--json"]].concat());
    ran.json()["total"]["requests"].as_u64().unwrap()
}

#[test]
fn people_see_a_table_with_totals_wherever_the_records_are() {
    let place = Place::new();
    fill(&place);
    let check = |words: &str| {
        let ran = report(&place, &[]);
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
            "{words}"
        );
    };
    check("staged");
    assert_eq!(place.usage(&["consolidate"]).code, Some(0));
    check("in batches");
    let receiver = UsageReceiver::always(200);
    assert_eq!(
        place.usage(&["deliver", "--to", &receiver.url]).code,
        Some(0)
    );
    check("delivered");
}

#[test]
fn characters_that_steer_a_terminal_are_escaped_in_every_form() {
    let place = Place::new();
    // An escape sequence, its C1 form, a line end and a right-to-left override.
    let name = "a\u{1b}[2J\u{9b}31m\r\nb\u{202e}c\u{2028}";
    let json = serde_json::to_string(name).unwrap();
    let line = record(
        0,
        &format!(r#""model":{json},"tokens":1,"tokens_from":"reported""#),
    );
    stage(&place, &line);
    for words in [&[][..], &["--csv"], &["--json"]] {
        let ran = report(&place, words);
        let is_unsafe =
            |c: char| (c.is_control() && c != '\n') || matches!(c, '\u{202e}' | '\u{2028}');
        assert!(
            !ran.stdout.contains(is_unsafe),
            "{words:?}: {:?}",
            ran.stdout
        );
    }
    let document = report(&place, &["--json"]).json();
    assert_eq!(document["rows"][0]["model"], name);
    let table = report(&place, &["--csv"]).stdout;
    let escaped = r"a\u001b[2J\u009b31m\u000d\u000ab\u202ec\u2028,1,";
    assert!(
        table.lines().nth(1).unwrap().starts_with(escaped),
        "{table}"
    );
}

#[test]
fn programs_get_the_same_as_json_and_csv() {
    let place = Place::new();
    fill(&place);
    archive(&place);
    let document = report(&place, &["--by", "key,backend", "--json"]).json();
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
    let ran = report(&place, &["--by", "model", "--csv"]);
    assert_eq!(
        ran.stdout,
        "model,requests,prompt_tokens,completion_tokens,cached_tokens,tokens,estimated,without_tokens\n\
         llama3,2,1000010,234572,512,1234582,1,0\n\
         \"phi, \"\"small\"\"\",1,2,1,0,3,0,0\n\
         ,1,0,0,0,0,0,1\n"
    );
    let twice = report(&place, &["--by", "key", "--by", "key,backend", "--csv"]);
    assert!(
        twice.stdout.starts_with("key,backend,requests,"),
        "{twice:?}"
    );
}

#[test]
fn days_are_in_their_order_and_a_span_begins_and_ends_where_it_is_told_to() {
    let place = Place::new();
    let lines = [0, 0, 26, 74, 24 * 50].map(|hours| record(hours, r#""model":"m","tokens":1"#));
    stage(&place, &lines.concat());
    let check = || {
        assert_eq!(requests(&place, &[]), 4, "the last 30 days");
        assert_eq!(requests(&place, &["--since", "24h"]), 2);
        assert_eq!(requests(&place, &["--since", "27h"]), 3);
        assert_eq!(requests(&place, &["--since", "27h", "--until", "25h"]), 1);
        assert_eq!(requests(&place, &["--since", "60d"]), 5);
        assert_eq!(requests(&place, &["--since", "2020-01-01"]), 5);
        assert_eq!(
            requests(&place, &["--since", "2020-01", "--until", "2020-12"]),
            0
        );
        let document = report(&place, &["--by", "day,model", "--json"]).json();
        let rows = document["rows"].as_array().unwrap();
        let days: Vec<&str> = rows
            .iter()
            .map(|row| row["day"].as_str().unwrap())
            .collect();
        let mut sorted = days.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(days, sorted);
        // A whole day is what its row says.
        let oldest = rows[0]["day"].as_str().unwrap();
        let of_it = rows[0]["requests"].as_u64().unwrap();
        assert_eq!(
            requests(&place, &["--since", oldest, "--until", oldest]),
            of_it
        );
        let ran = report(&place, &["--since", oldest, "--until", oldest]);
        assert!(
            ran.stdout
                .starts_with(&format!("Usage on {oldest} (UTC)\n")),
            "{ran:?}"
        );
    };
    check();
    archive(&place);
    check();
}

#[test]
fn without_usage_it_says_so_and_how_to_get_some() {
    let place = Place::new();
    for words in [&[] as &[&str], &["--since", "today"]] {
        let ran = place.usage(words);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(ran.stdout.starts_with("No usage since "), "{ran:?}");
        assert!(ran.stderr.contains("with `llmlb serve`"), "{ran:?}");
        assert!(ran.stderr.contains("with `llmlb usage stage`\n"), "{ran:?}");
    }
    let document = report(&place, &["--json"]).json();
    assert_eq!(
        (&document["rows"], &document["total"]["requests"]),
        (&json!([]), &0.into())
    );
    assert_eq!(report(&place, &["--csv"]).stdout.lines().count(), 1);
    assert!(!place.data().exists(), "looking makes nothing");
    // A directory that was named, and is not there, may be misspelt.
    let ran = place.usage(&["--data", "gone"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{ran:?}");
}

/// Every file, with its content.
fn files(place: &Place) -> BTreeMap<String, Vec<u8>> {
    let parts = ["_staging", "spool", "sent", "usage", "archive", "failed"];
    let named = |part: &str| {
        let part = part.to_owned();
        let names = place.files(&part);
        names.into_iter().map(move |name| format!("{part}/{name}"))
    };
    let names = parts.iter().flat_map(|part| named(part));
    names
        .map(|name| {
            (
                name.clone(),
                std::fs::read(place.data().join(&name)).unwrap(),
            )
        })
        .collect()
}

#[test]
fn looking_changes_nothing() {
    let place = Place::new();
    fill(&place);
    archive(&place);
    fill(&place);
    let before = files(&place);
    assert_eq!(requests(&place, &["--since", "7d"]), 8);
    report(&place, &["--by", "day"]);
    assert_eq!(files(&place), before);
}

#[test]
fn it_is_right_at_any_time_while_a_server_runs() {
    let place = Place::new();
    let receiver = UsageReceiver::always(200);
    let server = place.serve(&[
        ("LLMLB_USAGE_EVERY", "1s"),
        ("LLMLB_USAGE_URL", &receiver.url),
    ]);
    for count in 1..=20 {
        place.stage(5);
        assert_eq!(requests(&place, &[]), 5 * count);
    }
    server.until("all of it", |usage| usage["delivered"] == 100);
    assert_eq!(requests(&place, &[]), 100);
    assert_eq!(requests(&place, &["--since", "1h"]), 100);
}

#[test]
fn a_request_is_in_the_report_as_soon_as_its_answer_is_there() {
    let place = Place::new();
    let server = place.serve(&[("LLMLB_USAGE_EVERY", "1s")]);
    let (mut prompt, mut completion) = (0, 0);
    for count in 1..=20 {
        let body = r#"{"model":"demo","max_tokens":4,"messages":[{"role":"user","content":"Hi"}]}"#;
        let answer = server.ask("POST /v1/chat/completions", body);
        let answer: Value = serde_json::from_str(&answer).unwrap();
        prompt += answer["usage"]["prompt_tokens"].as_u64().unwrap();
        completion += answer["usage"]["completion_tokens"].as_u64().unwrap();
        let document = report(&place, &["--since", "1h", "--json"]).json();
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
fn totals_that_are_damaged_are_told_and_the_rest_is_shown() {
    let place = Place::new();
    stage(&place, &record(48, r#""model":"old","tokens":1"#));
    stage(&place, &record(0, r#""model":"new","tokens":1"#));
    archive(&place);
    let mut days = place.files("usage");
    days.retain(|name| name.len() == "2026-11-16.json".len());
    let path = place.data().join("usage").join(&days[0]);
    std::fs::write(&path, "{}").unwrap();
    let ran = place.usage(&["--since", "60d"]);
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
    let ran = place.usage(&["--since", "60d", "--json"]);
    assert_eq!(ran.json()["problems"].as_array().unwrap().len(), 1);
}

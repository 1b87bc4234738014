//! Tests that a JSON parser and the spool read usage records as they were meant.

use serde_json::{Value, json};

use super::*;

fn record() -> Record<'static> {
    Record {
        id: Uuid::try_parse("01890a5d-ac96-774b-bcce-b302099a8057").unwrap(),
        time_ms: 1_794_830_400_250,
        request_id: "req-1",
        key: None,
        team: None,
        model: Some("fast"),
        served_model: Some("llama3:8b"),
        backend: Some("gpu-1"),
        api: Api::Chat,
        path: "/v1/chat/completions",
        is_stream: true,
        status: Some(200),
        outcome: Outcome::Complete,
        reason: None,
        attempts: &[Attempt {
            backend: "gpu-2",
            error: "connection refused",
            why: "load",
            at_ms: 0,
            ms: 12,
        }],
        why: Some("fail_over"),
        candidates: 2,
        queue_ms: 30,
        sent_ms: 42,
        usage: TokenUsage {
            prompt: 9,
            completion: 4,
            cached: 8,
            reasoning: 0,
            total: 13,
            source: UsageSource::Reported,
        },
        ms: 840,
        first_byte_ms: Some(120),
        bytes: 5120,
        instance: "gpu-1:32768",
    }
}

fn line(record: &Record<'_>) -> String {
    let mut line = "content of the previous record".to_owned();
    record.write(&mut line);
    line
}

fn value(record: &Record<'_>) -> Value {
    serde_json::from_str(&line(record)).unwrap()
}

#[test]
fn record_is_one_line_with_all_fields() {
    let expected = concat!(
        r#"{"id":"01890a5d-ac96-774b-bcce-b302099a8057","time":"2026-11-16T12:00:00.250Z","#,
        r#""request_id":"req-1","key":null,"model":"fast","served_model":"llama3:8b","#,
        r#""backend":"gpu-1","api":"chat","path":"/v1/chat/completions","stream":true,"#,
        r#""status":200,"outcome":"complete","#,
        r#""attempts":[{"backend":"gpu-2","error":"connection refused","why":"load","#,
        r#""at_ms":0,"ms":12}],"why":"fail_over","candidates":2,"#,
        r#""prompt_tokens":9,"completion_tokens":4,"cached_tokens":8,"tokens":13,"#,
        r#""tokens_from":"reported","ms":840,"queue_ms":30,"sent_ms":42,"first_byte_ms":120,"bytes":5120,"#,
        r#""instance":"gpu-1:32768"}"#
    );
    assert_eq!(line(&record()), expected);
}

#[test]
fn unknown_values_are_null_or_omitted() {
    let refused = Record {
        model: None,
        served_model: None,
        backend: None,
        status: None,
        outcome: Outcome::Refused,
        reason: None,
        attempts: &[],
        why: None,
        candidates: 0,
        queue_ms: 0,
        sent_ms: 0,
        usage: TokenUsage::default(),
        first_byte_ms: None,
        ..record()
    };
    let value = value(&refused);
    for name in ["key", "model", "backend", "status", "first_byte_ms"] {
        assert_eq!(value[name], Value::Null, "{name}");
        assert!(value.get(name).is_some(), "{name}");
    }
    assert_eq!(value["attempts"], json!([]));
    assert_eq!(value["tokens"], 0);
    assert_eq!(value["tokens_from"], "none");
    for name in [
        "served_model",
        "estimated_tokens",
        "reasoning_tokens",
        "why",
        "candidates",
        "queue_ms",
        "sent_ms",
    ] {
        assert!(value.get(name).is_none(), "{name}");
    }
    let same = Record {
        served_model: Some("fast"),
        ..record()
    };
    assert!(self::value(&same).get("served_model").is_none());
}

#[test]
fn every_outcome_has_a_name() {
    for (outcome, name) in [
        (Outcome::Complete, "complete"),
        (Outcome::Cancelled, "cancelled"),
        (Outcome::Cut, "cut"),
        (Outcome::Failed, "failed"),
        (Outcome::Refused, "refused"),
        (Outcome::Interrupted, "interrupted"),
    ] {
        let record = Record {
            outcome,
            ..record()
        };
        assert_eq!(value(&record)["outcome"], name);
    }
}

#[test]
fn text_of_clients_and_backends_is_escaped_and_truncated() {
    let nasty = "a\"b\\c\n\r\t\u{0}\u{1f}\u{7f}é日😀\u{2028}</script>";
    let record = Record {
        model: Some(nasty),
        request_id: nasty,
        attempts: &[Attempt {
            backend: nasty,
            error: nasty,
            why: "load",
            at_ms: 0,
            ms: 0,
        }],
        ..record()
    };
    let text = line(&record);
    assert!(!text.contains('\n'));
    let value = value(&record);
    assert_eq!(value["model"], nasty);
    assert_eq!(value["request_id"], nasty);
    assert_eq!(value["attempts"][0]["error"], nasty);
    for long in ["x", "é", "😀", "\""] {
        let name = long.repeat(100_000);
        let record = Record {
            model: Some(&name),
            ..record.clone()
        };
        assert_eq!(self::value(&record)["model"], long.repeat(MAX_NAME));
    }
}

#[test]
fn times_and_numbers_are_written_exactly() {
    for (ms, expected) in [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_709_210_096_007, "2024-02-29T12:34:56.007Z"),
        (253_402_207_199_999, "9999-12-30T21:59:59.999Z"),
    ] {
        let record = Record {
            time_ms: ms,
            ..record()
        };
        assert_eq!(value(&record)["time"], expected);
    }
    let record = Record {
        time_ms: u64::MAX,
        bytes: u64::MAX,
        ms: 10,
        ..record()
    };
    let value = value(&record);
    assert_eq!(value["time"], Value::Null);
    assert_eq!(value["bytes"], u64::MAX);
    assert_eq!(value["ms"], 10);
}

#[test]
fn spool_stages_a_record_unchanged_and_sums_each_number_once() {
    let dir = tempfile::tempdir().unwrap();
    let staging = spool::Staging::open(dir.path().join("_staging")).unwrap();
    let estimated = TokenUsage {
        source: UsageSource::Estimated,
        reasoning: 2,
        ..record().usage
    };
    for usage in [record().usage, estimated] {
        let record = Record {
            id: Uuid::now_v7(),
            usage,
            ..record()
        };
        let line = line(&record);
        let staged = spool::Record::parse(&line).unwrap();
        assert_eq!(staged.json(), line);
        assert_eq!(staged.id(), record.id);
        staging.stage(&staged, spool::Durability::Process).unwrap();
    }
    staging.close().unwrap();
    let mut options = spool::Options::default();
    options.grouping = crate::meter::grouping();
    spool::consolidate(dir.path(), &options).unwrap();
    let usage = std::fs::read_dir(dir.path().join("usage")).unwrap();
    let days: Vec<Value> = usage
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            let name = path.file_name().unwrap().to_string_lossy();
            name.ends_with(".json") && !name.contains('T')
        })
        .map(|path| serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap())
        .collect();
    // Sum over all days: if the test runs at midnight, its records belong to two days.
    let sum = |name: &str| -> u64 {
        let rows = days
            .iter()
            .flat_map(|day| day["totals"].as_array().unwrap());
        rows.filter_map(|row| row["sums"][name].as_u64()).sum()
    };
    let names = [
        "tokens",
        "prompt_tokens",
        "completion_tokens",
        "cached_tokens",
    ];
    assert_eq!(names.map(sum), [26, 18, 8, 16]);
    assert_eq!(sum("estimated_tokens"), 13);
    assert_eq!(sum("reasoning_tokens"), 2);
    let row = &days[0]["totals"][0];
    assert_eq!(row["model"], "fast");
    assert_eq!(row["backend"], "gpu-1");
    assert_eq!(row["sums"].as_object().unwrap().len(), 6);
}

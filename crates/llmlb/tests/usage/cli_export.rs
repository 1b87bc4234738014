//! `llmlb usage export`: single records, each once, or a message that some are missing.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;
use testkit::{Finished, UsageReceiver};

use crate::support::{UsageSandbox, day_ago, record_at};

fn stage(sandbox: &UsageSandbox, fields: &[&str]) {
    let day = day_ago(1);
    let lines: Vec<String> = (fields.iter())
        .map(|fields| record_at(&format!("{day}T12:00:00Z"), fields))
        .collect();
    sandbox
        .usage_with(&["stage"], lines.concat())
        .assert_code(0);
}

fn export(sandbox: &UsageSandbox, words: &[&str]) -> Finished {
    sandbox.usage(&[&["export"], words].concat())
}

fn json_lines(ran: &Finished) -> Vec<Value> {
    let lines = ran.stdout.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn numbers(ran: &Finished) -> Vec<u64> {
    let lines = json_lines(ran);
    lines
        .iter()
        .map(|line| line["n"].as_u64().unwrap())
        .collect()
}

#[test]
fn every_record_is_exported_once_wherever_it_is() {
    let sandbox = UsageSandbox::new();
    stage(&sandbox, &["\"n\":1", "\"n\":2"]);
    sandbox.usage(&["deliver", "--archive"]).assert_code(0);
    stage(&sandbox, &["\"n\":3", "\"n\":4"]);
    sandbox.usage(&["consolidate"]).assert_code(0);
    stage(&sandbox, &["\"n\":5"]);
    // Stage a record that is already consolidated. The export must contain it once and not twice.
    let again = json_lines(&export(&sandbox, &["--format", "jsonl"]));
    let again = format!("{}\n", again[0]);
    sandbox.usage_with(&["stage"], again).assert_code(0);

    let ran = export(&sandbox, &["--format", "jsonl"]);
    assert_eq!((ran.code, &*ran.stderr), (Some(0), ""), "{ran:?}");
    assert_eq!(numbers(&ran), [1, 2, 3, 4, 5], "{ran:?}");
    let ran = export(&sandbox, &[]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(ran.stdout.lines().count(), 6, "{ran:?}");

    // Rejected batches in `failed/` contain records that were used, so the export must contain
    // these too.
    let receiver = UsageReceiver::always(422);
    for _ in 0..3 {
        let words = ["deliver", "--now", "--to", &*receiver.url];
        sandbox.usage(
            &[
                &words[..],
                &["--give-up-after", "0s", "--give-up-rounds", "1"],
            ]
            .concat(),
        );
    }
    let ran = export(&sandbox, &["--format", "jsonl"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let found: BTreeSet<u64> = numbers(&ran).into_iter().collect();
    assert_eq!((found.len(), numbers(&ran).len()), (5, 5), "{ran:?}");
}

#[test]
fn delivered_records_are_reported_as_missing() {
    let sandbox = UsageSandbox::new();
    stage(&sandbox, &["\"n\":1", "\"n\":2", "\"n\":3"]);
    let receiver = UsageReceiver::always(200);
    sandbox
        .usage(&["deliver", "--to", &receiver.url])
        .assert_code(0);
    stage(&sandbox, &["\"n\":4"]);
    let day = day_ago(1);
    for format in ["csv", "jsonl"] {
        let ran = export(&sandbox, &["--format", format]);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        let message =
            format!("the export is incomplete: 3 records of {day}T12 (UTC) are no longer on disk");
        assert!(ran.stderr.contains(&message), "{ran:?}");
        assert!(
            ran.stderr.contains("delivered batches are deleted"),
            "{ran:?}"
        );
        let lines = if format == "csv" { 2 } else { 1 };
        assert_eq!(ran.stdout.lines().count(), lines, "{ran:?}");
    }
    // The delivered records are older than this hour. All records of the hour are on disk, so its
    // export must succeed.
    let since = format!("{day}T13:00Z");
    let ran = export(&sandbox, &["--since", &since]);
    assert_eq!(
        (ran.code, ran.stdout.lines().count()),
        (Some(0), 1),
        "{ran:?}"
    );
    // The team of a missing record is not known, so an export with a filter must report missing
    // records too.
    let ran = export(&sandbox, &["--team", "search"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
}

#[test]
fn filters_and_period_select_records() {
    let sandbox = UsageSandbox::new();
    let (day, next) = (day_ago(3), day_ago(2));
    let lines = [
        record_at(
            &format!("{day}T22:59:59.999Z"),
            r#""n":1,"team":"a","key":"k1","model":"m""#,
        ),
        record_at(
            &format!("{day}T23:00:00Z"),
            r#""n":2,"team":"b","key":"k2","model":"x","served_model":"m""#,
        ),
        record_at(
            &format!("{next}T22:00:00Z"),
            r#""n":3,"team":null,"key":"k1","model":"y""#,
        ),
    ];
    sandbox
        .usage_with(&["stage"], lines.concat())
        .assert_code(0);
    for (words, expected) in [
        (&[] as &[&str], &[1_u64, 2, 3] as &[u64]),
        (&["--team", "a"], &[1]),
        (&["--team", "a", "--team", "b"], &[1, 2]),
        (&["--key", "k1"], &[1, 3]),
        (&["--key", "k1", "--team", "a"], &[1]),
        (&["--model", "m"], &[1, 2]),
        (&["--team", "null"], &[]),
        (&["--since", &day, "--until", &day], &[1, 2]),
        (&["--since", &next], &[3]),
        (
            &["--since", &next, "--until", &next, "--tz", "Etc/GMT-1"],
            &[2, 3],
        ),
    ] {
        let ran = export(&sandbox, &[words, &["--format", "jsonl"]].concat());
        assert_eq!(ran.code, Some(0), "{words:?}: {ran:?}");
        assert_eq!(numbers(&ran), expected, "{words:?}");
    }
    let ran = export(&sandbox, &["--tz", "Etc/GMT-1", "--key", "k2"]);
    let line = ran.stdout.lines().nth(1).unwrap();
    assert!(
        line.starts_with(&format!("{next}T00:00:00.000+01:00,")),
        "{ran:?}"
    );
}

#[test]
fn csv_is_quoted_and_disarms_formulas() {
    let sandbox = UsageSandbox::new();
    stage(
        &sandbox,
        &[
            r#""key":"=1+2","team":"a, \"b\"\r\n\u202e","model":"@x","backend":"gr\u00fc\u00df","path":"+1","tokens":-5,"stream":true,"status":200,"request_id":"-a""#,
        ],
    );
    let ran = export(&sandbox, &[]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let lines: Vec<&str> = ran.stdout.split("\r\n").collect();
    assert_eq!(lines.len(), 3, "{ran:?}");
    assert!(
        lines[0].starts_with("time,id,request_id,team,key,model,"),
        "{ran:?}"
    );
    let rest = "\"a, \"\"b\"\"\\u000d\\u000a\\u202e\",'=1+2,'@x,,gr\u{fc}\u{df},,'+1,true,200,";
    assert!(lines[1].contains(&format!(",'-a,{rest}")), "{ran:?}");
    // In JSON lines the text must keep its meaning: escapes are allowed, but not the changes that
    // disarm formulas in CSV.
    let ran = export(&sandbox, &["--format", "jsonl"]);
    assert_eq!(json_lines(&ran)[0]["team"], "a, \"b\"\r\n\u{202e}");
    assert!(!ran.stdout.contains('\u{202e}'), "{ran:?}");
}

#[test]
fn file_is_written_when_the_export_is_complete() {
    let sandbox = UsageSandbox::new();
    stage(&sandbox, &["\"n\":1", "\"n\":2"]);
    let file = sandbox.file("out.csv", "old");
    let name = file.to_str().unwrap();
    let ran = export(&sandbox, &["-o", name]);
    assert_eq!((ran.code, &*ran.stdout), (Some(0), ""), "{ran:?}");
    assert!(ran.stderr.contains("wrote 2 records to "), "{ran:?}");
    assert_eq!(fs::read_to_string(&file).unwrap().lines().count(), 3);
    // A device such as /dev/null must be written in place, because a rename would replace it. A
    // directory must be refused.
    #[cfg(unix)]
    export(&sandbox, &["-o", "/dev/null"]).assert_code(0);
    let ran = export(&sandbox, &["-o", "data"]);
    assert!(
        ran.code == Some(1) && ran.stderr.contains("cannot write to data: "),
        "{ran:?}"
    );
    let ran = export(&sandbox, &["-o", "missing/out.csv"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.stderr.contains("cannot write to missing/out.csv"),
        "{ran:?}"
    );
    let dir = fs::read_dir(file.parent().unwrap()).unwrap();
    let names: Vec<_> = dir.map(|file| file.unwrap().file_name()).collect();
    let is_temporary = |name: &std::ffi::OsString| name.to_string_lossy().ends_with(".tmp");
    assert!(!names.iter().any(is_temporary), "{names:?}");
}

#[test]
fn damaged_batch_is_named_and_the_others_are_exported() {
    let sandbox = UsageSandbox::new();
    stage(&sandbox, &["\"n\":1"]);
    sandbox.usage(&["deliver", "--archive"]).assert_code(0);
    let damaged = sandbox.files("archive").remove(0);
    let path = sandbox.data().join("archive").join(&damaged);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("\"n\":1", "\"n\":7")).unwrap();
    stage(&sandbox, &["\"n\":2"]);
    let ran = export(&sandbox, &["--format", "jsonl"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert_eq!(numbers(&ran), [2], "{ran:?}");
    assert!(ran.stderr.contains(&damaged), "{ran:?}");
    assert!(ran.stderr.contains("1 record of "), "{ran:?}");
}

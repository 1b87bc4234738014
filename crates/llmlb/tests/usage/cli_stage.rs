//! `llmlb usage stage`, and files that other programs put into `_staging/`. (promises S1, S2)

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use crate::support::UsageSandbox;
use testkit::eventually;

const ID: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

#[test]
fn records_from_stdin_are_staged_and_counted() {
    let sandbox = UsageSandbox::new();
    let ran = sandbox.usage_with(&["stage"], "{\"n\":1}\n\n{ \"n\" : 2 }\n{\"n\":3}");
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), "staged 3 records\n"),
        "{ran:?}"
    );
    assert_eq!(ran.stderr, "");
    let ran = sandbox.usage_with(&["stage", "-", "--json"], "{\"n\":4}\n");
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), "{\"staged\":1,\"refused\":0}\n")
    );
    assert_eq!(sandbox.books()["pending"], 4);
}

#[test]
fn files_of_json_lines_and_single_objects_are_staged() {
    let sandbox = UsageSandbox::new();
    sandbox.file("a.jsonl", "{\"n\":1}\n{\"n\":2}\n");
    sandbox.file("b.json", "\u{feff}{\n  \"n\": 3,\n  \"deep\": [\n1 ]\n}\n");
    let ran = sandbox.usage(&["stage", "a.jsonl", "b.json"]);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), "staged 3 records\n"),
        "{ran:?}"
    );
}

#[test]
fn bad_lines_are_reported_and_the_others_are_staged() {
    let sandbox = UsageSandbox::new();
    sandbox.file(
        "a.jsonl",
        "{\"n\":1}\nnonsense\n{\"n\":2}\n[3]\n{\"id\":\"x\"}\n",
    );
    sandbox.file("two.json", "{\"n\":1}\n{\"n\":2}\n");
    let ran = sandbox.usage(&["stage", "a.jsonl", "gone.jsonl", "two.json", "--json"]);
    assert_eq!(ran.code, Some(1));
    assert_eq!(ran.stdout, "{\"staged\":2,\"refused\":5}\n");
    for words in [
        "llmlb: a.jsonl:2: not a record: ",
        "llmlb: a.jsonl:4: not a record: ",
        "llmlb: a.jsonl:5: not a record: its id \"x\" is not a UUID\n",
        "llmlb: cannot read gone.jsonl: ",
        "llmlb: two.json: not a record: ",
    ] {
        assert!(ran.stderr.contains(words), "{words} in {}", ran.stderr);
    }
    assert_eq!(sandbox.books()["staged"], 2);
}

#[test]
fn reports_of_bad_lines_are_limited() {
    let sandbox = UsageSandbox::new();
    let ran = sandbox.usage_with(&["stage"], "bad\n".repeat(1000));
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(1), "staged 0 records, rejected 1000\n")
    );
    assert_eq!(ran.stderr.lines().count(), 21, "{}", ran.stderr);
    assert!(
        ran.stderr.contains("llmlb: 980 more records rejected\n"),
        "{}",
        ran.stderr
    );
}

#[test]
fn each_line_is_on_disk_before_the_next_is_read() {
    let sandbox = UsageSandbox::new();
    let mut command = sandbox.command(&["stage"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    for number in 1..=3 {
        writeln!(stdin, "{{\"n\":{number}}}").unwrap();
        eventually("the record is on the disk", || {
            let staging = fs::read_dir(sandbox.data().join("_staging")).ok()?;
            let text: String = staging
                .map(|file| file.unwrap().path())
                .filter_map(|path| fs::read(path).ok())
                .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
                .collect();
            text.contains(&format!("\"n\":{number}}}")).then_some(())
        });
    }
    drop(stdin);
    let mut out = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut out)
        .unwrap();
    assert_eq!(out, "staged 3 records\n");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn record_staged_twice_counts_once() {
    let sandbox = UsageSandbox::new();
    let record = format!("{{\"id\":\"{ID}\",\"n\":1}}\n");
    for _ in 0..3 {
        assert_eq!(sandbox.usage_with(&["stage"], &record).code, Some(0));
    }
    let ran = sandbox.usage(&["consolidate"]);
    assert_eq!(
        ran.stdout, "consolidated 3 entries: 1 record in 1 batch\n",
        "{ran:?}"
    );
}

#[test]
fn file_of_another_program_is_staged_with_its_name_as_id() {
    let sandbox = UsageSandbox::new();
    sandbox.stage(1);
    let staging = sandbox.data().join("_staging");
    let unfinished = staging.join(".unfinished");
    fs::write(&unfinished, "{\n \"n\": 2\n}\n").unwrap();
    fs::rename(unfinished, staging.join(format!("{ID}.json"))).unwrap();
    let ran = sandbox.usage(&["consolidate"]);
    assert_eq!(
        ran.stdout, "consolidated 2 entries: 2 records in 1 batch\n",
        "{ran:?}"
    );
    let batch = sandbox.files("spool").remove(0);
    let batch = fs::read_to_string(sandbox.data().join("spool").join(batch)).unwrap();
    assert!(batch.contains(ID), "{batch}");
}

#[test]
fn consolidation_writes_batches_of_the_requested_size() {
    let sandbox = UsageSandbox::new();
    sandbox.stage(7);
    let ran = sandbox.usage(&["consolidate", "--batch-size", "3"]);
    assert_eq!(
        ran.stdout, "consolidated 1 entry: 7 records in 3 batches\n",
        "{ran:?}"
    );
    let ran = sandbox.usage(&["consolidate"]);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), "no staged records\n")
    );
}

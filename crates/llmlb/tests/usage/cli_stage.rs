//! S1, S2: `llmlb usage stage`, and files that any program drops.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use crate::support::Place;
use testkit::eventually;

const ID: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

#[test]
fn records_from_stdin_are_staged_and_counted() {
    let place = Place::new();
    let ran = place.usage_with(&["stage"], "{\"n\":1}\n\n{ \"n\" : 2 }\n{\"n\":3}");
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), "staged 3 records\n"),
        "{ran:?}"
    );
    assert_eq!(ran.stderr, "");
    let ran = place.usage_with(&["stage", "-", "--json"], "{\"n\":4}\n");
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), "{\"staged\":1,\"refused\":0}\n")
    );
    assert_eq!(place.books()["pending"], 4);
}

#[test]
fn files_have_an_object_on_each_line_or_are_one() {
    let place = Place::new();
    place.file("a.jsonl", "{\"n\":1}\n{\"n\":2}\n");
    place.file("b.json", "\u{feff}{\n  \"n\": 3,\n  \"deep\": [\n1 ]\n}\n");
    let ran = place.usage(&["stage", "a.jsonl", "b.json"]);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), "staged 3 records\n"),
        "{ran:?}"
    );
}

#[test]
fn a_bad_line_is_named_and_the_others_are_staged() {
    let place = Place::new();
    place.file(
        "a.jsonl",
        "{\"n\":1}\nnonsense\n{\"n\":2}\n[3]\n{\"id\":\"x\"}\n",
    );
    place.file("two.json", "{\"n\":1}\n{\"n\":2}\n");
    let ran = place.usage(&["stage", "a.jsonl", "gone.jsonl", "two.json", "--json"]);
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
    assert_eq!(place.books()["staged"], 2);
}

#[test]
fn not_every_one_of_many_bad_lines_is_named() {
    let place = Place::new();
    let ran = place.usage_with(&["stage"], "bad\n".repeat(1000));
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
fn each_line_is_safe_before_the_next_one_comes() {
    let place = Place::new();
    let mut command = place.command(&["stage"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    for number in 1..=3 {
        writeln!(stdin, "{{\"n\":{number}}}").unwrap();
        eventually("the record on the disk", || {
            let staging = fs::read_dir(place.data().join("_staging")).ok()?;
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
fn a_record_that_is_staged_twice_counts_once() {
    let place = Place::new();
    let record = format!("{{\"id\":\"{ID}\",\"n\":1}}\n");
    for _ in 0..3 {
        assert_eq!(place.usage_with(&["stage"], &record).code, Some(0));
    }
    let ran = place.usage(&["consolidate"]);
    assert_eq!(
        ran.stdout, "consolidated 3 entries: 1 record in 1 batch\n",
        "{ran:?}"
    );
}

#[test]
fn a_file_that_another_program_drops_is_taken_with_its_name_as_id() {
    let place = Place::new();
    place.stage(1);
    let staging = place.data().join("_staging");
    let half = staging.join(".half");
    fs::write(&half, "{\n \"n\": 2\n}\n").unwrap();
    fs::rename(half, staging.join(format!("{ID}.json"))).unwrap();
    let ran = place.usage(&["consolidate"]);
    assert_eq!(
        ran.stdout, "consolidated 2 entries: 2 records in 1 batch\n",
        "{ran:?}"
    );
    let batch = place.files("spool").remove(0);
    let batch = fs::read_to_string(place.data().join("spool").join(batch)).unwrap();
    assert!(batch.contains(ID), "{batch}");
}

#[test]
fn consolidation_cuts_batches_of_the_size_that_was_asked_for() {
    let place = Place::new();
    place.stage(7);
    let ran = place.usage(&["consolidate", "--batch-size", "3"]);
    assert_eq!(
        ran.stdout, "consolidated 1 entry: 7 records in 3 batches\n",
        "{ran:?}"
    );
    let ran = place.usage(&["consolidate"]);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), "no staged records\n")
    );
}

//! A runner keeps the content of the journals in memory between runs, and reads them again after
//! another process wrote to them.

use std::fs;

use super::test_data_dir::{TestDataDir, names, record};
use crate::consolidate::{Options, consolidate};
use crate::delivery::{DeliveryOptions, Watch};
use crate::line::with_checksum;
use crate::record::Record;
use crate::run::{Destination, Run, Runner};

fn stage(test_dir: &TestDataDir, record: &Record) {
    test_dir.stage(std::slice::from_ref(record));
}

fn run(runner: &mut Runner, test_dir: &TestDataDir) -> Run {
    let to = Destination::To(&test_dir.receiver);
    let (options, delivery) = (Options::default(), DeliveryOptions::default());
    let run = runner.run(&options, &delivery, to, &Watch::silent());
    run.unwrap()
}

#[test]
fn runner_drops_records_that_an_earlier_run_consolidated() {
    let test_dir = TestDataDir::new();
    let mut runner = Runner::new(test_dir.path());
    let (old, new) = (record(), record());
    stage(&test_dir, &old);
    assert_eq!(run(&mut runner, &test_dir).delivered.records, 1);
    stage(&test_dir, &old);
    stage(&test_dir, &new);
    let done = run(&mut runner, &test_dir);
    assert_eq!((done.consolidated.repeated, done.delivered.records), (1, 1));
}

#[test]
fn runner_rereads_the_journal_only_after_another_process_wrote_to_it() {
    let test_dir = TestDataDir::new();
    let mut runner = Runner::new(test_dir.path());
    let (ours, theirs, other) = (record(), record(), record());
    stage(&test_dir, &ours);
    run(&mut runner, &test_dir);
    // Replace an id in the journal without changing the length of the file. A runner that reads the
    // journal again would find the replaced id and skip the record that is staged next as repeated.
    let usage = test_dir.data().usage;
    let journal = names(&usage)
        .into_iter()
        .find(|name| name.contains("taken"));
    let journal = usage.join(journal.unwrap());
    let text = fs::read_to_string(&journal).unwrap();
    let (head, line) = text.split_once('\n').unwrap();
    let [id, another] = [&ours, &other].map(|record| record.id().simple().to_string());
    let line = line.replace(&id, &another);
    let unchecked = line[..line.len() - r#","crc":"xxxxxxxx"}."#.len()].to_owned();
    let line = String::from_utf8(with_checksum(unchecked.into())).unwrap();
    fs::write(&journal, format!("{head}\n{line}")).unwrap();
    stage(&test_dir, &other);
    assert_eq!(run(&mut runner, &test_dir).delivered.records, 1);
    let changed = fs::read_to_string(&journal).unwrap();
    fs::write(&journal, changed.replace(&format!("{head}\n{line}"), &text)).unwrap();

    stage(&test_dir, &theirs);
    let done = consolidate(test_dir.path(), &Options::default()).unwrap();
    assert_eq!(done.records, 1);
    stage(&test_dir, &theirs);
    stage(&test_dir, &ours);
    let done = run(&mut runner, &test_dir);
    assert_eq!((done.consolidated.repeated, done.delivered.records), (2, 1));
}

#[test]
fn batch_that_another_runner_delivered_is_not_sent_again() {
    let test_dir = TestDataDir::new();
    let (mut one, mut two) = (Runner::new(test_dir.path()), Runner::new(test_dir.path()));
    for _ in 0..3 {
        for runner in [&mut one, &mut two] {
            stage(&test_dir, &record());
            assert_eq!(run(runner, &test_dir).delivered.records, 1);
        }
    }
    assert!(test_dir.receiver.billed().values().all(|count| *count == 1));
    let books = test_dir.assert_balanced("at the end");
    assert_eq!((books.staged, books.delivered), (6, 6));
}

#[test]
fn invalid_trusted_record_is_quarantined_and_the_others_are_delivered() {
    let test_dir = TestDataDir::new();
    let (good, id) = (record(), crate::time::new_id());
    let other = crate::time::new_id();
    for json in [
        format!(r#"{{"id":"{id}","tokens":}}"#),
        format!(r#"{{"id":"{other}"}}"#),
        r#"{"tokens":1}"#.to_owned(),
    ] {
        stage(&test_dir, &Record::trusted(id, json));
        stage(&test_dir, &good);
    }
    let done = run(&mut Runner::new(test_dir.path()), &test_dir);
    assert_eq!((done.consolidated.aside, done.delivered.records), (3, 1));
    let failed = names(&test_dir.data().failed);
    assert_eq!(
        failed
            .iter()
            .filter(|name| name.rsplit('.').next() == Some("lines"))
            .count(),
        3,
        "{failed:?}"
    );
    test_dir.assert_balanced("at the end");
}

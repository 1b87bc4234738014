//! A runner keeps what the books say from run to run, and notices when somebody else wrote to them.

use std::fs;

use super::place::{Place, names, record};
use crate::consolidate::{Options, consolidate};
use crate::delivery::{DeliveryOptions, Watch};
use crate::line::with_checksum;
use crate::record::Record;
use crate::run::{Destination, Run, Runner};
use crate::staging::{Durability, Staging};

fn stage(place: &Place, record: &Record) {
    let staging = Staging::open(place.data().staging).unwrap();
    staging.stage(record, Durability::Power).unwrap();
    staging.close().unwrap();
}

fn run(runner: &mut Runner, place: &Place) -> Run {
    let to = Destination::To(&place.receiver);
    let (options, delivery) = (Options::default(), DeliveryOptions::default());
    let run = runner.run(&options, &delivery, to, &Watch::silent());
    run.unwrap()
}

#[test]
fn what_was_taken_in_an_earlier_run_is_known_in_the_next() {
    let place = Place::new();
    let mut runner = Runner::new(place.path());
    let (old, new) = (record(), record());
    stage(&place, &old);
    assert_eq!(run(&mut runner, &place).delivered.records, 1);
    stage(&place, &old);
    stage(&place, &new);
    let done = run(&mut runner, &place);
    assert_eq!((done.consolidated.repeated, done.delivered.records), (1, 1));
}

#[test]
fn the_book_is_not_read_again_unless_somebody_wrote_to_it() {
    let place = Place::new();
    let mut runner = Runner::new(place.path());
    let (ours, theirs, other) = (record(), record(), record());
    stage(&place, &ours);
    run(&mut runner, &place);
    // The same length at the same place: whoever reads it knows another id.
    let usage = place.data().usage;
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
    stage(&place, &other);
    assert_eq!(run(&mut runner, &place).delivered.records, 1);
    let changed = fs::read_to_string(&journal).unwrap();
    fs::write(&journal, changed.replace(&format!("{head}\n{line}"), &text)).unwrap();

    stage(&place, &theirs);
    let done = consolidate(place.path(), &Options::default()).unwrap();
    assert_eq!(done.records, 1);
    stage(&place, &theirs);
    stage(&place, &ours);
    let done = run(&mut runner, &place);
    assert_eq!((done.consolidated.repeated, done.delivered.records), (2, 1));
}

#[test]
fn a_batch_that_another_process_delivered_is_not_delivered_again() {
    let place = Place::new();
    let (mut one, mut two) = (Runner::new(place.path()), Runner::new(place.path()));
    for _ in 0..3 {
        for runner in [&mut one, &mut two] {
            stage(&place, &record());
            assert_eq!(run(runner, &place).delivered.records, 1);
        }
    }
    assert!(place.receiver.billed().values().all(|count| *count == 1));
    let books = crate::verify(place.path(), &Watch::silent()).unwrap();
    assert!(books.balance(), "{:?}", books.problems);
    assert_eq!((books.staged, books.delivered), (6, 6));
}

#[test]
fn what_a_writer_vouched_for_wrongly_is_set_aside_alone() {
    let place = Place::new();
    let (good, id) = (record(), crate::time::new_id());
    let other = crate::time::new_id();
    for json in [
        format!(r#"{{"id":"{id}","tokens":}}"#),
        format!(r#"{{"id":"{other}"}}"#),
        r#"{"tokens":1}"#.to_owned(),
    ] {
        stage(&place, &Record::trusted(id, json));
        stage(&place, &good);
    }
    let done = run(&mut Runner::new(place.path()), &place);
    assert_eq!((done.consolidated.aside, done.delivered.records), (3, 1));
    let failed = names(&place.data().failed);
    assert_eq!(
        failed
            .iter()
            .filter(|name| name.rsplit('.').next() == Some("lines"))
            .count(),
        3,
        "{failed:?}"
    );
    let books = crate::verify(place.path(), &Watch::silent()).unwrap();
    assert!(books.balance(), "{:?}", books.problems);
}

//! A runner keeps what the books say from run to run, and notices when somebody else wrote to them.

use std::fs;

use super::place::{Place, names, record};
use crate::consolidate::{Options, consolidate};
use crate::delivery::{DeliveryOptions, Watch};
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
    let (ours, theirs) = (record(), record());
    stage(&place, &ours);
    run(&mut runner, &place);
    // The same length at the same place: whoever reads it finds damage, and knows no id.
    let usage = place.data().usage;
    let book = names(&usage)
        .into_iter()
        .find(|name| name.contains("taken"));
    let book = usage.join(book.unwrap());
    let text = fs::read_to_string(&book).unwrap();
    let id = ours.id().simple().to_string();
    fs::write(&book, text.replace(&id, &"0".repeat(32))).unwrap();
    stage(&place, &ours);
    assert_eq!(run(&mut runner, &place).consolidated.repeated, 1);
    fs::write(
        &book,
        fs::read_to_string(&book)
            .unwrap()
            .replace(&"0".repeat(32), &id),
    )
    .unwrap();

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

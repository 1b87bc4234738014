//! Each record is in the sums once, wherever it is, and whatever is going on.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use uuid::{NoContext, Timestamp, Uuid};

use super::crash_recovery::{crash, fill, options};
use super::crashing_disk::CRASHES;
use super::test_data_dir::{TestDataDir, names, record};
use crate::consolidate::{Options, consolidate};
use crate::delivery::Watch;
use crate::record::Record;
use crate::staging::{Durability, Staging};
use crate::tally::{Tally, tally};
use crate::verify::verify;

const HOUR: Duration = Duration::from_secs(3600);

fn all(test_dir: &TestDataDir) -> u64 {
    records(&tally(test_dir.path(), None, None).unwrap())
}

fn records(tally: &Tally) -> u64 {
    assert!(tally.problems.is_empty(), "{:?}", tally.problems);
    let tokens: u64 = tally.rows.iter().map(|row| row.tokens).sum();
    let records = tally.rows.iter().map(|row| row.records).sum();
    assert_eq!(tokens, records, "each has one token");
    records
}

/// A record of another time.
fn record_of(time: &str) -> Record {
    let time: jiff::Timestamp = time.parse().unwrap();
    let seconds = u64::try_from(time.as_second()).unwrap();
    let id = Uuid::new_v7(Timestamp::from_unix(NoContext, seconds, 0));
    Record::parse(&format!(r#"{{"id":"{id}","tokens":1}}"#)).unwrap()
}

fn stage(test_dir: &TestDataDir, records: &[Record]) {
    let staging = Staging::open(test_dir.data().staging).unwrap();
    staging.stage_all(records, Durability::Power).unwrap();
    staging.close().unwrap();
}

#[test]
fn missing_data_directory_has_an_empty_tally_and_is_not_created() {
    let dir = tempfile::tempdir().unwrap();
    let gone = dir.path().join("gone");
    assert_eq!(tally(&gone, None, None).unwrap().rows, []);
    assert!(!gone.exists());
}

#[test]
fn record_counts_once_while_staged_consolidated_and_delivered() {
    let test_dir = TestDataDir::new();
    let staging = Staging::open(test_dir.data().staging).unwrap();
    staging.stage(&record(), Durability::Process).unwrap();
    assert_eq!(all(&test_dir), 1, "while it is being written");
    assert!(names(&test_dir.data().staging)[0].contains(".jsonl.open"));
    staging.seal().unwrap();
    assert_eq!(all(&test_dir), 1, "sealed");
    test_dir.single();
    test_dir.entry(3, false);
    assert_eq!(
        all(&test_dir),
        5,
        "dropped in, and left by a writer that is gone"
    );
    consolidate(test_dir.path(), &Options::default()).unwrap();
    assert_eq!(all(&test_dir), 5, "in batches");
    test_dir.deliver_all();
    staging.stage(&record(), Durability::Process).unwrap();
    assert_eq!(all(&test_dir), 6, "delivered, and one more");
}

#[test]
fn record_staged_repeatedly_counts_once() {
    let test_dir = TestDataDir::new();
    let (one, two) = (record(), record());
    stage(&test_dir, &[one.clone(), two.clone(), one.clone()]);
    stage(&test_dir, std::slice::from_ref(&two));
    assert_eq!(all(&test_dir), 2);
    consolidate(test_dir.path(), &Options::default()).unwrap();
    // Once more, and another one with the same id, which is set aside.
    stage(&test_dir, std::slice::from_ref(&one));
    let other = format!(r#"{{"id":"{}","tokens":5}}"#, two.id());
    stage(&test_dir, &[Record::parse(&other).unwrap()]);
    assert_eq!(all(&test_dir), 2);
    consolidate(test_dir.path(), &Options::default()).unwrap();
    assert_eq!(all(&test_dir), 2);
}

#[test]
fn tally_is_exact_after_a_consolidation_crashes_at_any_operation() {
    for kind in CRASHES {
        for at in 0.. {
            let test_dir = TestDataDir::new();
            let count = fill(&test_dir).len() as u64;
            // What is staged again counts once, too: with the set, and after it.
            let again = record();
            stage(&test_dir, std::slice::from_ref(&again));
            let has_crashed = crash(&test_dir, kind, at);
            stage(&test_dir, &[again]);
            let case = format!("{kind:?} at {at}");
            assert_eq!(all(&test_dir), count + 1, "{case}");
            // A part of a day.
            let since = SystemTime::now() - HOUR;
            let part = tally(test_dir.path(), Some(since), None).unwrap();
            assert_eq!(records(&part), count + 1, "{case}");
            while consolidate(test_dir.path(), &options()).unwrap().entries > 0 {}
            assert_eq!(all(&test_dir), count + 1, "{case}, recovered");
            if !has_crashed {
                break;
            }
        }
    }
}

#[test]
fn tally_is_exact_during_concurrent_staging_and_consolidation() {
    let test_dir = TestDataDir::new();
    let staging = Staging::open(test_dir.data().staging).unwrap();
    let (begun, done, looks) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                // A few for each look, so that there are not too many to look at.
                while !ended.load(Ordering::SeqCst) {
                    if done.load(Ordering::SeqCst) > looks.load(Ordering::SeqCst) * 20 {
                        thread::yield_now();
                        continue;
                    }
                    begun.fetch_add(1, Ordering::SeqCst);
                    staging.stage(&record(), Durability::Process).unwrap();
                    done.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        scope.spawn(|| {
            while !ended.load(Ordering::SeqCst) {
                staging.seal().unwrap();
                consolidate(test_dir.path(), &Options::default()).unwrap_or_default();
            }
        });
        for look in 1..=100 {
            looks.store(look, Ordering::SeqCst);
            let least = done.load(Ordering::SeqCst);
            let found = tally(test_dir.path(), None, None).map(|tally| records(&tally));
            let most = begun.load(Ordering::SeqCst);
            if !found
                .as_ref()
                .is_ok_and(|found| (least..=most).contains(found))
            {
                ended.store(true, Ordering::SeqCst);
                panic!("look {look}: {least} {found:?} {most}");
            }
        }
        ended.store(true, Ordering::SeqCst);
    });
    staging.close().unwrap();
    assert_eq!(all(&test_dir), done.load(Ordering::SeqCst));
}

#[test]
fn tally_rounds_a_span_to_full_hours_and_reports_its_start() {
    let test_dir = TestDataDir::new();
    let now = jiff::Timestamp::now();
    let ago = |hours: u64| now - Duration::from_secs(hours * 3600);
    let made: Vec<Record> = (0..60)
        .map(|hours| record_of(&ago(hours).to_string()))
        .collect();
    let since = |hours: u64, until: Option<u64>| {
        let tally = tally(
            test_dir.path(),
            Some(ago(hours).into()),
            until.map(|hours| ago(hours).into()),
        );
        let tally = tally.unwrap();
        let from: jiff::Timestamp = tally.from.unwrap().try_into().unwrap();
        assert_eq!(from.to_string()[13..], *":00:00Z", "a full hour");
        assert_eq!(from.to_string()[..13], ago(hours).to_string()[..13]);
        records(&tally)
    };
    let check = || {
        for hours in [0, 1, 5, 23, 24, 25, 48, 59] {
            assert_eq!(since(hours, None), hours + 1, "since {hours} hours");
        }
        // The hour in which it ends is part of it.
        assert_eq!(since(30, Some(10)), 21);
        assert_eq!(since(59, Some(59)), 1);
    };
    stage(&test_dir, &made);
    check();
    consolidate(test_dir.path(), &Options::default()).unwrap();
    check();
    // Half of them staged.
    let more: Vec<Record> = (0..60)
        .map(|hours| record_of(&ago(hours).to_string()))
        .collect();
    stage(&test_dir, &more);
    assert_eq!(since(24, None), 50);
}

#[test]
fn tally_counts_the_whole_day_if_its_hours_are_no_longer_known() {
    let test_dir = TestDataDir::new();
    let times = [
        "2024-02-01T23:59:59Z",
        "2024-02-02T03:00:00Z",
        "2024-02-02T20:00:00Z",
    ];
    stage(&test_dir, &times.map(record_of));
    let at = |text: &str| Some(text.parse::<jiff::Timestamp>().unwrap().into());
    let noon = at("2024-02-02T12:34:00Z");
    let asked = tally(test_dir.path(), noon, None).unwrap();
    assert_eq!(records(&asked), 1, "staged records are counted by the hour");
    assert_eq!(asked.from, at("2024-02-02T12:00:00Z"));
    consolidate(test_dir.path(), &Options::default()).unwrap();
    let asked = tally(test_dir.path(), noon, None).unwrap();
    assert_eq!(records(&asked), 2);
    assert_eq!(asked.from, at("2024-02-02T00:00:00Z"));
    let asked = tally(test_dir.path(), None, noon).unwrap();
    assert_eq!(records(&asked), 3);
    assert_eq!(asked.until, at("2024-02-03T00:00:00Z"));
    // Of the same day, and only staged.
    stage(&test_dir, &[record_of("2024-02-02T01:00:00Z")]);
    assert_eq!(records(&tally(test_dir.path(), noon, None).unwrap()), 3);
}

#[test]
fn damaged_totals_are_reported_and_the_other_days_count() {
    let test_dir = TestDataDir::new();
    let times = ["2024-02-01T12:00:00Z", "2024-02-02T12:00:00Z"];
    stage(&test_dir, &times.map(record_of));
    consolidate(test_dir.path(), &Options::default()).unwrap();
    let path = test_dir.data().usage.join("2024-02-01.json");
    fs::write(
        &path,
        fs::read_to_string(&path)
            .unwrap()
            .replace("\"records\":1", "\"records\":2"),
    )
    .unwrap();
    let tally = tally(test_dir.path(), None, None).unwrap();
    assert_eq!(tally.rows.len(), 1);
    assert_eq!(tally.problems.len(), 1);
    assert_eq!(tally.problems[0].path(), path);
}

#[test]
fn tally_rows_separate_keys_and_count_outcomes() {
    let test_dir = TestDataDir::new();
    let texts = [
        r#"{"model":"a","key":"k","backend":"b","outcome":"complete","tokens_from":"reported","tokens":1}"#,
        r#"{"model":"a","key":"k","backend":"b","outcome":"cut","tokens_from":"estimated","tokens":1}"#,
        r#"{"model":"a","key":null,"backend":"b","outcome":"refused","tokens_from":"none"}"#,
    ];
    stage(&test_dir, &texts.map(|text| Record::parse(text).unwrap()));
    let before = tally(test_dir.path(), None, None).unwrap().rows;
    consolidate(test_dir.path(), &Options::default()).unwrap();
    let rows = tally(test_dir.path(), None, None).unwrap().rows;
    assert_eq!(before, rows, "the same, staged or consolidated");
    assert_eq!(rows.len(), 2);
    assert_eq!(
        (&rows[0].key, rows[0].records, rows[0].tokens),
        (&None, 1, 0)
    );
    assert_eq!((rows[1].key.as_deref(), rows[1].records), (Some("k"), 2));
    assert_eq!(rows[1].counts["outcome"]["cut"], 1);
    assert_eq!(rows[1].counts["tokens_from"]["estimated"], 1);
}

/// Removes files of the totals by their periods. Returns the day that there is.
fn remove_totals(test_dir: &TestDataDir, is_removed: impl Fn(&str) -> bool) -> String {
    let usage = test_dir.data().usage;
    let mut day = None;
    for name in names(&usage) {
        let Some(period) = crate::totals::period_of(&name) else {
            continue;
        };
        if !crate::totals::is_hour(period) {
            day = Some(period.to_owned());
        }
        if is_removed(period) {
            fs::remove_file(usage.join(&name)).unwrap();
        }
    }
    day.unwrap()
}

fn add_up(test_dir: &TestDataDir) -> (u64, Vec<String>) {
    let tally = tally(test_dir.path(), None, None).unwrap();
    let records = tally.rows.iter().map(|row| row.records).sum();
    let problems = tally.problems.iter().map(ToString::to_string);
    (records, problems.collect())
}

#[test]
fn lost_totals_of_a_day_are_rebuilt_from_its_hours() {
    for damage in [None, Some("{}")] {
        let test_dir = TestDataDir::new();
        test_dir.entry(5, true);
        consolidate(test_dir.path(), &options()).unwrap();
        let day = remove_totals(&test_dir, |period| !crate::totals::is_hour(period));
        let path = test_dir.data().usage.join(format!("{day}.json"));
        if let Some(damage) = damage {
            fs::write(&path, damage).unwrap();
        }
        let (records, problems) = add_up(&test_dir);
        assert_eq!((records, problems.len()), (0, 1), "{problems:?}");
        assert!(!verify(test_dir.path(), &Watch::silent()).unwrap().balance());
        test_dir.entry(1, true);
        consolidate(test_dir.path(), &options()).unwrap();
        assert_eq!(add_up(&test_dir), (6, Vec::new()));
        let books = verify(test_dir.path(), &Watch::silent()).unwrap();
        assert!(books.balance(), "{:?}", books.problems);
    }
}

#[test]
fn totals_that_cannot_be_rebuilt_are_reported_with_the_day_and_the_gap() {
    let test_dir = TestDataDir::new();
    test_dir.entry(5, true);
    consolidate(test_dir.path(), &options()).unwrap();
    let day = remove_totals(&test_dir, |_| true);
    // A consolidator that goes on knows it as well as a new one.
    for records in 1..3 {
        test_dir.entry(1, true);
        consolidate(test_dir.path(), &options()).unwrap();
        let gap = format!(
            "{day}.json: its totals lack 5 of at least {} records",
            5 + records
        );
        let (found, problems) = add_up(&test_dir);
        assert_eq!((found, problems.len()), (records, 1));
        assert!(problems[0].ends_with(&gap), "{problems:?}");
        let books = verify(test_dir.path(), &Watch::silent()).unwrap();
        let problems: Vec<_> = books.problems.iter().map(ToString::to_string).collect();
        assert!(
            problems.iter().any(|problem| problem.contains("lack 5")),
            "{problems:?}"
        );
    }
}

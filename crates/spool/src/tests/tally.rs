//! The tally counts each record once, in whatever state it is and while other processes work.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use uuid::{NoContext, Timestamp, Uuid};

use super::crash_recovery::{crash, fill};
use super::crashing_disk::CRASHES;
use super::grouping::{grouping, tally};
use super::test_data_dir::{TestDataDir, batches_of, names, record};
use crate::consolidate::{Options, consolidate};
use crate::delivery::Watch;
use crate::record::Record;
use crate::staging::{Durability, Staging};
use crate::tally::Tally;
use crate::totals::Grouping;
use crate::verify::verify;

const HOUR: Duration = Duration::from_secs(3600);

fn count_all(test_dir: &TestDataDir) -> u64 {
    records(&tally(test_dir.path(), None, None).unwrap())
}

/// Returns the number of records that a tally counts. Panics if the tally reports problems.
fn records(tally: &Tally) -> u64 {
    assert!(tally.problems.is_empty(), "{:?}", tally.problems);
    let tokens: u64 = tally.rows.iter().map(|row| row.total).sum();
    let records = tally.rows.iter().map(|row| row.records).sum();
    assert_eq!(tokens, records, "every record has one token");
    records
}

/// Record of one token whose id contains this time, by which the tally counts the record.
fn record_of(time: &str) -> Record {
    let time: jiff::Timestamp = time.parse().unwrap();
    let seconds = u64::try_from(time.as_second()).unwrap();
    let id = Uuid::new_v7(Timestamp::from_unix(NoContext, seconds, 0));
    Record::parse(&format!(r#"{{"id":"{id}","tokens":1}}"#)).unwrap()
}

#[test]
fn missing_data_directory_has_an_empty_tally_and_is_not_created() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing");
    assert_eq!(tally(&missing, None, None).unwrap().rows, []);
    assert!(!missing.exists());
}

#[test]
fn record_counts_once_while_staged_consolidated_and_delivered() {
    let test_dir = TestDataDir::new();
    let staging = Staging::open(test_dir.data().staging).unwrap();
    staging.stage(&record(), Durability::Process).unwrap();
    assert_eq!(count_all(&test_dir), 1, "in an open entry");
    assert!(names(&test_dir.data().staging)[0].contains(".jsonl.open"));
    staging.seal().unwrap();
    assert_eq!(count_all(&test_dir), 1, "sealed");
    test_dir.record_file();
    test_dir.entry(3, false);
    assert_eq!(
        count_all(&test_dir),
        5,
        "in a file of one record and an abandoned entry"
    );
    consolidate(test_dir.path(), &batches_of(100)).unwrap();
    assert_eq!(count_all(&test_dir), 5, "in batches");
    test_dir.deliver_all();
    staging.stage(&record(), Durability::Process).unwrap();
    assert_eq!(count_all(&test_dir), 6, "delivered, and one more staged");
}

#[test]
fn record_staged_repeatedly_counts_once() {
    let test_dir = TestDataDir::new();
    let (one, two) = (record(), record());
    test_dir.stage(&[one.clone(), two.clone(), one.clone()]);
    test_dir.stage(std::slice::from_ref(&two));
    assert_eq!(count_all(&test_dir), 2);
    consolidate(test_dir.path(), &batches_of(100)).unwrap();
    // Neither a repeated record nor a different record with a known id counts. Consolidation
    // quarantines the latter.
    test_dir.stage(std::slice::from_ref(&one));
    let other = format!(r#"{{"id":"{}","tokens":5}}"#, two.id());
    test_dir.stage(&[Record::parse(&other).unwrap()]);
    assert_eq!(count_all(&test_dir), 2);
    consolidate(test_dir.path(), &batches_of(100)).unwrap();
    assert_eq!(count_all(&test_dir), 2);
}

#[test]
fn tally_is_exact_after_a_consolidation_crashes_at_any_operation() {
    for kind in CRASHES {
        for at in 0.. {
            let test_dir = TestDataDir::new();
            let count = fill(&test_dir).len() as u64;
            // A record that is staged before and after the crash is one record, which the tally
            // must count once.
            let again = record();
            test_dir.stage(std::slice::from_ref(&again));
            let has_crashed = crash(&test_dir, kind, at);
            test_dir.stage(&[again]);
            let case = format!("{kind:?} at {at}");
            assert_eq!(count_all(&test_dir), count + 1, "{case}");
            // A tally of the last hour reads the totals by hour, so that these are tested as well
            // as those by day.
            let since = SystemTime::now() - HOUR;
            let part = tally(test_dir.path(), Some(since), None).unwrap();
            assert_eq!(records(&part), count + 1, "{case}");
            while consolidate(test_dir.path(), &batches_of(4))
                .unwrap()
                .entries
                > 0
            {}
            assert_eq!(count_all(&test_dir), count + 1, "{case}, recovered");
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
    let (begun, done, tallies) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                // Producers stage about 20 records per tally, and then wait for the next tally to
                // start. Otherwise staged records would accumulate and slow the tallies down.
                while !ended.load(Ordering::SeqCst) {
                    if done.load(Ordering::SeqCst) > tallies.load(Ordering::SeqCst) * 20 {
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
                consolidate(test_dir.path(), &batches_of(100)).unwrap_or_default();
            }
        });
        for number in 1..=100 {
            tallies.store(number, Ordering::SeqCst);
            let min = done.load(Ordering::SeqCst);
            let found = tally(test_dir.path(), None, None).map(|tally| records(&tally));
            let max = begun.load(Ordering::SeqCst);
            if !found
                .as_ref()
                .is_ok_and(|found| (min..=max).contains(found))
            {
                ended.store(true, Ordering::SeqCst);
                panic!("tally {number}: {min} {found:?} {max}");
            }
        }
        ended.store(true, Ordering::SeqCst);
    });
    staging.close().unwrap();
    assert_eq!(count_all(&test_dir), done.load(Ordering::SeqCst));
}

#[test]
fn tally_rounds_a_span_to_full_hours_and_reports_its_start() {
    let test_dir = TestDataDir::new();
    let now = jiff::Timestamp::now();
    let ago = |hours: u64| now - Duration::from_secs(hours * 3600);
    let old: Vec<Record> = (0..60)
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
        // The hour in which the span ends is included.
        assert_eq!(since(30, Some(10)), 21);
        assert_eq!(since(59, Some(59)), 1);
    };
    test_dir.stage(&old);
    check();
    consolidate(test_dir.path(), &batches_of(100)).unwrap();
    check();
    // Half of the records are staged and half are consolidated, so that the rounding of both is
    // tested.
    let more: Vec<Record> = (0..60)
        .map(|hours| record_of(&ago(hours).to_string()))
        .collect();
    test_dir.stage(&more);
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
    test_dir.stage(&times.map(record_of));
    let at = |text: &str| Some(text.parse::<jiff::Timestamp>().unwrap().into());
    let noon = at("2024-02-02T12:34:00Z");
    let part = tally(test_dir.path(), noon, None).unwrap();
    assert_eq!(records(&part), 1, "staged records are counted by the hour");
    assert_eq!(part.from, at("2024-02-02T12:00:00Z"));
    consolidate(test_dir.path(), &batches_of(100)).unwrap();
    let part = tally(test_dir.path(), noon, None).unwrap();
    assert_eq!(records(&part), 2);
    assert_eq!(part.from, at("2024-02-02T00:00:00Z"));
    let part = tally(test_dir.path(), None, noon).unwrap();
    assert_eq!(records(&part), 3);
    assert_eq!(part.until, at("2024-02-03T00:00:00Z"));
    // Because the totals cover the whole day, a staged record of that day counts too, although its
    // time is before noon.
    test_dir.stage(&[record_of("2024-02-02T01:00:00Z")]);
    assert_eq!(records(&tally(test_dir.path(), noon, None).unwrap()), 3);
}

#[test]
fn damaged_totals_are_reported_and_the_other_days_count() {
    let test_dir = TestDataDir::new();
    let times = ["2024-02-01T12:00:00Z", "2024-02-02T12:00:00Z"];
    test_dir.stage(&times.map(record_of));
    consolidate(test_dir.path(), &batches_of(100)).unwrap();
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
fn tally_rows_separate_groups_and_count_values() {
    let test_dir = TestDataDir::new();
    let texts = [
        r#"{"customer":"a","plan":"p","region":"r","status":"complete","source":"reported","tokens":1}"#,
        r#"{"customer":"a","plan":"p","region":"r","status":"cut","source":"estimated","tokens":1}"#,
        r#"{"customer":"a","plan":null,"region":"r","status":"refused","source":"none"}"#,
    ];
    test_dir.stage(&texts.map(|text| Record::parse(text).unwrap()));
    let before = tally(test_dir.path(), None, None).unwrap().rows;
    consolidate(test_dir.path(), &batches_of(100)).unwrap();
    let rows = tally(test_dir.path(), None, None).unwrap().rows;
    assert_eq!(
        before, rows,
        "rows differ between staged and consolidated records"
    );
    assert_eq!(rows.len(), 2);
    assert_eq!(
        (rows[0].value("plan"), rows[0].records, rows[0].total),
        (None, 1, 0)
    );
    assert_eq!((rows[1].value("plan"), rows[1].records), (Some("p"), 2));
    assert_eq!(rows[1].counts["status"]["cut"], 1);
    assert_eq!(rows[1].counts["source"]["estimated"], 1);
}

/// Removes the totals files whose period (a day or an hour) matches `is_removed`. Returns the day
/// that had a totals file before the removal. There is only one such day, unless the test runs at
/// midnight.
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

/// Returns the number of records and the problems of a tally.
fn count_with_problems(test_dir: &TestDataDir) -> (u64, Vec<String>) {
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
        consolidate(test_dir.path(), &batches_of(4)).unwrap();
        let day = remove_totals(&test_dir, |period| !crate::totals::is_hour(period));
        let path = test_dir.data().usage.join(format!("{day}.json"));
        if let Some(damage) = damage {
            fs::write(&path, damage).unwrap();
        }
        let (records, problems) = count_with_problems(&test_dir);
        assert_eq!((records, problems.len()), (0, 1), "{problems:?}");
        assert!(!verify(test_dir.path(), &Watch::silent()).unwrap().balance());
        test_dir.entry(1, true);
        consolidate(test_dir.path(), &batches_of(4)).unwrap();
        assert_eq!(count_with_problems(&test_dir), (6, Vec::new()));
        test_dir.assert_balanced("at the end");
    }
}

#[test]
fn totals_that_cannot_be_rebuilt_are_reported_with_the_day_and_the_gap() {
    let test_dir = TestDataDir::new();
    test_dir.entry(5, true);
    consolidate(test_dir.path(), &batches_of(4)).unwrap();
    let day = remove_totals(&test_dir, |_| true);
    // The gap (the 5 records whose totals were removed) is reported after the first consolidation
    // and after later ones.
    for records in 1..3 {
        test_dir.entry(1, true);
        consolidate(test_dir.path(), &batches_of(4)).unwrap();
        let gap = format!(
            "{day}.json: the totals of the day lack 5 of at least {} records",
            5 + records
        );
        let (found, problems) = count_with_problems(&test_dir);
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

#[test]
fn rows_of_another_grouping_are_kept_by_day_and_by_hour() {
    let test_dir = TestDataDir::new();
    let record =
        || Record::parse(r#"{"customer":"a","plan":"p","region":"r","tokens":1}"#).unwrap();
    let groupings = [
        Grouping::by(["customer"]).sum(["tokens"]),
        grouping(),
        Grouping::default(),
    ];
    for grouping in &groupings {
        test_dir.stage(&[record(), record()]);
        let options = Options {
            grouping: grouping.clone(),
            ..Options::default()
        };
        consolidate(test_dir.path(), &options).unwrap();
    }
    let since = SystemTime::now() - HOUR;
    for from in [None, Some(since)] {
        let rows = tally(test_dir.path(), from, None).unwrap().rows;
        // A row has the fields, the sums and the total of the grouping that wrote it.
        let mut found: Vec<_> = rows
            .iter()
            .map(|row| {
                let fields: Vec<_> = row.group.keys().map(String::as_str).collect();
                let tokens = row.sums.get("tokens").copied();
                (fields, row.records, row.total, tokens)
            })
            .collect();
        found.sort();
        let expected = [
            (vec![], 2, 0, None),
            (vec!["customer"], 2, 0, Some(2)),
            (vec!["customer", "plan", "region"], 2, 2, Some(2)),
        ];
        assert_eq!(found, expected, "{from:?}");
    }
    // Remove the file of the day. It must be rebuilt from the hours with the rows of every
    // grouping.
    let before = count_with_problems(&test_dir);
    remove_totals(&test_dir, |period| !crate::totals::is_hour(period));
    test_dir.stage(&[record()]);
    consolidate(test_dir.path(), &batches_of(100)).unwrap();
    assert_eq!(before, (6, Vec::new()));
    assert_eq!(count_with_problems(&test_dir), (7, Vec::new()));
    let rows = tally(test_dir.path(), None, None).unwrap().rows;
    assert_eq!(rows.len(), 3, "{rows:?}");
    let books = verify(test_dir.path(), &Watch::silent()).unwrap();
    assert!(books.balance(), "{:?}", books.problems);
}

//! Delivery under faults of the destination, the disk and the clock. (promises S6, S7, S8, S10)

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::crashing_disk::{CRASHES, CrashingDisk};
use super::fake_receiver::{FakeReceiver, ScriptedReply};
use super::test_data_dir::{TestDataDir, batches_of, each_once, names, real_disk};
use crate::batch::Batch;
use crate::consolidate::{Options, consolidate};
use crate::delivery::{Answer, Clock, DeliveryOptions, Sink, Watch, archive, deliver};
use crate::disk::Disk;
use crate::manager::SpoolManager;
use crate::record::Record;
use crate::verify::verify;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Creates a data directory with pending batches of four records each.
fn filled(records: usize) -> (TestDataDir, Vec<Uuid>) {
    let test_dir = TestDataDir::new();
    let ids = test_dir
        .entry(records, true)
        .iter()
        .map(Record::id)
        .collect();
    let options = batches_of(4);
    consolidate(test_dir.path(), &options).unwrap();
    (test_dir, ids)
}

fn spool(test_dir: &TestDataDir) -> SpoolManager {
    SpoolManager::new(test_dir.path())
}

fn later(after: Option<u64>) -> Answer {
    Answer::later("503", after.map(Duration::from_secs))
}

fn unknown() -> Answer {
    Answer::unknown("connection reset", None)
}

/// Returns the billed records. Panics if a record was billed twice.
fn billed(test_dir: &TestDataDir) -> BTreeSet<Uuid> {
    each_once(test_dir.receiver.billed(), "billed")
}

#[test]
fn each_record_is_delivered_once_and_the_spool_is_empty() {
    let (test_dir, ids) = filled(10);
    test_dir.deliver_all();
    assert_eq!(billed(&test_dir), ids.into_iter().collect());
    assert_eq!(names(&test_dir.data().spool), [""; 0]);
    test_dir.assert_balanced("delivered");
    assert_eq!(test_dir.receiver.arrivals().len(), 3);
    test_dir.deliver_all();
    assert_eq!(
        test_dir.receiver.arrivals().len(),
        3,
        "a delivered batch was sent again"
    );
}

#[test]
fn rejected_record_fails_alone_and_the_rest_of_its_batch_is_delivered() {
    let (test_dir, ids) = filled(12);
    test_dir
        .receiver
        .poison
        .lock()
        .unwrap()
        .extend([ids[1], ids[6], ids[7]]);
    test_dir.deliver_all();
    let good: BTreeSet<_> = ids
        .iter()
        .filter(|id| ![ids[1], ids[6], ids[7]].contains(id))
        .copied()
        .collect();
    assert_eq!(billed(&test_dir), good);
    let failed = spool(&test_dir).failed().unwrap();
    assert_eq!(failed.len(), 3);
    for one in &failed {
        assert!(one.is_batch && !one.is_ambiguous && one.records == 1);
        assert_eq!(one.reason, "422: poison");
    }
    test_dir.assert_balanced("poison");
}

/// Makes the receiver reject all following batches.
fn reject_everything(test_dir: &TestDataDir) {
    for _ in 0..2000 {
        let rejected = Answer::rejected("400: no");
        test_dir
            .receiver
            .push_reply(ScriptedReply::Refuse(rejected));
    }
}

fn accept_everything(test_dir: &TestDataDir) {
    test_dir.receiver.replies.lock().unwrap().clear();
}

fn pending_records(test_dir: &TestDataDir) -> BTreeSet<Uuid> {
    test_dir.pending_records().into_iter().collect()
}

#[test]
fn delivery_pauses_and_no_batch_fails_while_a_destination_rejects_every_batch() {
    // Record counts that give one, two and many batches of four. Delivery must pause in each case
    // without a batch in `failed/`.
    for records in [1, 4, 8, 400] {
        let (test_dir, ids) = filled(records);
        let all: BTreeSet<_> = ids.iter().copied().collect();
        reject_everything(&test_dir);
        let mut sent = 0;
        for run in 0..20 {
            test_dir.deliver_all();
            let pause = spool(&test_dir).pause("the receiver").unwrap().unwrap();
            assert!(pause.is_misconfigured, "{pause:?}");
            assert!(pause.why.contains("400: no"), "{pause:?}");
            let arrivals = test_dir.receiver.arrivals().len();
            assert!(arrivals > sent, "run {run} sends nothing");
            assert!(
                arrivals - sent <= 5,
                "run {run} bisects more than one batch of 4"
            );
            sent = arrivals;
            assert_eq!(spool(&test_dir).failed().unwrap().len(), 0, "run {run}");
            assert_eq!(pending_records(&test_dir), all, "run {run}");
            test_dir.assert_balanced("rejected");
            test_dir.deliver_all();
            assert_eq!(test_dir.receiver.arrivals().len(), sent, "sent in a pause");
            test_dir.receiver.clock.forward(DAY);
        }
        accept_everything(&test_dir);
        test_dir.deliver_all();
        assert_eq!(billed(&test_dir), all);
        assert_eq!(spool(&test_dir).pause("the receiver").unwrap(), None);
        test_dir.assert_balanced("accepted");
    }
}

#[test]
fn each_run_bisects_another_batch_until_a_part_is_accepted() {
    let (test_dir, ids) = filled(24);
    // The receiver accepts only the records of the fifth batch. If a run bisected the same batch as
    // the run before, it would never find an accepted one.
    let bad = [&ids[..16], &ids[20..]].concat();
    test_dir.receiver.poison.lock().unwrap().extend(&bad);
    for run in 0..4 {
        test_dir.deliver_all();
        assert_eq!(billed(&test_dir).len(), 0, "run {run}");
        assert_eq!(spool(&test_dir).failed().unwrap().len(), 0, "run {run}");
        test_dir.receiver.clock.forward(DAY);
    }
    test_dir.deliver_all();
    assert_eq!(billed(&test_dir), ids[16..20].iter().copied().collect());
    // The receiver has accepted a part, so records are at fault. Each later run may split rejected
    // batches down to single records in `failed/`.
    for _ in 0..20 {
        test_dir.receiver.clock.forward(DAY);
        test_dir.deliver_all();
    }
    let failed = spool(&test_dir).failed().unwrap();
    assert!(!failed.is_empty() && failed.iter().all(|one| one.records == 1));
    let found: BTreeSet<_> = billed(&test_dir)
        .into_iter()
        .chain(pending_records(&test_dir))
        .collect();
    assert_eq!(found.len() + failed.len(), 24);
    test_dir.assert_balanced("mostly rejected");
}

#[test]
fn at_most_one_batch_fails_when_a_destination_starts_to_reject_every_batch() {
    let (test_dir, ids) = filled(400);
    for _ in 0..3 {
        test_dir
            .receiver
            .push_reply(ScriptedReply::Commit(Answer::accepted("200")));
    }
    reject_everything(&test_dir);
    for _ in 0..50 {
        test_dir.deliver_all();
        test_dir.receiver.clock.forward(DAY);
    }
    assert_eq!(
        spool(&test_dir).failed().unwrap().len(),
        4,
        "records of one batch"
    );
    accept_everything(&test_dir);
    test_dir.deliver_all();
    let rest = [&ids[..12], &ids[16..]].concat();
    assert_eq!(billed(&test_dir), rest.into_iter().collect());
    test_dir.assert_balanced("rejected since");
}

#[test]
fn rejected_batches_of_unknown_outcome_fail_whole_and_one_in_each_run() {
    let (test_dir, ids) = filled(40);
    for _ in 0..5 {
        test_dir
            .receiver
            .push_reply(ScriptedReply::Refuse(unknown()));
    }
    test_dir
        .receiver
        .push_reply(ScriptedReply::Refuse(Answer::misconfigured("401")));
    test_dir.deliver_all();
    test_dir.receiver.clock.forward(DAY);
    reject_everything(&test_dir);
    // Each run sends batches without an attempt first and pauses after a rejection. So the five
    // batches of unknown outcome are sent, and fail, only in later runs.
    for run in 1..20 {
        test_dir.deliver_all();
        test_dir.receiver.clock.forward(DAY);
        let failed = spool(&test_dir).failed().unwrap();
        assert!(failed.len() <= run, "{failed:?}");
        assert!(
            failed
                .iter()
                .all(|one| one.is_ambiguous && one.records == 4)
        );
    }
    assert_eq!(spool(&test_dir).failed().unwrap().len(), 5);
    accept_everything(&test_dir);
    test_dir.deliver_all();
    assert_eq!(billed(&test_dir), ids[20..].iter().copied().collect());
    test_dir.assert_balanced("unknown and rejected");
}

#[test]
fn delivery_ends_although_the_state_files_of_many_batches_are_unreadable() {
    let test_dir = TestDataDir::new();
    test_dir.entry(1100, true);
    let options = Options {
        batch_size: 1,
        max_entries: 1,
        ..Options::default()
    };
    consolidate(test_dir.path(), &options).unwrap();
    let mut batches = names(&test_dir.data().spool);
    let good = batches.pop().unwrap();
    for name in &batches {
        // Put a directory in place of each state file: a directory cannot be read as a file, not
        // even by root.
        let state = test_dir.data().spool.join(crate::manager::state_name(name));
        fs::create_dir(state).unwrap();
    }
    let (ended, has_ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let disk = real_disk();
        let done = test_dir.deliver(&disk).unwrap();
        let left = names(&test_dir.data().spool);
        let _ = ended.send((done, left.contains(&good)));
    });
    let done = has_ended.recv_timeout(Duration::from_secs(120));
    let (done, is_left) = done.expect("the run did not end");
    assert_eq!((done.records, done.waiting, is_left), (1, 1099, false));
    assert!(done.last_error.unwrap().starts_with("cannot read"));
}

/// Stages, consolidates and delivers `count` further batches of one record each, which adds events
/// to the journal.
fn deliver_others(test_dir: &TestDataDir, count: usize) {
    test_dir.entry(count, true);
    let options = batches_of(1);
    consolidate(test_dir.path(), &options).unwrap();
    test_dir.deliver_all();
}

#[test]
fn half_of_a_split_batch_is_delivered_once_although_many_events_follow_the_crash() {
    let most = usize::try_from(crate::manager::MAX_EVENTS).unwrap();
    let mut crashed = 0;
    for at in 0.. {
        let (test_dir, ids) = filled(4);
        test_dir.receiver.poison.lock().unwrap().push(ids[3]);
        let whole = spool(&test_dir).pending(None, 1).unwrap().remove(0);
        let disk = Arc::new(CrashingDisk::new(super::crashing_disk::Crash::After, at));
        let _ = test_dir.deliver(&(Arc::clone(&disk) as Arc<dyn Disk>));
        let is_splitting = spool(&test_dir).state(&whole).unwrap().splitting;
        if is_splitting && disk.has_crashed() {
            crashed += 1;
            // Deliver so many other batches that the journal drops the generation with the events
            // of the halves.
            for _ in 0..3 {
                deliver_others(&test_dir, most);
            }
            test_dir.receiver.clock.forward(DAY);
            test_dir.deliver_all();
            assert!(billed(&test_dir).is_superset(&ids[..2].iter().copied().collect()));
            let keys = test_dir.receiver.keys();
            let twice: Vec<_> = keys.iter().filter(|(_, times)| **times > 1).collect();
            assert!(twice.len() <= 1, "at {at}: keys sent twice: {twice:?}");
            test_dir.assert_balanced("after the crash");
        }
        if !disk.has_crashed() {
            break;
        }
    }
    assert!(crashed > 3, "{crashed}");
}

#[test]
fn ledger_keeps_the_batches_of_an_unfinished_snapshot_after_many_events() {
    let most = usize::try_from(crate::manager::MAX_EVENTS).unwrap();
    let test_dir = TestDataDir::new();
    let ids: BTreeSet<_> = (test_dir.entry(4 * most, true).iter().map(Record::id)).collect();
    let options = batches_of(1);
    consolidate(test_dir.path(), &options).unwrap();
    // The snapshot is unfinished, as after a crash before it is marked as written.
    let data = test_dir.data();
    let names: Vec<String> = vec![format!("{}.jsonl", Uuid::now_v7())];
    let set = crate::snapshot::Snapshot::new(names, 1);
    set.begin(&crate::disk::RealDisk, &data.staging).unwrap();
    test_dir.deliver_all();
    let index = crate::manager::OutcomeIndex::read(&data).unwrap();
    let store = spool(&test_dir);
    assert_eq!(store.count().unwrap(), 0);
    assert_eq!(billed(&test_dir), ids);
    assert_eq!(index.names().count(), ids.len());
}

/// A receiver that answers some batches with the function's answer, and passes the others to a
/// [`FakeReceiver`].
struct Override<'a, F>(&'a FakeReceiver, F);

impl<F: Fn(&Batch) -> Option<Answer>> Sink for Override<'_, F> {
    fn name(&self) -> &'static str {
        "override"
    }

    fn send(&self, batch: &Batch) -> Answer {
        (self.1)(batch).unwrap_or_else(|| self.0.send(batch))
    }
}

/// Returns a function for [`Override`] that answers 500 to the batches with these names, and leaves
/// the others alone.
fn fails_for(names: Vec<String>) -> impl Fn(&Batch) -> Option<Answer> {
    move |batch| {
        let is_named = names.contains(&batch.file_name());
        is_named.then(|| Answer::unknown("500", None))
    }
}

#[test]
fn batches_too_large_for_the_destination_are_halved_until_accepted_in_one_run() {
    let (test_dir, ids) = filled(160);
    let store = spool(&test_dir);
    let sink = Override(&test_dir.receiver, |batch: &Batch| {
        (batch.records().len() > 1).then(|| Answer::too_large("413"))
    });
    let (clock, run) = (&test_dir.receiver.clock, Uuid::now_v7());
    let options = DeliveryOptions::default();
    let done = deliver(&store, &sink, &options, clock, &Watch::silent(), run).unwrap();
    assert_eq!((done.records, done.waiting, done.failed), (160, 0, 0));
    assert_eq!(billed(&test_dir), ids.into_iter().collect());
    test_dir.assert_balanced("narrow");
}

#[test]
fn batch_of_rejected_records_blocks_no_other_batch() {
    let (test_dir, ids) = filled(40);
    test_dir.receiver.poison.lock().unwrap().extend(&ids[..8]);
    // Runs 1 and 2 each bisect one of the two rejected batches, and pause because no part is
    // accepted. In run 3 the receiver accepts the other batches first, which proves that records
    // are at fault, so one rejected batch is split into `failed/`.
    for _ in 0..3 {
        test_dir.deliver_all();
        test_dir.receiver.clock.forward(DAY);
    }
    assert_eq!(billed(&test_dir), ids[8..].iter().copied().collect());
    assert_eq!(spool(&test_dir).failed().unwrap().len(), 4);
    // Without any accepted batch the destination may be at fault, so no record fails.
    let (test_dir, ids) = filled(8);
    test_dir.receiver.poison.lock().unwrap().extend(&ids);
    test_dir.deliver_all();
    assert_eq!(spool(&test_dir).failed().unwrap().len(), 0);
    assert_eq!(pending_records(&test_dir).len(), 8);
    // Each record that the receiver accepts lets one rejected batch be split.
    for _ in 0..12 {
        test_dir.entry(1, true);
        consolidate(test_dir.path(), &Options::default()).unwrap();
        test_dir.receiver.clock.forward(DAY);
        test_dir.deliver_all();
    }
    assert_eq!(billed(&test_dir).len(), 12);
    assert_eq!(spool(&test_dir).failed().unwrap().len(), 8);
    test_dir.assert_balanced("rejected records alone");
}

#[test]
fn batch_that_may_have_arrived_is_never_split() {
    let (test_dir, ids) = filled(4);
    test_dir.receiver.poison.lock().unwrap().push(ids[0]);
    // The receiver stores the batch, the answer is lost, and the retry is rejected.
    test_dir
        .receiver
        .push_reply(ScriptedReply::Commit(unknown()));
    test_dir.deliver_all();
    assert_eq!(billed(&test_dir).len(), 4);
    let failed = spool(&test_dir).failed().unwrap();
    assert_eq!(failed.len(), 1);
    assert!(failed[0].is_ambiguous && failed[0].records == 4);
    assert!(
        failed[0].reason.starts_with("ambiguous"),
        "{}",
        failed[0].reason
    );
    test_dir.assert_balanced("ambiguous");
}

#[test]
fn each_record_is_delivered_once_after_a_crash_at_any_operation() {
    // The receiver rejects one record of the third batch, which must end in `failed/`.
    crash_everywhere(9);
}

#[test]
fn batch_that_may_have_arrived_is_not_billed_twice_after_a_crash_at_any_operation() {
    // A record of the second batch is rejected after the receiver has stored that batch.
    crash_everywhere(4);
}

fn crash_everywhere(poison: usize) {
    for kind in CRASHES {
        for at in 0.. {
            let (test_dir, ids) = filled(11);
            test_dir.receiver.poison.lock().unwrap().push(ids[poison]);
            test_dir
                .receiver
                .push_reply(ScriptedReply::Refuse(later(None)));
            test_dir
                .receiver
                .push_reply(ScriptedReply::Commit(unknown()));
            let disk = Arc::new(CrashingDisk::new(kind, at));
            let done = test_dir.deliver(&(Arc::clone(&disk) as Arc<dyn Disk>));
            let case = format!("{kind:?} at {at}");
            assert!(done.is_ok() || disk.has_crashed(), "{case}: {done:?}");
            // The first run after the crash may pause before the receiver accepts a batch, and
            // leave batches pending. The second run delivers or fails them.
            for _ in 0..2 {
                test_dir.deliver_all();
                test_dir.receiver.clock.forward(DAY);
            }
            let mut found = billed(&test_dir);
            let mut is_ambiguous = false;
            for failed in spool(&test_dir).failed().unwrap() {
                if !failed.is_batch {
                    assert!(failed.name.starts_with("sent-"), "{case}: {failed:?}");
                    continue;
                }
                is_ambiguous |= failed.is_ambiguous;
                let bytes = fs::read(test_dir.data().failed.join(&failed.name)).unwrap();
                let batch = crate::manager::check(&failed.name, &bytes).unwrap();
                found.extend(batch.records().iter().map(Record::id));
            }
            assert_eq!(found, ids.iter().copied().collect(), "{case}: lost");
            if !is_ambiguous {
                assert_eq!(billed(&test_dir).len(), 10, "{case}: the other records");
            }
            test_dir.assert_balanced(&case);
            assert_eq!(names(&test_dir.data().spool), [""; 0], "{case}");
            if !disk.has_crashed() {
                assert!(at > 50, "too few operations to crash at");
                assert_eq!(is_ambiguous, poison == 4);
                break;
            }
        }
    }
}

#[test]
fn batch_that_always_fails_blocks_no_other_batch() {
    let (test_dir, ids) = filled(40);
    let first = spool(&test_dir).pending(None, 1).unwrap().remove(0);
    let store = spool(&test_dir);
    let sink = Override(&test_dir.receiver, fails_for(vec![first.clone()]));
    let options = DeliveryOptions::default();
    let clock = &test_dir.receiver.clock;
    let done = deliver(
        &store,
        &sink,
        &options,
        clock,
        &Watch::silent(),
        Uuid::now_v7(),
    )
    .unwrap();
    assert_eq!((done.records, done.waiting), (36, 1));
    assert_eq!(billed(&test_dir), ids[4..].iter().copied().collect());
    assert_eq!(store.pending(None, 9).unwrap(), [first]);
}

#[test]
fn many_batches_that_always_fail_block_no_other_batch() {
    let (test_dir, ids) = filled(40);
    let store = spool(&test_dir);
    let bad = store.pending(None, 8).unwrap();
    let sink = Override(&test_dir.receiver, fails_for(bad));
    let clock = &test_dir.receiver.clock;
    // All batches have had an attempt before the destination becomes available.
    for _ in 0..200 {
        test_dir
            .receiver
            .push_reply(ScriptedReply::Refuse(later(None)));
    }
    for round in 0..12 {
        if round == 4 {
            test_dir.receiver.replies.lock().unwrap().clear();
        }
        let options = DeliveryOptions::default();
        let run = Uuid::now_v7();
        deliver(&store, &sink, &options, clock, &Watch::silent(), run).unwrap();
        clock.forward(options.max_wait);
    }
    assert_eq!(billed(&test_dir), ids[32..].iter().copied().collect());
}

#[test]
fn retry_after_for_one_batch_blocks_no_other_batch() {
    let (test_dir, ids) = filled(12);
    let store = spool(&test_dir);
    let limited = store.pending(None, 1).unwrap().remove(0);
    let sink = Override(&test_dir.receiver, |batch: &Batch| {
        (batch.file_name() == limited).then(|| later(Some(60)))
    });
    for _ in 0..3 {
        let options = DeliveryOptions::default();
        let (clock, run) = (&test_dir.receiver.clock, Uuid::now_v7());
        deliver(&store, &sink, &options, clock, &Watch::silent(), run).unwrap();
        clock.forward(DAY);
    }
    assert_eq!(billed(&test_dir), ids[4..].iter().copied().collect());
}

#[test]
fn pause_of_one_destination_survives_a_delivery_to_another() {
    let (test_dir, _) = filled(4);
    let store = spool(&test_dir);
    let pause = |to: &str| {
        let now = test_dir.receiver.clock.now();
        crate::Pause::new(to, now, DAY, "later")
    };
    store.set_pause(&pause("another")).unwrap();
    test_dir.deliver_all();
    assert_eq!(billed(&test_dir).len(), 4);
    assert!(store.pause("another").unwrap().is_some());
    store.end_pause("another").unwrap();
    assert_eq!(store.pauses().unwrap(), []);
}

#[test]
fn batch_with_an_unreadable_state_file_blocks_no_other_batch() {
    let (test_dir, ids) = filled(12);
    let path = test_dir
        .data()
        .spool
        .join(&names(&test_dir.data().spool)[0]);
    // Put a directory in place of the state file: a directory cannot be read as a file, not even by
    // root.
    let state = path.with_extension("state.json");
    fs::create_dir(&state).unwrap();
    let done = test_dir.deliver(&real_disk()).unwrap();
    assert_eq!(billed(&test_dir), ids[4..].iter().copied().collect());
    assert!(done.last_error.unwrap().starts_with("cannot read"));
    fs::remove_dir(state).unwrap();
    test_dir.deliver_all();
    assert_eq!(billed(&test_dir).len(), 12);
}

#[test]
fn no_batch_is_sent_during_a_retry_after_even_after_a_restart_or_a_clock_jump() {
    let (test_dir, ids) = filled(8);
    test_dir
        .receiver
        .push_reply(ScriptedReply::Refuse(later(Some(600))));
    let clock = &test_dir.receiver.clock;
    test_dir.deliver_all();
    assert_eq!(test_dir.receiver.arrivals().len(), 1);
    for step in [1, 300, 288] {
        clock.forward(Duration::from_secs(step));
        test_dir.deliver_all();
        let sent = test_dir.receiver.arrivals().len();
        assert_eq!(sent, 1, "after {step} seconds more");
    }
    // The clock goes back by days: the wait starts again with its full length, and no longer.
    clock.back(3 * DAY);
    test_dir.deliver_all();
    assert_eq!(test_dir.receiver.arrivals().len(), 1);
    clock.forward(Duration::from_secs(599));
    test_dir.deliver_all();
    assert_eq!(billed(&test_dir), ids.into_iter().collect());
    test_dir.assert_balanced("after the wait");
}

#[test]
fn short_retry_after_is_waited_for_and_a_long_one_is_bounded() {
    let (test_dir, _) = filled(4);
    test_dir
        .receiver
        .push_reply(ScriptedReply::Refuse(later(Some(5))));
    test_dir.deliver_all();
    let arrivals = test_dir.receiver.arrivals();
    assert_eq!(arrivals.len(), 2);
    assert!(arrivals[1].since(arrivals[0]) >= Duration::from_secs(5));

    let (test_dir, ids) = filled(4);
    test_dir
        .receiver
        .push_reply(ScriptedReply::Refuse(later(Some(365 * 24 * 3600))));
    test_dir.deliver_all();
    test_dir
        .receiver
        .clock
        .forward(DeliveryOptions::default().max_wait);
    test_dir.deliver_all();
    assert_eq!(billed(&test_dir), ids.into_iter().collect());
}

#[test]
fn retry_after_of_zero_or_one_second_does_not_cause_endless_attempts() {
    for seconds in [0, 1] {
        let (test_dir, ids) = filled(8);
        for _ in 0..1000 {
            test_dir
                .receiver
                .push_reply(ScriptedReply::Refuse(later(Some(seconds))));
        }
        test_dir.deliver_all();
        let attempts = test_dir.receiver.arrivals();
        assert!(attempts.len() < 10, "{} attempts", attempts.len());
        let shortest = Duration::from_millis(500);
        assert!(
            attempts
                .windows(2)
                .all(|two| two[1].since(two[0]) >= shortest)
        );
        test_dir.receiver.replies.lock().unwrap().clear();
        test_dir.receiver.clock.forward(DAY);
        test_dir.deliver_all();
        assert_eq!(billed(&test_dir), ids.into_iter().collect());
    }
}

#[test]
fn batch_fails_only_after_both_ten_rounds_and_seven_days() {
    let (test_dir, _) = filled(4);
    let options = DeliveryOptions::default();
    let clock = &test_dir.receiver.clock;
    let round = || {
        for _ in 0..20 {
            test_dir
                .receiver
                .push_reply(ScriptedReply::Refuse(later(None)));
        }
        test_dir.deliver_all();
        test_dir.receiver.replies.lock().unwrap().clear();
    };
    for _ in 0..20 {
        round();
        clock.forward(options.max_wait);
    }
    assert_eq!(spool(&test_dir).count().unwrap(), 1, "many rounds, one day");
    // A jump of the clock does not count as elapsed time.
    clock.forward(300 * DAY);
    round();
    assert_eq!(spool(&test_dir).count().unwrap(), 1, "one jump");
    for _ in 0..7 {
        clock.forward(DAY);
        round();
    }
    let failed = spool(&test_dir).failed().unwrap();
    assert_eq!(failed.len(), 1);
    assert!(
        failed[0].reason.starts_with("given up"),
        "{}",
        failed[0].reason
    );
    assert!(!failed[0].is_ambiguous);
    test_dir.assert_balanced("given up");

    let (test_dir, _) = filled(4);
    for round in 1..=10 {
        for _ in 0..20 {
            test_dir
                .receiver
                .push_reply(ScriptedReply::Refuse(later(None)));
        }
        test_dir.deliver_all();
        test_dir.receiver.clock.forward(DAY);
        let failed = spool(&test_dir).failed().unwrap().len();
        assert_eq!(failed, usize::from(round == 10), "round {round}");
    }
}

#[test]
fn unavailable_destination_gets_few_attempts_whatever_the_backlog() {
    let (test_dir, ids) = filled(400);
    for _ in 0..50 {
        test_dir
            .receiver
            .push_reply(ScriptedReply::Refuse(later(None)));
    }
    test_dir.deliver_all();
    let attempts = test_dir.receiver.arrivals().len();
    assert!(attempts < 10, "{attempts}");
    test_dir.receiver.replies.lock().unwrap().clear();
    test_dir.receiver.clock.forward(DAY);
    test_dir.deliver_all();
    assert_eq!(billed(&test_dir), ids.into_iter().collect());
}

#[test]
fn unauthorized_response_pauses_delivery_and_the_batches_stay_pending() {
    let (test_dir, ids) = filled(8);
    let clock = &test_dir.receiver.clock;
    for _ in 0..30 {
        test_dir
            .receiver
            .push_reply(ScriptedReply::Refuse(Answer::misconfigured(
                "401: invalid token",
            )));
    }
    for _ in 0..30 {
        test_dir.deliver_all();
        clock.forward(DAY);
    }
    assert_eq!(
        test_dir.receiver.arrivals().len(),
        30,
        "one attempt in each run"
    );
    let pause = spool(&test_dir).pause("the receiver").unwrap().unwrap();
    assert!(pause.is_misconfigured && pause.why.contains("invalid token"));
    assert_eq!(spool(&test_dir).failed().unwrap().len(), 0);
    test_dir.deliver_all();
    assert_eq!(billed(&test_dir), ids.into_iter().collect());
    assert_eq!(spool(&test_dir).pause("the receiver").unwrap(), None);
}

#[test]
fn failed_batch_is_delivered_after_a_resend() {
    let (test_dir, ids) = filled(4);
    test_dir.receiver.poison.lock().unwrap().push(ids[2]);
    test_dir.deliver_all();
    let store = spool(&test_dir);
    let failed = store.failed().unwrap().remove(0);
    store.resend(&failed.name).unwrap();
    assert_eq!(store.failed().unwrap().len(), 0);
    test_dir.assert_balanced("resent");
    test_dir.receiver.poison.lock().unwrap().clear();
    test_dir.deliver_all();
    assert_eq!(billed(&test_dir), ids.into_iter().collect());
    test_dir.assert_balanced("delivered");
    let refused = store.resend("nothing.json").unwrap_err().to_string();
    assert!(refused.contains("no such batch in failed/"), "{refused}");
}

#[test]
fn ambiguous_batch_stays_ambiguous_after_a_resend() {
    let (test_dir, ids) = filled(4);
    test_dir.receiver.poison.lock().unwrap().push(ids[0]);
    test_dir
        .receiver
        .push_reply(ScriptedReply::Refuse(unknown()));
    test_dir.deliver_all();
    let store = spool(&test_dir);
    let failed = store.failed().unwrap().remove(0);
    assert!(failed.is_ambiguous);
    store.resend(&failed.name).unwrap();
    test_dir.receiver.clock.forward(DAY);
    test_dir.deliver_all();
    let again = store.failed().unwrap();
    assert_eq!(again.len(), 1);
    assert!(
        again[0].is_ambiguous && again[0].records == 4,
        "{:?}",
        again[0]
    );
}

#[test]
fn batches_without_a_destination_are_archived_and_can_be_resent() {
    let (test_dir, ids) = filled(9);
    let store = spool(&test_dir);
    assert_eq!(archive(&store, &Watch::silent()).unwrap().0, 9);
    assert_eq!(names(&test_dir.data().archive).len(), 3);
    test_dir.assert_balanced("archived");
    for name in names(&test_dir.data().archive) {
        store.resend(&name).unwrap();
    }
    test_dir.assert_balanced("moved back to the spool");
    test_dir.deliver_all();
    assert_eq!(billed(&test_dir), ids.into_iter().collect());
    test_dir.assert_balanced("delivered");
}

#[test]
fn damaged_batch_is_quarantined_and_the_others_are_delivered() {
    let (test_dir, ids) = filled(8);
    let data = test_dir.data();
    let name = names(&data.spool).remove(0);
    let path = data.spool.join(&name);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replacen("tokens", "tokeNs", 1)).unwrap();
    test_dir.deliver_all();
    assert_eq!(billed(&test_dir), ids[4..].iter().copied().collect());
    let failed = spool(&test_dir).failed().unwrap();
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0].reason, "record 1: its checksum does not match");
    let books = verify(test_dir.path(), &Watch::silent()).unwrap();
    let named = books
        .problems
        .iter()
        .find(|problem| problem.path.ends_with(&name));
    let named = named.unwrap().to_string();
    assert!(
        named.contains(&format!("record 1 (id {})", ids[0])),
        "{named}"
    );
}

#[test]
fn batch_with_an_invalid_state_file_counts_as_attempted() {
    let (test_dir, ids) = filled(4);
    test_dir.receiver.poison.lock().unwrap().push(ids[0]);
    let store = spool(&test_dir);
    let name = store.pending(None, 1).unwrap().remove(0);
    let state = test_dir
        .data()
        .spool
        .join(crate::manager::state_name(&name));
    fs::write(state, "garbage").unwrap();
    test_dir.deliver_all();
    let failed = store.failed().unwrap();
    assert!(failed.len() == 1 && failed[0].is_ambiguous, "{failed:?}");
}

#[test]
fn record_staged_again_after_delivery_is_counted_once() {
    let (test_dir, _) = filled(3);
    let data = test_dir.data();
    let record = Record::parse(r#"{"tokens":5}"#).unwrap();
    let drop_file = |record: &Record| {
        let name = format!("{}.json", Uuid::now_v7());
        fs::write(data.staging.join(name), record.json()).unwrap();
        consolidate(test_dir.path(), &Options::default()).unwrap()
    };
    assert_eq!(drop_file(&record).records, 1);
    test_dir.deliver_all();
    let again = drop_file(&record);
    assert_eq!((again.records, again.repeated), (0, 1));
    // A different record with a known id is quarantined, and not dropped as a repetition.
    let other = Record::parse_with_id(r#"{"tokens":6}"#, record.id()).unwrap();
    let other = drop_file(&other);
    assert_eq!((other.records, other.repeated), (0, 0));
    let failed = spool(&test_dir).failed().unwrap();
    assert_eq!(failed.len(), 1);
    assert!(
        failed[0]
            .reason
            .contains("a different record has the same id")
    );
    test_dir.deliver_all();
    assert_eq!(billed(&test_dir).len(), 4);
    test_dir.assert_balanced("repeated");
}

//! Delivery under faults of the destination, the disk and the clock. (S6, S7, S8, S10)

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::crashing_disk::{CRASHES, CrashingDisk};
use super::place::{Place, names};
use super::receiver::Act;
use crate::consolidate::{Options, consolidate};
use crate::delivery::{Answer, Clock, DeliveryOptions, Watch, archive, deliver};
use crate::disk::Disk;
use crate::manager::{BatchStore, SpoolManager};
use crate::record::Record;
use crate::verify::verify;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// So many records in batches of four.
fn filled(records: usize) -> (Place, Vec<Uuid>) {
    let place = Place::new();
    let ids = place.entry(records, true).iter().map(Record::id).collect();
    let options = Options {
        batch_size: 4,
        ..Options::default()
    };
    consolidate(place.path(), &options).unwrap();
    (place, ids)
}

fn spool(place: &Place) -> SpoolManager {
    SpoolManager::new(place.path())
}

fn later(after: Option<u64>) -> Answer {
    Answer::later("503", false, after.map(Duration::from_secs))
}

fn unknown() -> Answer {
    Answer::later("connection reset", true, None)
}

/// What is billed, each once.
fn billed(place: &Place) -> BTreeSet<Uuid> {
    let billed = place.receiver.billed();
    assert!(billed.values().all(|times| *times == 1), "{billed:?}");
    billed.into_keys().collect()
}

fn assert_books(place: &Place, what: &str) {
    let books = verify(place.path(), &Watch::silent()).unwrap();
    assert!(books.balance(), "{what}: {:?}", books.problems);
    let sum = books.delivered + books.archived + books.pending + books.failed;
    assert_eq!(books.staged, sum, "{what}: {books:?}");
}

#[test]
fn everything_is_delivered_once_and_the_spool_is_empty() {
    let (place, ids) = filled(10);
    place.deliver_all();
    assert_eq!(billed(&place), ids.into_iter().collect());
    assert_eq!(names(&place.data().spool), [""; 0]);
    assert_books(&place, "delivered");
    assert_eq!(place.receiver.arrivals().len(), 3);
    place.deliver_all();
    assert_eq!(
        place.receiver.arrivals().len(),
        3,
        "nothing is left to send"
    );
}

#[test]
fn poison_ends_alone_with_its_reason_and_its_neighbours_are_delivered() {
    let (place, ids) = filled(12);
    place
        .receiver
        .poison
        .lock()
        .unwrap()
        .extend([ids[1], ids[6], ids[7]]);
    place.deliver_all();
    let good: BTreeSet<_> = ids
        .iter()
        .filter(|id| ![ids[1], ids[6], ids[7]].contains(id))
        .copied()
        .collect();
    assert_eq!(billed(&place), good);
    let failed = spool(&place).failed().unwrap();
    assert_eq!(failed.len(), 3);
    for one in &failed {
        assert!(one.is_batch && !one.is_ambiguous && one.records == 1);
        assert_eq!(one.reason, "422: poison");
    }
    assert_books(&place, "poison");
}

/// Rejects everything from now on.
fn reject_everything(place: &Place) {
    for _ in 0..2000 {
        let no = Answer::rejected("400: no");
        place.receiver.then(Act::Refuse(no));
    }
}

fn accept_everything(place: &Place) {
    place.receiver.acts.lock().unwrap().clear();
}

fn pending_records(place: &Place) -> BTreeSet<Uuid> {
    let store = spool(place);
    let names = store.pending(None, usize::MAX).unwrap();
    let batches = names.iter().map(|name| store.load(name).unwrap());
    let ids = batches.flat_map(|batch| batch.records().iter().map(Record::id).collect::<Vec<_>>());
    ids.collect()
}

#[test]
fn delivery_pauses_and_nothing_fails_while_a_destination_rejects_everything() {
    // One batch, few batches, many batches.
    for records in [1, 4, 8, 400] {
        let (place, ids) = filled(records);
        let all: BTreeSet<_> = ids.iter().copied().collect();
        reject_everything(&place);
        let mut sent = 0;
        for run in 0..20 {
            // Each run is a process of its own.
            place.deliver_all();
            let pause = spool(&place).pause("the receiver").unwrap().unwrap();
            assert!(pause.is_misconfigured, "{pause:?}");
            assert!(pause.why.contains("400: no"), "{pause:?}");
            let arrivals = place.receiver.arrivals().len();
            assert!(arrivals > sent, "run {run} asks again");
            assert!(arrivals - sent <= 5, "one batch of 4 is bisected");
            sent = arrivals;
            assert_eq!(spool(&place).failed().unwrap().len(), 0, "run {run}");
            assert_eq!(pending_records(&place), all, "run {run}");
            assert_books(&place, "rejected");
            place.deliver_all();
            assert_eq!(place.receiver.arrivals().len(), sent, "delivery pauses");
            place.receiver.clock.forward(DAY);
        }
        accept_everything(&place);
        place.deliver_all();
        assert_eq!(billed(&place), all);
        assert_eq!(spool(&place).pause("the receiver").unwrap(), None);
        assert_books(&place, "accepted at last");
    }
}

#[test]
fn each_run_bisects_another_batch_until_a_part_is_accepted() {
    let (place, ids) = filled(24);
    // Only the records of the fifth batch are good.
    let bad = [&ids[..16], &ids[20..]].concat();
    place.receiver.poison.lock().unwrap().extend(&bad);
    for run in 0..4 {
        place.deliver_all();
        assert_eq!(billed(&place).len(), 0, "run {run}");
        assert_eq!(spool(&place).failed().unwrap().len(), 0, "run {run}");
        place.receiver.clock.forward(DAY);
    }
    place.deliver_all();
    assert_eq!(billed(&place), ids[16..20].iter().copied().collect());
    // From here on the destination is trusted for one batch at a time.
    for _ in 0..20 {
        place.receiver.clock.forward(DAY);
        place.deliver_all();
    }
    let failed = spool(&place).failed().unwrap();
    assert!(!failed.is_empty() && failed.iter().all(|one| one.records == 1));
    let found: BTreeSet<_> = billed(&place)
        .into_iter()
        .chain(pending_records(&place))
        .collect();
    assert_eq!(found.len() + failed.len(), 24);
    assert_books(&place, "mostly rejected");
}

#[test]
fn at_most_one_batch_fails_when_a_destination_begins_to_reject_everything() {
    let (place, ids) = filled(400);
    for _ in 0..3 {
        place.receiver.then(Act::Commit(Answer::accepted("200")));
    }
    reject_everything(&place);
    for _ in 0..50 {
        place.deliver_all();
        place.receiver.clock.forward(DAY);
    }
    assert_eq!(spool(&place).failed().unwrap().len(), 4, "one batch");
    accept_everything(&place);
    place.deliver_all();
    let rest = [&ids[..12], &ids[16..]].concat();
    assert_eq!(billed(&place), rest.into_iter().collect());
    assert_books(&place, "rejected since");
}

#[test]
fn a_batch_of_unknown_outcome_that_is_rejected_ends_whole_in_failed_one_in_each_run() {
    let (place, ids) = filled(40);
    for _ in 0..5 {
        place.receiver.then(Act::Refuse(unknown()));
    }
    place
        .receiver
        .then(Act::Refuse(Answer::misconfigured("401")));
    place.deliver_all();
    place.receiver.clock.forward(DAY);
    reject_everything(&place);
    // Those that were never tried are bisected first.
    for run in 1..20 {
        place.deliver_all();
        place.receiver.clock.forward(DAY);
        let failed = spool(&place).failed().unwrap();
        assert!(failed.len() <= run, "{failed:?}");
        assert!(
            failed
                .iter()
                .all(|one| one.is_ambiguous && one.records == 4)
        );
    }
    assert_eq!(spool(&place).failed().unwrap().len(), 5);
    accept_everything(&place);
    place.deliver_all();
    assert_eq!(billed(&place), ids[20..].iter().copied().collect());
    assert_books(&place, "unknown and rejected");
}

#[test]
fn delivery_ends_although_the_notes_about_many_batches_cannot_be_read() {
    let place = Place::new();
    place.entry(1100, true);
    let options = Options {
        batch_size: 1,
        max_entries: 1,
        ..Options::default()
    };
    consolidate(place.path(), &options).unwrap();
    let mut batches = names(&place.data().spool);
    let good = batches.pop().unwrap();
    for name in &batches {
        // Not to be read even by root.
        let state = place.data().spool.join(crate::manager::state_name(name));
        fs::create_dir(state).unwrap();
    }
    let (ended, has_ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let disk: Arc<dyn Disk> = Arc::new(crate::disk::RealDisk);
        let done = place.deliver(&disk).unwrap();
        let left = names(&place.data().spool);
        let _ = ended.send((done, left.contains(&good)));
    });
    let done = has_ended.recv_timeout(Duration::from_secs(120));
    let (done, is_left) = done.expect("the run ends");
    assert_eq!((done.records, done.waiting, is_left), (1, 1099, false));
    assert!(done.last_error.unwrap().starts_with("cannot read"));
}

/// So many batches of one record are delivered.
fn deliver_others(place: &Place, count: usize) {
    place.entry(count, true);
    let options = Options {
        batch_size: 1,
        ..Options::default()
    };
    consolidate(place.path(), &options).unwrap();
    place.deliver_all();
}

#[test]
fn a_half_is_delivered_once_although_many_events_follow_a_crash_within_the_split() {
    let most = usize::try_from(crate::manager::MAX_EVENTS).unwrap();
    let mut crashed = 0;
    for at in 0.. {
        let (place, ids) = filled(4);
        place.receiver.poison.lock().unwrap().push(ids[3]);
        let whole = spool(&place).pending(None, 1).unwrap().remove(0);
        let disk = Arc::new(CrashingDisk::new(super::crashing_disk::Crash::After, at));
        let _ = place.deliver(&(Arc::clone(&disk) as Arc<dyn Disk>));
        let is_splitting = spool(&place).state(&whole).unwrap().splitting;
        if is_splitting && disk.has_crashed() {
            crashed += 1;
            // The generation that knows of the halves is forgotten twice over.
            for _ in 0..3 {
                deliver_others(&place, most);
            }
            place.receiver.clock.forward(DAY);
            place.deliver_all();
            assert!(billed(&place).is_superset(&ids[..2].iter().copied().collect()));
            let keys = place.receiver.keys();
            let twice: Vec<_> = keys.iter().filter(|(_, times)| **times > 1).collect();
            assert!(
                twice.len() <= 1,
                "at {at}: only what was rejected: {twice:?}"
            );
            assert_books(&place, "after the crash");
        }
        if !disk.has_crashed() {
            break;
        }
    }
    assert!(crashed > 3, "{crashed}");
}

#[test]
fn the_batches_of_an_unfinished_set_are_remembered_however_many_events_follow() {
    let most = usize::try_from(crate::manager::MAX_EVENTS).unwrap();
    let place = Place::new();
    let ids: BTreeSet<_> = (place.entry(4 * most, true).iter().map(Record::id)).collect();
    let options = Options {
        batch_size: 1,
        ..Options::default()
    };
    consolidate(place.path(), &options).unwrap();
    // As if the crash had come before the set was marked as written.
    let data = place.data();
    let names: Vec<String> = vec![format!("{}.jsonl", Uuid::now_v7())];
    let set = crate::snapshot::Snapshot::new(names, 1);
    set.begin(&crate::disk::RealDisk, &data.staging).unwrap();
    place.deliver_all();
    let index = crate::manager::OutcomeIndex::read(&data).unwrap();
    let store = spool(&place);
    assert_eq!(store.count().unwrap(), 0);
    assert_eq!(billed(&place), ids);
    assert_eq!(index.names().count(), ids.len());
}

/// Takes batches of few records only.
struct Narrow<'a>(&'a super::receiver::Receiver, usize);

impl crate::delivery::Sink for Narrow<'_> {
    fn name(&self) -> &'static str {
        "narrow"
    }

    fn send(&self, batch: &crate::Batch) -> Answer {
        if batch.records().len() > self.1 {
            return Answer::too_large("413");
        }
        self.0.send(batch)
    }
}

#[test]
fn a_destination_that_wants_smaller_batches_gets_them_in_one_run() {
    let (place, ids) = filled(160);
    let (store, sink) = (spool(&place), Narrow(&place.receiver, 1));
    let (clock, run) = (&place.receiver.clock, Uuid::now_v7());
    let options = DeliveryOptions::default();
    let done = deliver(&store, &sink, &options, clock, &Watch::silent(), run).unwrap();
    assert_eq!((done.records, done.waiting, done.failed), (160, 0, 0));
    assert_eq!(billed(&place), ids.into_iter().collect());
    assert_books(&place, "narrow");
}

#[test]
fn a_batch_of_poison_alone_holds_up_nobody() {
    let (place, ids) = filled(40);
    place.receiver.poison.lock().unwrap().extend(&ids[..8]);
    // Each of the first two runs finds nothing but poison. In the third one others are accepted,
    // and all pieces of one batch are found out.
    for _ in 0..3 {
        place.deliver_all();
        place.receiver.clock.forward(DAY);
    }
    assert_eq!(billed(&place), ids[8..].iter().copied().collect());
    assert_eq!(spool(&place).failed().unwrap().len(), 4);
    // Nothing else was there to be accepted: it may be the destination's fault.
    let (place, ids) = filled(8);
    place.receiver.poison.lock().unwrap().extend(&ids);
    place.deliver_all();
    assert_eq!(spool(&place).failed().unwrap().len(), 0);
    assert_eq!(pending_records(&place).len(), 8);
    // A good record settles it, for one batch at a time.
    for _ in 0..12 {
        place.entry(1, true);
        consolidate(place.path(), &Options::default()).unwrap();
        place.receiver.clock.forward(DAY);
        place.deliver_all();
    }
    assert_eq!(billed(&place).len(), 12);
    assert_eq!(spool(&place).failed().unwrap().len(), 8);
    assert_books(&place, "poison alone");
}

#[test]
fn a_batch_that_may_have_arrived_is_never_split() {
    let (place, ids) = filled(4);
    place.receiver.poison.lock().unwrap().push(ids[0]);
    // It took the batch, but the answer was lost; now it does not like it any more.
    place.receiver.then(Act::Commit(unknown()));
    place.deliver_all();
    assert_eq!(billed(&place).len(), 4);
    let failed = spool(&place).failed().unwrap();
    assert_eq!(failed.len(), 1);
    assert!(failed[0].is_ambiguous && failed[0].records == 4);
    assert!(
        failed[0].reason.starts_with("ambiguous"),
        "{}",
        failed[0].reason
    );
    assert_books(&place, "ambiguous");
}

#[test]
fn delivery_is_exact_whatever_act_it_crashes_at() {
    // The third batch is poisoned.
    crash_everywhere(9);
}

#[test]
fn a_batch_that_may_have_arrived_is_not_billed_twice_whatever_act_delivery_crashes_at() {
    // The second is poisoned, and is taken before that is found out.
    crash_everywhere(4);
}

fn crash_everywhere(poison: usize) {
    for kind in CRASHES {
        for at in 0.. {
            let (place, ids) = filled(11);
            place.receiver.poison.lock().unwrap().push(ids[poison]);
            place.receiver.then(Act::Refuse(later(None)));
            place.receiver.then(Act::Commit(unknown()));
            let disk = Arc::new(CrashingDisk::new(kind, at));
            let done = place.deliver(&(Arc::clone(&disk) as Arc<dyn Disk>));
            let what = format!("{kind:?} at {at}");
            assert!(done.is_ok() || disk.has_crashed(), "{what}: {done:?}");
            // The first run after the crash may find nothing but the rejected record.
            for _ in 0..2 {
                place.deliver_all();
                place.receiver.clock.forward(DAY);
            }
            let mut found = billed(&place);
            let mut is_ambiguous = false;
            for failed in spool(&place).failed().unwrap() {
                if !failed.is_batch {
                    assert!(failed.name.starts_with("sent-"), "{what}: {failed:?}");
                    continue;
                }
                is_ambiguous |= failed.is_ambiguous;
                let bytes = fs::read(place.data().failed.join(&failed.name)).unwrap();
                let batch = crate::manager::check(&failed.name, &bytes).unwrap();
                found.extend(batch.records().iter().map(Record::id));
            }
            assert_eq!(found, ids.iter().copied().collect(), "{what}: none is lost");
            if !is_ambiguous {
                assert_eq!(billed(&place).len(), 10, "{what}: neighbours are delivered");
            }
            assert_books(&place, &what);
            assert_eq!(names(&place.data().spool), [""; 0], "{what}");
            if !disk.has_crashed() {
                assert!(at > 50, "there are acts to crash at");
                assert_eq!(is_ambiguous, poison == 4);
                break;
            }
        }
    }
}

/// Never takes some of the batches.
struct Picky<'a>(&'a super::receiver::Receiver, Vec<String>);

impl crate::delivery::Sink for Picky<'_> {
    fn name(&self) -> &'static str {
        "picky"
    }

    fn send(&self, batch: &crate::Batch) -> Answer {
        if self.1.contains(&batch.file_name()) {
            return Answer::later("500", true, None);
        }
        self.0.send(batch)
    }
}

/// Has a limit for one of the batches, and says how long to wait.
struct Limited<'a>(&'a super::receiver::Receiver, String);

impl crate::delivery::Sink for Limited<'_> {
    fn name(&self) -> &'static str {
        "limited"
    }

    fn send(&self, batch: &crate::Batch) -> Answer {
        if batch.file_name() == self.1 {
            return later(Some(60));
        }
        self.0.send(batch)
    }
}

#[test]
fn one_bad_batch_never_holds_up_the_others() {
    let (place, ids) = filled(40);
    // The first is refused for ever; the destination is well otherwise.
    place.receiver.poison.lock().unwrap().clear();
    let first = spool(&place).pending(None, 1).unwrap().remove(0);
    let store = spool(&place);
    let sink = Picky(&place.receiver, vec![first.clone()]);
    let options = DeliveryOptions::default();
    let clock = &place.receiver.clock;
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
    assert_eq!(billed(&place), ids[4..].iter().copied().collect());
    assert_eq!(store.pending(None, 9).unwrap(), [first]);
}

#[test]
fn many_bad_batches_never_hold_up_the_others() {
    let (place, ids) = filled(40);
    let store = spool(&place);
    let bad = store.pending(None, 8).unwrap();
    let sink = Picky(&place.receiver, bad);
    let clock = &place.receiver.clock;
    // All are tried while the destination is down, so that none is new any more.
    for _ in 0..200 {
        place.receiver.then(Act::Refuse(later(None)));
    }
    for round in 0..12 {
        if round == 4 {
            place.receiver.acts.lock().unwrap().clear();
        }
        let options = DeliveryOptions::default();
        let run = Uuid::now_v7();
        deliver(&store, &sink, &options, clock, &Watch::silent(), run).unwrap();
        clock.forward(options.max_wait);
    }
    assert_eq!(billed(&place), ids[32..].iter().copied().collect());
}

#[test]
fn one_batch_with_a_limit_of_its_own_does_not_hold_up_the_others() {
    let (place, ids) = filled(12);
    let store = spool(&place);
    let sink = Limited(&place.receiver, store.pending(None, 1).unwrap().remove(0));
    for _ in 0..3 {
        let options = DeliveryOptions::default();
        let (clock, run) = (&place.receiver.clock, Uuid::now_v7());
        deliver(&store, &sink, &options, clock, &Watch::silent(), run).unwrap();
        clock.forward(DAY);
    }
    assert_eq!(billed(&place), ids[4..].iter().copied().collect());
}

#[test]
fn the_pause_of_one_destination_outlives_a_delivery_to_another() {
    let (place, _) = filled(4);
    let store = spool(&place);
    let pause = |to: &str| {
        let now = place.receiver.clock.now();
        crate::Pause::new(to, now, DAY, "later", false)
    };
    store.set_pause(&pause("another")).unwrap();
    place.deliver_all();
    assert_eq!(billed(&place).len(), 4);
    assert!(store.pause("another").unwrap().is_some());
    store.end_pause("another").unwrap();
    assert_eq!(store.pauses().unwrap(), []);
}

#[test]
fn a_batch_that_cannot_be_read_holds_up_nobody() {
    let (place, ids) = filled(12);
    let path = place.data().spool.join(&names(&place.data().spool)[0]);
    // Not to be read even by root: a link to itself would be none of ours.
    let state = path.with_extension("state.json");
    fs::create_dir(&state).unwrap();
    let done = place
        .deliver(&(Arc::new(crate::disk::RealDisk) as Arc<dyn Disk>))
        .unwrap();
    assert_eq!(billed(&place), ids[4..].iter().copied().collect());
    assert!(done.last_error.unwrap().starts_with("cannot read"));
    fs::remove_dir(state).unwrap();
    place.deliver_all();
    assert_eq!(billed(&place).len(), 12);
}

#[test]
fn nothing_is_sent_during_a_retry_after_not_even_after_a_restart_or_a_jump_of_the_clock() {
    let (place, ids) = filled(8);
    place.receiver.then(Act::Refuse(later(Some(600))));
    let clock = &place.receiver.clock;
    place.deliver_all();
    assert_eq!(place.receiver.arrivals().len(), 1);
    for step in [1, 300, 288] {
        clock.forward(Duration::from_secs(step));
        place.deliver_all();
        let sent = place.receiver.arrivals().len();
        assert_eq!(sent, 1, "after {step} seconds more");
    }
    // The clock goes back by days: the wait begins anew, but does not last for days.
    clock.back(3 * DAY);
    place.deliver_all();
    assert_eq!(place.receiver.arrivals().len(), 1);
    clock.forward(Duration::from_secs(599));
    place.deliver_all();
    assert_eq!(billed(&place), ids.into_iter().collect());
    assert_books(&place, "after the wait");
}

#[test]
fn a_short_retry_after_is_waited_for_and_a_long_one_is_bounded() {
    let (place, _) = filled(4);
    place.receiver.then(Act::Refuse(later(Some(5))));
    place.deliver_all();
    let arrivals = place.receiver.arrivals();
    assert_eq!(arrivals.len(), 2);
    assert!(arrivals[1].since(arrivals[0]) >= Duration::from_secs(5));

    let (place, ids) = filled(4);
    place
        .receiver
        .then(Act::Refuse(later(Some(365 * 24 * 3600))));
    place.deliver_all();
    place
        .receiver
        .clock
        .forward(DeliveryOptions::default().max_wait);
    place.deliver_all();
    assert_eq!(billed(&place), ids.into_iter().collect());
}

#[test]
fn a_destination_that_says_at_once_again_and_again_is_not_asked_for_ever() {
    for seconds in [0, 1] {
        let (place, ids) = filled(8);
        for _ in 0..1000 {
            place.receiver.then(Act::Refuse(later(Some(seconds))));
        }
        place.deliver_all();
        let asked = place.receiver.arrivals();
        assert!(asked.len() < 10, "{} times", asked.len());
        let least = Duration::from_millis(500);
        assert!(asked.windows(2).all(|two| two[1].since(two[0]) >= least));
        place.receiver.acts.lock().unwrap().clear();
        place.receiver.clock.forward(DAY);
        place.deliver_all();
        assert_eq!(billed(&place), ids.into_iter().collect());
    }
}

#[test]
fn a_batch_is_given_up_after_ten_rounds_and_seven_days_not_one_of_them() {
    let (place, _) = filled(4);
    let options = DeliveryOptions::default();
    let clock = &place.receiver.clock;
    let round = || {
        for _ in 0..20 {
            place.receiver.then(Act::Refuse(later(None)));
        }
        place.deliver_all();
        place.receiver.acts.lock().unwrap().clear();
    };
    for _ in 0..20 {
        round();
        clock.forward(options.max_wait);
    }
    assert_eq!(spool(&place).count().unwrap(), 1, "many rounds, one day");
    // A clock that jumps is not time that passed.
    clock.forward(300 * DAY);
    round();
    assert_eq!(spool(&place).count().unwrap(), 1, "one jump");
    for _ in 0..7 {
        clock.forward(DAY);
        round();
    }
    let failed = spool(&place).failed().unwrap();
    assert_eq!(failed.len(), 1);
    assert!(
        failed[0].reason.starts_with("given up"),
        "{}",
        failed[0].reason
    );
    assert!(!failed[0].is_ambiguous);
    assert_books(&place, "given up");

    let (place, _) = filled(4);
    for round in 1..=10 {
        for _ in 0..20 {
            place.receiver.then(Act::Refuse(later(None)));
        }
        place.deliver_all();
        place.receiver.clock.forward(DAY);
        let failed = spool(&place).failed().unwrap().len();
        assert_eq!(failed, usize::from(round == 10), "round {round}");
    }
}

#[test]
fn a_destination_that_is_down_is_not_asked_for_every_batch() {
    let (place, ids) = filled(400);
    for _ in 0..50 {
        place.receiver.then(Act::Refuse(later(None)));
    }
    place.deliver_all();
    let asked = place.receiver.arrivals().len();
    assert!(asked < 10, "{asked}");
    place.receiver.acts.lock().unwrap().clear();
    place.receiver.clock.forward(DAY);
    place.deliver_all();
    assert_eq!(billed(&place), ids.into_iter().collect());
}

#[test]
fn a_destination_that_knows_us_not_pauses_delivery_and_the_data_stays() {
    let (place, ids) = filled(8);
    let clock = &place.receiver.clock;
    for _ in 0..30 {
        place
            .receiver
            .then(Act::Refuse(Answer::misconfigured("401: who are you?")));
    }
    for _ in 0..30 {
        place.deliver_all();
        clock.forward(DAY);
    }
    assert_eq!(place.receiver.arrivals().len(), 30, "one question a run");
    let pause = spool(&place).pause("the receiver").unwrap().unwrap();
    assert!(pause.is_misconfigured && pause.why.contains("who are you"));
    assert_eq!(spool(&place).failed().unwrap().len(), 0);
    place.deliver_all();
    assert_eq!(billed(&place), ids.into_iter().collect());
    assert_eq!(spool(&place).pause("the receiver").unwrap(), None);
}

#[test]
fn what_failed_is_sent_again_when_a_person_says_so() {
    let (place, ids) = filled(4);
    place.receiver.poison.lock().unwrap().push(ids[2]);
    place.deliver_all();
    let store = spool(&place);
    let failed = store.failed().unwrap().remove(0);
    store.resend(&failed.name).unwrap();
    assert_eq!(store.failed().unwrap().len(), 0);
    assert_books(&place, "resent");
    place.receiver.poison.lock().unwrap().clear();
    place.deliver_all();
    assert_eq!(billed(&place), ids.into_iter().collect());
    assert_books(&place, "delivered at last");
    let refused = store.resend("nothing.json").unwrap_err().to_string();
    assert!(refused.contains("no such batch in failed/"), "{refused}");
}

#[test]
fn what_was_ambiguous_stays_so_when_it_is_sent_again() {
    let (place, ids) = filled(4);
    place.receiver.poison.lock().unwrap().push(ids[0]);
    place.receiver.then(Act::Refuse(unknown()));
    place.deliver_all();
    let store = spool(&place);
    let failed = store.failed().unwrap().remove(0);
    assert!(failed.is_ambiguous);
    store.resend(&failed.name).unwrap();
    place.receiver.clock.forward(DAY);
    place.deliver_all();
    let again = store.failed().unwrap();
    assert_eq!(again.len(), 1);
    assert!(
        again[0].is_ambiguous && again[0].records == 4,
        "it was not split"
    );
}

#[test]
fn without_a_destination_batches_are_archived_and_can_be_sent_later() {
    let (place, ids) = filled(9);
    let store = spool(&place);
    assert_eq!(archive(&store, &Watch::silent()).unwrap().0, 9);
    assert_eq!(names(&place.data().archive).len(), 3);
    assert_books(&place, "archived");
    for name in names(&place.data().archive) {
        store.resend(&name).unwrap();
    }
    assert_books(&place, "taken out");
    place.deliver_all();
    assert_eq!(billed(&place), ids.into_iter().collect());
    assert_books(&place, "delivered");
}

#[test]
fn a_damaged_batch_is_set_aside_and_the_others_are_delivered() {
    let (place, ids) = filled(8);
    let data = place.data();
    let name = names(&data.spool).remove(0);
    let path = data.spool.join(&name);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replacen("tokens", "tokeNs", 1)).unwrap();
    place.deliver_all();
    assert_eq!(billed(&place), ids[4..].iter().copied().collect());
    let failed = spool(&place).failed().unwrap();
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0].reason, "record 1: its checksum does not match");
    let books = verify(place.path(), &Watch::silent()).unwrap();
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
fn attempts_that_cannot_be_read_count_as_made() {
    let (place, ids) = filled(4);
    place.receiver.poison.lock().unwrap().push(ids[0]);
    let store = spool(&place);
    let name = store.pending(None, 1).unwrap().remove(0);
    let state = place.data().spool.join(crate::manager::state_name(&name));
    fs::write(state, "garbage").unwrap();
    place.deliver_all();
    let failed = store.failed().unwrap();
    assert!(failed.len() == 1 && failed[0].is_ambiguous, "{failed:?}");
}

#[test]
fn a_record_that_is_staged_again_later_is_counted_once() {
    let (place, _) = filled(3);
    let data = place.data();
    let record = Record::parse(r#"{"tokens":5}"#).unwrap();
    let drop_in = |record: &Record| {
        let name = format!("{}.json", Uuid::now_v7());
        fs::write(data.staging.join(name), record.json()).unwrap();
        consolidate(place.path(), &Options::default()).unwrap()
    };
    assert_eq!(drop_in(&record).records, 1);
    place.deliver_all();
    let again = drop_in(&record);
    assert_eq!((again.records, again.repeated), (0, 1));
    // The same id on something else is no repetition: it is kept for a person to look at.
    let other = Record::parse_with_id(r#"{"tokens":6}"#, record.id()).unwrap();
    let other = drop_in(&other);
    assert_eq!((other.records, other.repeated), (0, 0));
    let failed = spool(&place).failed().unwrap();
    assert_eq!(failed.len(), 1);
    assert!(failed[0].reason.contains("another record has its id"));
    place.deliver_all();
    assert_eq!(billed(&place).len(), 4);
    assert_books(&place, "repeated");
}

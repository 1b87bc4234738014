//! Acts of the disk that fail while the process goes on, alone and in pairs with others and with
//! crashes: nothing is lost, nothing is there twice, and when the fault is over everything goes on by
//! itself. (S1, S2, S4, S5, S9)
//!
//! The scenario stages, archives and delivers with the `Runner` that `serve` and `usage deliver` have,
//! to a receiver that fails, times out and rejects one record. `cargo test` runs a sample. With
//! `FAULT_ALL` every act fails in every way, alone and with each event of the next act. `FAULT_PAIRS`
//! is the number of pairs that are drawn by `FAULT_SEED`. `scripts/prove-spool` sets all three.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::crash_recovery::options;
use super::crashing_disk::{CRASHES, Crash, CrashingDisk, Event, FAULTS, Fault, Operation};
use super::test_data_dir::{TestDataDir, names, record};
use super::fake_receiver::ScriptedReply;
use crate::consolidate::{ConsolidatorState, Options, consolidate_on};
use crate::data_dir::DataDir;
use crate::delivery::{Answer, DeliveryOptions, RunError, Watch, archive};
use crate::disk::Disk;
use crate::manager::SpoolManager;
use crate::record::Record;
use crate::run::{Destination, Run, Runner};
use crate::staging::{Durability, Limits, Staging};
use crate::verify::{verify, verify_in};

const EINTR: i32 = 4;
const EIO: i32 = 5;
const ENOSPC: i32 = 28;
const EROFS: i32 = 30;
const EXDEV: i32 = 18;
/// How often an act is tried that failed.
const MAX_TRIES: usize = 6;
/// Length of the reserve: the shortest that there is.
const RESERVE: usize = 1 << 16;

/// A data directory, the processes that use it, and what they promised.
struct World {
    test_dir: TestDataDir,
    disk: Arc<CrashingDisk>,
    staging: Option<Staging>,
    runner: Option<Runner>,
    /// The record that the receiver rejects.
    poison: Option<Uuid>,
    /// Records that were ever staged.
    tried: BTreeSet<Uuid>,
    /// Records that must survive everything ...
    power: BTreeSet<Uuid>,
    /// ... and those that must survive the end of the process.
    process: BTreeSet<Uuid>,
    /// The same, staged by a process that is gone: nobody syncs them before they are consolidated.
    orphans: BTreeSet<Uuid>,
    /// Time as the keeper sees it.
    now: Instant,
    /// The kernel forgets what a sync has failed to write: it is only in the memory of the process
    /// until it was written again.
    forgets_unsynced: bool,
}

impl World {
    fn new(events: Vec<(usize, Event)>) -> Self {
        let test_dir = TestDataDir::empty();
        let evicted = Event::Fault(Fault::Evicted);
        Self {
            forgets_unsynced: events.iter().any(|(_, event)| *event == evicted),
            disk: Arc::new(CrashingDisk::with(events)),
            staging: None,
            runner: None,
            poison: None,
            tried: BTreeSet::new(),
            power: BTreeSet::new(),
            process: BTreeSet::new(),
            orphans: BTreeSet::new(),
            now: Instant::now(),
            test_dir,
        }
    }

    fn on(&self) -> Arc<dyn Disk> {
        Arc::clone(&self.disk) as _
    }

    /// If the process has crashed, a new one takes its place.
    fn restart_if_crashed(&mut self) {
        if self.disk.has_crashed() {
            self.kill();
            if self.disk.restart() || self.forgets_unsynced {
                // Not promised, as long as it was not synced.
                self.orphans.clear();
            }
        }
    }

    /// The process ends.
    fn kill(&mut self) {
        if let Some(staging) = self.staging.take() {
            staging.abandon();
        }
        self.runner = None;
        self.orphans.append(&mut self.process);
    }

    fn staging(&mut self) -> Option<&Staging> {
        self.restart_if_crashed();
        if self.staging.is_none() {
            let limits = Limits {
                records: 4,
                age: Duration::from_secs(3600),
                reserve: RESERVE,
                ..Limits::default()
            };
            let dir = self.test_dir.data().staging;
            self.staging = Staging::open_without_keeper(self.on(), &dir, limits).ok();
        }
        self.staging.as_ref()
    }

    /// Stages a record until that succeeds, as the documentation says. Returns its id.
    fn stage(&mut self, durability: Durability) -> Uuid {
        let record = record();
        self.tried.insert(record.id());
        let is_staged = (0..MAX_TRIES).any(|_| {
            let staged = self
                .staging()
                .map(|staging| staging.stage(&record, durability));
            let is_staged = matches!(staged, Some(Ok(())));
            if !is_staged {
                // A reserve that could not be created is not tried again at once.
                thread::sleep(Duration::from_millis(2));
            }
            is_staged
        });
        assert!(is_staged, "the fault is over, and it cannot be staged");
        match durability {
            Durability::Power => self.power.insert(record.id()),
            Durability::Process => self.process.insert(record.id()),
        };
        record.id()
    }

    /// Stages a record that the receiver rejects.
    fn stage_poison(&mut self) {
        let id = self.stage(Durability::Power);
        let receiver = &self.test_dir.receiver;
        // A receiver that rejects it never accepts it in silence.
        receiver.replies.lock().unwrap().clear();
        receiver.poison.lock().unwrap().push(id);
        self.poison = Some(id);
    }

    /// Some time passes, in which the keeper does its work.
    fn keep(&mut self) {
        self.now += Duration::from_secs(2);
        let now = self.now;
        let Some(staging) = self.staging() else {
            return;
        };
        staging.work(now);
        let is_well = staging.trouble().is_none();
        if is_well && !self.disk.has_crashed() {
            self.power.append(&mut self.process);
        }
    }

    fn seal(&mut self) {
        let sealed = self.staging().map(Staging::seal);
        if let Some(Ok(())) = sealed {
            self.power.append(&mut self.process);
        }
    }

    /// Consolidates in a process of its own, as `llmlb usage consolidate` does.
    fn consolidate(&mut self) {
        self.restart_if_crashed();
        let kept = &mut ConsolidatorState::default();
        let _ = consolidate_on(&self.on(), self.test_dir.path(), &options(), kept);
    }

    /// One run, of the runner that `serve` and `usage deliver` have.
    fn run(&mut self, is_archive: bool) -> Result<Run, RunError> {
        self.restart_if_crashed();
        let disk = self.on();
        let runner = self.runner.get_or_insert_with(|| {
            let mut runner = Runner::on(disk, self.test_dir.path());
            runner.reserve = RESERVE;
            runner
        });
        let receiver = &self.test_dir.receiver;
        let destination = if is_archive {
            Destination::Archive
        } else {
            Destination::To(receiver)
        };
        runner.run_by(
            &receiver.clock,
            &options(),
            &DeliveryOptions::default(),
            destination,
            &Watch::silent(),
        )
    }

    fn archive(&mut self) {
        let _ = self.run(true);
    }

    fn deliver(&mut self) {
        let _ = self.run(false);
    }

    /// Read-only commands change nothing, however they fail.
    fn look(&mut self) {
        self.restart_if_crashed();
        let data = DataDir::on(self.on(), self.test_dir.path());
        let _ = verify_in(&data, &Watch::silent());
    }

    /// Everything that is ever done, once.
    fn live(&mut self) {
        for durability in [Durability::Power, Durability::Process, Durability::Power] {
            self.stage(durability);
        }
        self.stage(Durability::Process);
        self.stage(Durability::Process);
        self.keep();
        let single = self.test_dir.single();
        self.tried.insert(single.id());
        self.power.insert(single.id());
        self.archive();
        self.stage(Durability::Process);
        self.stage(Durability::Power);
        self.seal();
        // The receiver fails, and then accepts without saying so.
        let receiver = &self.test_dir.receiver;
        let failure = Answer::later("503", false, None);
        let silence = Answer::later("timed out", true, None);
        receiver
            .push_reply(ScriptedReply::Refuse(failure))
            .push_reply(ScriptedReply::Commit(silence));
        self.deliver();
        self.stage(Durability::Process);
        self.stage_poison();
        // A restart, with an entry that its writer left open.
        self.stage(Durability::Process);
        self.kill();
        if self.forgets_unsynced {
            self.orphans.clear();
        }
        self.consolidate();
        self.deliver();
        self.stage(Durability::Process);
        self.look();
    }

    /// The fault is over: everything goes on by itself.
    fn recover(&mut self, case: &str) {
        self.disk.clear_faults();
        let is_over = (0..MAX_TRIES).any(|_| {
            // However long a pause is, it ends.
            let hour = Duration::from_secs(3600);
            self.test_dir.receiver.clock.forward(hour);
            self.keep();
            self.seal();
            let shown = problem(&self.run(false));
            let waiting = self.test_dir.batched_in_spool();
            if waiting.len() == 1 && waiting.first() == self.poison.as_ref() {
                // Whether the record or the receiver is at fault is known when another is accepted.
                self.stage(Durability::Power);
            }
            let is_consolidated = names(&self.test_dir.data().staging).is_empty();
            shown.is_none() && waiting.is_empty() && is_consolidated
        });
        assert!(is_over, "{case}: the fault is over, and a problem lasts");
    }

    fn check(&self, case: &str) {
        let found = found(&self.test_dir);
        let twice: Vec<_> = found.iter().filter(|(_, times)| **times > 1).collect();
        assert!(twice.is_empty(), "{case}: in two batches: {twice:?}");
        let found: BTreeSet<Uuid> = found.into_keys().collect();
        let lost: Vec<_> = self.power.difference(&found).collect();
        assert!(lost.is_empty(), "{case}: lost: {lost:?}");
        let unsynced = &self.process | &self.orphans;
        let lost: Vec<_> = unsynced.difference(&found).collect();
        assert!(lost.is_empty(), "{case}: lost: {lost:?}");
        self.check_poison(case);
        let made_up: Vec<_> = found.difference(&self.tried).collect();
        assert!(made_up.is_empty(), "{case}: made up: {made_up:?}");
        assert_eq!(names(&self.test_dir.data().staging), [""; 0], "{case}: stuck");
        assert_eq!(names(&self.test_dir.data().spool), [""; 0], "{case}: stuck");
        let trouble = self.staging.as_ref().and_then(Staging::trouble);
        assert!(trouble.is_none(), "{case}: {trouble:?}");
        let books = verify(self.test_dir.path(), &Watch::silent()).unwrap();
        assert!(books.balance(), "{case}: {:?}", books.problems);
        let sum = books.delivered + books.archived + books.pending + books.failed;
        assert_eq!(books.staged, sum, "{case}: {books:?}");
        let count = found.len() as u64;
        assert_eq!(self.test_dir.totals(), (count, count), "{case}: totals");
    }
}

impl World {
    /// The record that the receiver rejects is in `failed/`. Records that it would have accepted are
    /// there only with that one, and only if the receiver may have the whole batch.
    fn check_poison(&self, case: &str) {
        let store = SpoolManager::new(self.test_dir.path());
        let mut is_there = self.poison.is_none();
        for failed in store.failed().unwrap() {
            if !failed.is_batch {
                continue;
            }
            let bytes = std::fs::read(self.test_dir.data().failed.join(&failed.name)).unwrap();
            let batch = crate::manager::check(&failed.name, &bytes).unwrap();
            let has_poison = batch
                .records()
                .iter()
                .any(|one| Some(one.id()) == self.poison);
            is_there |= has_poison;
            let is_fair = has_poison && (failed.records == 1 || failed.is_ambiguous);
            assert!(is_fair, "{case}: failed: {failed:?}");
        }
        assert!(is_there, "{case}: the rejected record is not in failed/");
    }
}

/// How often each record is anywhere.
fn found(test_dir: &TestDataDir) -> BTreeMap<Uuid, usize> {
    let mut found = test_dir.batched();
    for dir in [test_dir.data().archive, test_dir.data().failed] {
        for name in names(&dir)
            .iter()
            .filter(|name| crate::batch::is_batch_name(name))
        {
            let bytes = std::fs::read(dir.join(name)).unwrap();
            let batch = crate::manager::check(name, &bytes).unwrap();
            for id in batch.records().iter().map(Record::id) {
                *found.entry(id).or_default() += 1;
            }
        }
    }
    found
}

/// The problem of a run that `status` shows.
fn problem(run: &Result<Run, RunError>) -> Option<String> {
    let run = match run {
        Ok(run) => run,
        Err(error) => return Some(error.to_string()),
    };
    let pending =
        (run.delivered.waiting > 0).then(|| run.delivered.last_error.clone().unwrap_or_default());
    let trouble = run.trouble.as_ref().map(ToString::to_string);
    let unreadable = run.unreadable.first().map(ToString::to_string);
    let no_reserve = run.no_reserve.as_ref().map(ToString::to_string);
    trouble.or(unreadable).or(no_reserve).or(pending)
}

/// Lives through these events, and checks what is left. Returns the acts.
fn run(events: Vec<(usize, Event)>) -> Vec<Operation> {
    let case = format!("{events:?}");
    let mut world = World::new(events);
    world.live();
    world.restart_if_crashed();
    let operations = world.disk.operations();
    world.recover(&case);
    world.check(&case);
    operations
}

/// The same, and the power fails when the events are over.
fn run_and_cut_power(events: Vec<(usize, Event)>) {
    let case = format!("{events:?}, then the power fails");
    let mut world = World::new(events);
    world.live();
    world.restart_if_crashed();
    world.keep();
    world.keep();
    world.disk.cut_power();
    world.kill();
    world.orphans.clear();
    world.recover(&case);
    world.check(&case);
}

fn faults(kind: Operation) -> impl Iterator<Item = Fault> {
    FAULTS.into_iter().filter(move |fault| fault.is_for(kind))
}

#[expect(
    clippy::print_stdout,
    reason = "how much was tried is part of the result"
)]
fn say(case: &str) {
    println!("{case}");
}

/// After so many cases a line is printed.
const PROGRESS: usize = 5000;

/// Acts by number, with their crash or fault.
type Events = Vec<(usize, Event)>;

/// Applies a function to all of these, on as many threads as there are processors. `None`: it panicked.
fn in_parallel<T: Send>(
    cases: &[Events],
    work: impl Fn(Events) -> T + Sync + std::panic::RefUnwindSafe,
) -> Vec<Option<T>> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, Into::into) {
            scope.spawn(|| {
                while let Some(events) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = std::panic::catch_unwind(|| work(events.clone())).ok();
                    let mut done = done.lock().unwrap();
                    done.push((events, outcome));
                    if done.len().is_multiple_of(PROGRESS) {
                        say(&format!("{} of {}", done.len(), cases.len()));
                    }
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap();
    done.sort_by_key(|(events, _)| std::ptr::from_ref(*events));
    done.into_iter().map(|(_, outcome)| outcome).collect()
}

/// Runs many cases, and fails with the first few that failed.
fn all(case: &str, cases: &[Events], run: fn(Events)) {
    let outcomes = in_parallel(cases, run);
    let failed: Vec<_> = cases
        .iter()
        .zip(&outcomes)
        .filter_map(|(events, outcome)| outcome.is_none().then_some(events))
        .collect();
    let some: Vec<_> = failed.iter().take(20).collect();
    let count = cases.len();
    assert!(
        failed.is_empty(),
        "{case}: {} of {count} failed: {some:?}",
        failed.len()
    );
    say(&format!("{case}: {count} cases"));
}

fn run_only(events: Vec<(usize, Event)>) {
    run(events);
}

/// True if every case is to be run, and not a sample.
fn is_exhaustive() -> bool {
    std::env::var_os("FAULT_ALL").is_some()
}

/// Without `FAULT_ALL`, one of so many acts fails.
const SAMPLE: usize = 7;

/// Every act with every fault that it can have; without `FAULT_ALL` some acts with one of them, each in
/// turn.
fn singles() -> Vec<(usize, Operation, Fault)> {
    let operations = run(Vec::new()).into_iter().enumerate();
    if is_exhaustive() {
        let all = operations.flat_map(|(at, kind)| faults(kind).map(move |fault| (at, kind, fault)));
        return all.collect();
    }
    let sample = operations.step_by(SAMPLE).map(|(at, kind)| {
        let faults: Vec<Fault> = faults(kind).collect();
        (at, kind, faults[at / SAMPLE % faults.len()])
    });
    sample.collect()
}

/// Every two events at adjacent acts. After the first one the process does something else than without
/// it, so the second act is that of a run with the first event alone.
fn adjacent_pairs() -> Vec<Events> {
    // A crash at an act that changes nothing is a crash at the next one that does.
    let crashes = |kind: Operation| CRASHES.into_iter().filter(move |_| !kind.is_read());
    let events = |kind| {
        let faults = faults(kind).map(Event::Fault);
        faults.chain(crashes(kind).map(Event::Crash))
    };
    let operations = run(Vec::new()).into_iter().enumerate();
    let firsts: Vec<Events> = operations
        .flat_map(|(at, kind)| events(kind).map(move |event| vec![(at, event)]))
        .collect();
    let lives = in_parallel(&firsts, run);
    let pairs = firsts.iter().zip(lives).flat_map(|(first, operations)| {
        let (at, event) = first[0];
        let second = operations.and_then(|operations| operations.get(at + 1).copied());
        let seconds = second.into_iter().flat_map(events);
        seconds.map(move |next| vec![(at, event), (at + 1, next)])
    });
    pairs.collect()
}

/// Numbers that look random and are the same for the same seed.
struct Random(u64);

impl Random {
    /// Prints the seed.
    fn new() -> Self {
        let seed = setting("FAULT_SEED", 1);
        say(&format!("seed {seed}"));
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 32).unwrap() % most
    }

    fn event(&mut self) -> Event {
        let which = self.below(FAULTS.len() + CRASHES.len());
        match FAULTS.get(which) {
            Some(fault) => Event::Fault(*fault),
            None => Event::Crash(CRASHES[which - FAULTS.len()]),
        }
    }
}

fn setting(name: &str, default: u64) -> u64 {
    let value = std::env::var(name).ok();
    value.map_or(default, |value| value.parse().unwrap())
}

#[test]
fn scenario_without_faults_uses_every_operation_and_keeps_each_record_once() {
    let operations = run(Vec::new());
    for kind in [
        Operation::Read,
        Operation::List,
        Operation::Write,
        Operation::Sync,
        Operation::Rename,
        Operation::Other,
    ] {
        assert!(operations.contains(&kind), "{kind:?}");
    }
    say(&format!("{} operations", operations.len()));
    run_and_cut_power(Vec::new());
}

#[test]
fn each_record_is_kept_once_if_any_operation_fails() {
    let cases = singles().into_iter();
    let cases: Vec<_> = cases
        .map(|(at, _, fault)| vec![(at, Event::Fault(fault))])
        .collect();
    all("single faults", &cases, run_only);
}

#[test]
fn each_record_is_kept_once_if_any_operation_fails_before_a_power_failure() {
    let cases = singles().into_iter().filter(|(_, kind, _)| !kind.is_read());
    let cases: Vec<_> = cases
        .map(|(at, _, fault)| vec![(at, Event::Fault(fault))])
        .collect();
    all(
        "single faults before a power failure",
        &cases,
        run_and_cut_power,
    );
}

#[test]
fn each_record_is_kept_once_if_any_two_adjacent_operations_fail() {
    if is_exhaustive() {
        return all("adjacent pairs", &adjacent_pairs(), run_only);
    }
    let mut random = Random::new();
    let singles = singles().into_iter();
    let cases: Vec<_> = singles
        .map(|(at, _, fault)| vec![(at, Event::Fault(fault)), (at + 1, random.event())])
        .collect();
    all("adjacent pairs", &cases, run_only);
}

#[test]
fn each_record_is_kept_once_if_any_two_operations_fail() {
    let mut random = Random::new();
    let operations = run(Vec::new()).len();
    let cases: Vec<_> = (0..setting("FAULT_PAIRS", 200))
        .map(|_| {
            vec![
                (random.below(operations), random.event()),
                (random.below(operations), random.event()),
            ]
        })
        .collect();
    all("drawn pairs", &cases, run_only);
}

/// The reserve holds what the disk had no room for, and half of it may be left on the disk.
#[test]
fn partial_file_left_by_a_full_disk_is_removed() {
    let operations = run(Vec::new()).into_iter().enumerate();
    let writes = operations.filter(|(_, kind)| *kind == Operation::Write);
    let full_disk = Event::Fault(Fault::Error(ENOSPC));
    let stays = Event::Fault(Fault::Error(EROFS));
    let cases: Vec<_> = writes
        .map(|(at, _)| vec![(at, full_disk), (at + 1, stays)])
        .collect();
    all("writes to a full disk", &cases, run_only);
}

/// Stages an entry and a file with one record, and delivers them. Returns everything that `status`
/// shows: of staging and of the run.
fn shown(world: &mut World) -> Vec<String> {
    let mut shown = Vec::new();
    let single = world.test_dir.single();
    world.tried.insert(single.id());
    world.power.insert(single.id());
    for _ in 0..4 {
        let record = record();
        world.tried.insert(record.id());
        let staged = world
            .staging()
            .map(|staging| staging.stage(&record, Durability::Process));
        match staged {
            Some(Ok(())) => drop(world.process.insert(record.id())),
            Some(Err(error)) => shown.push(error.to_string()),
            None => shown.push("staging cannot be opened".to_owned()),
        }
    }
    world.keep();
    let trouble = world.staging.as_ref().and_then(Staging::trouble);
    shown.extend(trouble.map(|error| error.to_string()));
    shown.extend(problem(&world.run(false)));
    shown
}

#[test]
fn persistent_fault_is_reported_until_it_ends() {
    let kinds = [
        Operation::Read,
        Operation::List,
        Operation::Write,
        Operation::Sync,
        Operation::Rename,
        Operation::Other,
    ];
    for (kind, number) in kinds.into_iter().flat_map(|kind| {
        let errors = faults(kind).filter_map(|fault| match fault {
            // An interrupted act is repeated at once.
            Fault::Error(number) if number != EINTR && number != EXDEV => Some(number),
            _ => None,
        });
        errors.map(move |number| (kind, number))
    }) {
        let case = format!("{kind:?} fails with error {number}");
        let mut world = World::new(Vec::new());
        world.stage(Durability::Power);
        assert_eq!(shown(&mut world), [""; 0], "{case}: before");
        world.disk.fail_all(kind, number);
        for round in 0..3 {
            assert_ne!(shown(&mut world), [""; 0], "{case}: round {round}");
        }
        world.disk.clear_faults();
        world.keep();
        world
            .test_dir
            .receiver
            .clock
            .forward(Duration::from_secs(3600));
        // One run may find what the last one left; then it is over.
        shown(&mut world);
        assert_eq!(shown(&mut world), [""; 0], "{case}: after");
        world.recover(&case);
        world.check(&case);
    }
}

/// Consolidates eight records into two batches and archives what there is: with these events, and
/// again without. Returns how many records a failed consolidation left in batches, the number of acts
/// until then, and true if the disk crashed.
fn consolidate_and_archive(events: Events) -> (usize, usize, bool) {
    let case = format!("{events:?}");
    let test_dir = TestDataDir::new();
    let staged = test_dir.entry(8, true);
    let crashing = Arc::new(CrashingDisk::with(events));
    let disk = Arc::clone(&crashing) as Arc<dyn Disk>;
    let consolidate = || {
        consolidate_on(
            &disk,
            test_dir.path(),
            &options(),
            &mut ConsolidatorState::default(),
        )
    };
    let archive = || {
        let store = SpoolManager::on(Arc::clone(&disk), test_dir.path());
        archive(&store, &Watch::silent())
    };
    let _ = consolidate();
    let (batched, operations) = (test_dir.batched_in_spool().len(), crashing.operations().len());
    let _ = archive();
    let has_crashed = crashing.has_crashed();
    crashing.restart();
    crashing.clear_faults();
    consolidate().unwrap();
    archive().unwrap();
    let found = found(&test_dir);
    let expected: BTreeMap<Uuid, usize> = staged.iter().map(|one| (one.id(), 1)).collect();
    assert_eq!(found, expected, "{case}");
    (batched, operations, has_crashed)
}

/// The name of a batch may not be on the disk if its consolidation has failed, or goes on.
#[test]
fn archived_batch_of_an_unfinished_snapshot_survives_a_power_failure() {
    let failing = |at| (at, Event::Fault(Fault::Error(EIO)));
    let first = (0..200).find(|at| consolidate_and_archive(vec![failing(*at)]).0 == 4);
    let failing = failing(first.unwrap());
    let (_, operations, _) = consolidate_and_archive(vec![failing]);
    let crashes = (operations..operations + 200).take_while(|at| {
        let crash = (*at, Event::Crash(Crash::Power));
        consolidate_and_archive(vec![failing, crash]).2
    });
    assert!(crashes.count() > 10, "too few operations to crash at");
}

#[test]
fn quarantined_torn_entry_survives_a_power_failure() {
    let test_dir = TestDataDir::new();
    let disk = Arc::new(CrashingDisk::with(Vec::new()));
    let path = test_dir
        .data()
        .staging
        .join(format!("{}.jsonl.open", Uuid::now_v7()));
    let file = disk.create(&path).unwrap();
    // Its writer ends before the first line is whole, and nobody has synced it.
    disk.append(&file, br#"{"entry":"01890a5d"#).unwrap();
    drop(file);
    let on = Arc::clone(&disk) as Arc<dyn Disk>;
    let done = consolidate_on(
        &on,
        test_dir.path(),
        &options(),
        &mut ConsolidatorState::default(),
    );
    done.unwrap();
    assert_eq!(names(&test_dir.data().failed).len(), 2, "it and its reason");
    disk.cut_power();
    let books = verify(test_dir.path(), &Watch::silent()).unwrap();
    assert!(books.balance(), "{:?}", books.problems);
    assert_eq!(names(&test_dir.data().failed).len(), 2, "it and its reason");
}

/// Issue 14, item 11: the cost of a snapshot does not grow with the number of entries that wait.
#[test]
fn staging_directory_is_listed_once_for_many_snapshots() {
    let listings = |entries: usize| {
        let test_dir = TestDataDir::new();
        for _ in 0..entries {
            test_dir.single();
        }
        let disk = Arc::new(CrashingDisk::with(Vec::new()));
        let on = Arc::clone(&disk) as Arc<dyn Disk>;
        let options = Options {
            max_entries: 1,
            ..options()
        };
        let kept = &mut ConsolidatorState::default();
        while consolidate_on(&on, test_dir.path(), &options, kept)
            .unwrap()
            .entries
            > 0
        {}
        disk.listings(&test_dir.data().staging)
    };
    assert_eq!(listings(30), listings(10));
}

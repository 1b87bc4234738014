//! Disk operations that fail while the process continues, alone and together with other faults and
//! crashes. No record is lost or in two batches, and the work resumes when the faults end.
//! (promises S1, S2, S4, S5, S9)
//!
//! Most tests run one scenario many times, with faults and crashes at different disk operations.
//! The scenario stages, archives and delivers records with the `Runner` that the commands `serve`
//! and `usage deliver` use, to a receiver that fails, times out and rejects one record. `cargo
//! test` runs a sample of the cases. With `FAULT_ALL`, every operation fails in every way, alone
//! and together with every fault or crash at the next operation. `FAULT_PAIRS` is the number of
//! random pairs of faults or crashes, drawn with the seed `FAULT_SEED`. `scripts/prove-spool` sets
//! all three.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::crashing_disk::{CRASHES, Crash, CrashingDisk, Event, FAULTS, Fault, Operation};
use super::fake_receiver::ScriptedReply;
use super::test_data_dir::{TestDataDir, batches_of, each_once, names, record};
use crate::consolidate::{ConsolidatorState, Options, consolidate_on};
use crate::data_dir::DataDir;
use crate::delivery::{Answer, DeliveryOptions, RunError, Watch, archive};
use crate::disk::Disk;
use crate::manager::SpoolManager;
use crate::run::{Destination, Run, Runner};
use crate::staging::{Durability, Limits, Staging};
use crate::verify::verify_in;

const EINTR: i32 = 4;
const EIO: i32 = 5;
const ENOSPC: i32 = 28;
const EROFS: i32 = 30;
const EXDEV: i32 = 18;
/// Maximum number of attempts at a step of the scenario.
const MAX_TRIES: usize = 6;
/// Length of the reserve file in these tests, in bytes. Spool accepts no shorter one, which could
/// not store a batch.
const RESERVE_BYTES: usize = 1 << 16;

/// A data directory, the processes that use it, and the records that they acknowledged.
struct Scenario {
    test_dir: TestDataDir,
    disk: Arc<CrashingDisk>,
    staging: Option<Staging>,
    runner: Option<Runner>,
    /// The record that the receiver rejects.
    poison: Option<Uuid>,
    /// Records for which `stage` was called, whatever it returned.
    attempted: BTreeSet<Uuid>,
    /// Records that must survive a power failure.
    power: BTreeSet<Uuid>,
    /// Records that must survive the end of the process.
    process: BTreeSet<Uuid>,
    /// Records staged with [`Durability::Process`] whose process has ended. Until consolidation
    /// syncs these records, a power failure may lose them.
    orphans: BTreeSet<Uuid>,
    /// Simulated time for the background tasks of staging, which seal and sync entries.
    now: Instant,
    /// True if a failed sync drops pages. Their records are then only in the memory of the process
    /// until it has written them again.
    drops_unsynced_pages: bool,
}

impl Scenario {
    fn new(events: Vec<(usize, Event)>) -> Self {
        let test_dir = TestDataDir::empty();
        let evicted = Event::Fault(Fault::Evicted);
        Self {
            drops_unsynced_pages: events.iter().any(|(_, event)| *event == evicted),
            disk: Arc::new(CrashingDisk::with(events)),
            staging: None,
            runner: None,
            poison: None,
            attempted: BTreeSet::new(),
            power: BTreeSet::new(),
            process: BTreeSet::new(),
            orphans: BTreeSet::new(),
            now: Instant::now(),
            test_dir,
        }
    }

    fn dyn_disk(&self) -> Arc<dyn Disk> {
        Arc::clone(&self.disk) as _
    }

    /// Starts a new process if the current one has crashed.
    fn restart_if_crashed(&mut self) {
        if self.disk.has_crashed() {
            self.kill();
            if self.disk.restart() || self.drops_unsynced_pages {
                // Do not expect the unsynced records of ended processes any more: a power failure,
                // or a failed sync that drops pages, may have lost them.
                self.orphans.clear();
            }
        }
    }

    /// Ends the process.
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
                reserve: RESERVE_BYTES,
                ..Limits::default()
            };
            let dir = self.test_dir.data().staging;
            self.staging = Staging::open_without_keeper(self.dyn_disk(), &dir, limits).ok();
        }
        self.staging.as_ref()
    }

    /// Stages a record, and again after an error, as documented. Returns its id.
    fn stage(&mut self, durability: Durability) -> Uuid {
        let record = record();
        self.attempted.insert(record.id());
        let is_staged = (0..MAX_TRIES).any(|_| {
            let staged = self
                .staging()
                .map(|staging| staging.stage(&record, durability));
            let is_staged = matches!(staged, Some(Ok(())));
            if !is_staged {
                // Wait before the next attempt: after an error, staging tries to create its reserve
                // file again only after a pause of 1 ms.
                thread::sleep(Duration::from_millis(2));
            }
            is_staged
        });
        assert!(is_staged, "cannot be staged after the faults");
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
        // Remove the scripted replies that are left, because they take precedence over `poison`.
        // One of them could accept the record that the receiver must reject.
        receiver.replies.lock().unwrap().clear();
        receiver.poison.lock().unwrap().push(id);
        self.poison = Some(id);
    }

    /// Advances the time and runs the background tasks of staging.
    fn run_keeper(&mut self) {
        self.now += Duration::from_secs(2);
        let now = self.now;
        let Some(staging) = self.staging() else {
            return;
        };
        staging.run_due_tasks(now);
        let has_no_error = staging.trouble().is_none();
        if has_no_error && !self.disk.has_crashed() {
            self.power.append(&mut self.process);
        }
    }

    fn seal(&mut self) {
        let sealed = self.staging().map(Staging::seal);
        if let Some(Ok(())) = sealed {
            self.power.append(&mut self.process);
        }
    }

    /// Consolidates in a process of its own, as a command of a user does.
    fn consolidate(&mut self) {
        self.restart_if_crashed();
        let _ = self.test_dir.consolidate_on(&self.dyn_disk());
    }

    /// Consolidates, and then archives or delivers.
    fn run(&mut self, is_archive: bool) -> Result<Run, RunError> {
        self.restart_if_crashed();
        let disk = self.dyn_disk();
        let runner = self.runner.get_or_insert_with(|| {
            let mut runner = Runner::on(disk, self.test_dir.path());
            runner.reserve = RESERVE_BYTES;
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
            &batches_of(4),
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

    /// Verifies, which must change nothing even if it fails.
    fn verify(&mut self) {
        self.restart_if_crashed();
        let data = DataDir::on(self.dyn_disk(), self.test_dir.path());
        let _ = verify_in(&data, &Watch::silent());
    }

    fn run_steps(&mut self) {
        for durability in [Durability::Power, Durability::Process, Durability::Power] {
            self.stage(durability);
        }
        self.stage(Durability::Process);
        self.stage(Durability::Process);
        self.run_keeper();
        let single = self.test_dir.record_file();
        self.attempted.insert(single.id());
        self.power.insert(single.id());
        self.archive();
        self.stage(Durability::Process);
        self.stage(Durability::Power);
        self.seal();
        // The receiver answers 503 to one attempt, and then stores a batch whose response times
        // out. When that batch is sent again, its records must not be billed twice.
        let receiver = &self.test_dir.receiver;
        let failure = Answer::later("503", None);
        let timeout = Answer::unknown("timed out", None);
        receiver
            .push_reply(ScriptedReply::Refuse(failure))
            .push_reply(ScriptedReply::Commit(timeout));
        self.deliver();
        self.stage(Durability::Process);
        self.stage_poison();
        // The process is killed while an entry is open.
        self.stage(Durability::Process);
        self.kill();
        if self.drops_unsynced_pages {
            self.orphans.clear();
        }
        self.consolidate();
        self.deliver();
        self.stage(Durability::Process);
        self.verify();
    }

    /// Removes the faults, and runs until no work and no problem is left.
    fn recover(&mut self, case: &str) {
        self.disk.clear_faults();
        let has_recovered = (0..MAX_TRIES).any(|_| {
            let hour = Duration::from_secs(3600);
            self.test_dir.receiver.clock.forward(hour);
            self.run_keeper();
            self.seal();
            let problem = problem(&self.run(false));
            let waiting = self.test_dir.pending_records();
            if waiting.len() == 1 && waiting.first() == self.poison.as_ref() {
                // The rejected record moves to `failed/` only after the receiver has accepted
                // another batch.
                self.stage(Durability::Power);
            }
            let is_consolidated = names(&self.test_dir.data().staging).is_empty();
            problem.is_none() && waiting.is_empty() && is_consolidated
        });
        assert!(has_recovered, "{case}: a problem is left after the faults");
    }

    fn check(&self, case: &str) {
        let found = each_once(self.test_dir.record_counts(), case);
        let lost: Vec<_> = self.power.difference(&found).collect();
        assert!(lost.is_empty(), "{case}: lost: {lost:?}");
        let unsynced = &self.process | &self.orphans;
        let lost: Vec<_> = unsynced.difference(&found).collect();
        assert!(lost.is_empty(), "{case}: lost: {lost:?}");
        self.check_poison(case);
        let invented: Vec<_> = found.difference(&self.attempted).collect();
        assert!(invented.is_empty(), "{case}: never staged: {invented:?}");
        assert_eq!(
            names(&self.test_dir.data().staging),
            [""; 0],
            "{case}: left"
        );
        assert_eq!(names(&self.test_dir.data().spool), [""; 0], "{case}: left");
        let trouble = self.staging.as_ref().and_then(Staging::trouble);
        assert!(trouble.is_none(), "{case}: {trouble:?}");
        self.test_dir.assert_balanced(case);
        let count = found.len() as u64;
        assert_eq!(self.test_dir.totals(), (count, count), "{case}: totals");
    }
}

impl Scenario {
    /// Checks that the rejected record is in `failed/`. Other records are there only in the same batch,
    /// and only if that batch is ambiguous.
    fn check_poison(&self, case: &str) {
        let store = SpoolManager::new(self.test_dir.path());
        let mut is_found = self.poison.is_none();
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
            is_found |= has_poison;
            let is_expected = has_poison && (failed.records == 1 || failed.is_ambiguous);
            assert!(is_expected, "{case}: failed: {failed:?}");
        }
        assert!(is_found, "{case}: the rejected record is not in failed/");
    }
}

/// Returns the problem of a run that `status` would show to the user; `None` if the run had none.
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

/// Runs the scenario with these crashes and faults, and checks the records. Returns the kinds of
/// the disk operations.
fn run(events: Vec<(usize, Event)>) -> Vec<Operation> {
    let case = format!("{events:?}");
    let mut scenario = Scenario::new(events);
    scenario.run_steps();
    scenario.restart_if_crashed();
    let operations = scenario.disk.operations();
    scenario.recover(&case);
    scenario.check(&case);
    operations
}

/// Runs the scenario with these crashes and faults, then a power failure, and checks the records.
fn run_and_cut_power(events: Vec<(usize, Event)>) {
    let case = format!("{events:?}, then the power fails");
    let mut scenario = Scenario::new(events);
    scenario.run_steps();
    scenario.restart_if_crashed();
    scenario.run_keeper();
    scenario.run_keeper();
    scenario.disk.cut_power();
    scenario.kill();
    scenario.orphans.clear();
    scenario.recover(&case);
    scenario.check(&case);
}

fn faults(kind: Operation) -> impl Iterator<Item = Fault> {
    FAULTS.into_iter().filter(move |fault| fault.is_for(kind))
}

#[expect(
    clippy::print_stdout,
    reason = "`scripts/prove-spool` prints the number of cases"
)]
fn print(line: &str) {
    println!("{line}");
}

/// Number of cases after which progress is printed.
const PROGRESS: usize = 5000;

/// Crashes and faults of one test case, each with the number of the disk operation at which it
/// occurs.
type Events = Vec<(usize, Event)>;

/// Applies `work` to all cases, on one thread per processor. The result of a case is `None` if
/// `work` panicked.
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
                        print(&format!("{} of {}", done.len(), cases.len()));
                    }
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap();
    done.sort_by_key(|(events, _)| std::ptr::from_ref(*events));
    done.into_iter().map(|(_, outcome)| outcome).collect()
}

/// Runs many cases. Panics with the first failed cases.
fn run_cases(name: &str, cases: &[Events], run: fn(Events)) {
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
        "{name}: {} of {count} failed: {some:?}",
        failed.len()
    );
    print(&format!("{name}: {count} cases"));
}

fn run_only(events: Vec<(usize, Event)>) {
    run(events);
}

/// True if every case is to be run, and not a sample.
fn is_exhaustive() -> bool {
    std::env::var_os("FAULT_ALL").is_some()
}

/// Sampling interval: without `FAULT_ALL`, only every seventh operation is made to fail, so that
/// the tests stay fast.
const SAMPLE: usize = 7;

/// Returns every operation with every fault that it can have. Without `FAULT_ALL`, returns a sample of
/// operations with one fault each.
fn singles() -> Vec<(usize, Operation, Fault)> {
    let operations = run(Vec::new()).into_iter().enumerate();
    if is_exhaustive() {
        let all =
            operations.flat_map(|(at, kind)| faults(kind).map(move |fault| (at, kind, fault)));
        return all.collect();
    }
    let sample = operations.step_by(SAMPLE).map(|(at, kind)| {
        let faults: Vec<Fault> = faults(kind).collect();
        (at, kind, faults[at / SAMPLE % faults.len()])
    });
    sample.collect()
}

/// Returns all pairs of events at adjacent operations. The first event changes the operations after it,
/// so the second operation is taken from a run with the first event alone.
fn adjacent_pairs() -> Vec<Events> {
    // Crashes at reads are left out: a crash at a read has the same effect as one at the next
    // operation that is not a read.
    let crashes = |kind: Operation| CRASHES.into_iter().filter(move |_| !kind.is_read());
    let events = |kind| {
        let faults = faults(kind).map(Event::Fault);
        faults.chain(crashes(kind).map(Event::Crash))
    };
    let operations = run(Vec::new()).into_iter().enumerate();
    let firsts: Vec<Events> = operations
        .flat_map(|(at, kind)| events(kind).map(move |event| vec![(at, event)]))
        .collect();
    let runs = in_parallel(&firsts, run);
    let pairs = firsts.iter().zip(runs).flat_map(|(first, operations)| {
        let (at, event) = first[0];
        let second = operations.and_then(|operations| operations.get(at + 1).copied());
        let seconds = second.into_iter().flat_map(events);
        seconds.map(move |next| vec![(at, event), (at + 1, next)])
    });
    pairs.collect()
}

/// A generator of pseudo-random numbers, the same for the same seed.
struct Random(u64);

impl Random {
    /// Seeds the generator with `FAULT_SEED` and prints the seed.
    fn new() -> Self {
        let seed = setting("FAULT_SEED", 1);
        print(&format!("seed {seed}"));
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 32).unwrap() % bound
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
    print(&format!("{} operations", operations.len()));
    run_and_cut_power(Vec::new());
}

#[test]
fn each_record_is_kept_once_if_any_operation_fails() {
    let cases = singles().into_iter();
    let cases: Vec<_> = cases
        .map(|(at, _, fault)| vec![(at, Event::Fault(fault))])
        .collect();
    run_cases("single faults", &cases, run_only);
}

#[test]
fn each_record_is_kept_once_if_any_operation_fails_before_a_power_failure() {
    let cases = singles().into_iter().filter(|(_, kind, _)| !kind.is_read());
    let cases: Vec<_> = cases
        .map(|(at, _, fault)| vec![(at, Event::Fault(fault))])
        .collect();
    run_cases(
        "single faults before a power failure",
        &cases,
        run_and_cut_power,
    );
}

#[test]
fn each_record_is_kept_once_if_any_two_adjacent_operations_fail() {
    if is_exhaustive() {
        return run_cases("adjacent pairs", &adjacent_pairs(), run_only);
    }
    let mut random = Random::new();
    let singles = singles().into_iter();
    let cases: Vec<_> = singles
        .map(|(at, _, fault)| vec![(at, Event::Fault(fault)), (at + 1, random.event())])
        .collect();
    run_cases("adjacent pairs", &cases, run_only);
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
    run_cases("drawn pairs", &cases, run_only);
}

/// A write fails because the disk is full, and so does the removal of the partial file. The content
/// goes to the reserve, and the partial file must be removed later.
#[test]
fn partial_file_left_by_a_full_disk_is_removed() {
    let operations = run(Vec::new()).into_iter().enumerate();
    let writes = operations.filter(|(_, kind)| *kind == Operation::Write);
    let full_disk = Event::Fault(Fault::Error(ENOSPC));
    let removal_fails = Event::Fault(Fault::Error(EROFS));
    let cases: Vec<_> = writes
        .map(|(at, _)| vec![(at, full_disk), (at + 1, removal_fails)])
        .collect();
    run_cases("writes to a full disk", &cases, run_only);
}

/// Stages an entry and a file with one record, and delivers them. Returns the problems of staging and of
/// the run that `status` would show.
fn stage_and_deliver(scenario: &mut Scenario) -> Vec<String> {
    let mut problems = Vec::new();
    let single = scenario.test_dir.record_file();
    scenario.attempted.insert(single.id());
    scenario.power.insert(single.id());
    for _ in 0..4 {
        let record = record();
        scenario.attempted.insert(record.id());
        let staged = scenario
            .staging()
            .map(|staging| staging.stage(&record, Durability::Process));
        match staged {
            Some(Ok(())) => drop(scenario.process.insert(record.id())),
            Some(Err(error)) => problems.push(error.to_string()),
            None => problems.push("staging cannot be opened".to_owned()),
        }
    }
    scenario.run_keeper();
    let trouble = scenario.staging.as_ref().and_then(Staging::trouble);
    problems.extend(trouble.map(|error| error.to_string()));
    problems.extend(problem(&scenario.run(false)));
    problems
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
            // Leave out `EINTR`, after which spool repeats a read at once: a persistent `EINTR`
            // would never end. Leave out `EXDEV`, after which spool copies a file instead of
            // renaming it.
            Fault::Error(number) if number != EINTR && number != EXDEV => Some(number),
            _ => None,
        });
        errors.map(move |number| (kind, number))
    }) {
        let case = format!("{kind:?} fails with error {number}");
        let mut scenario = Scenario::new(Vec::new());
        scenario.stage(Durability::Power);
        assert_eq!(stage_and_deliver(&mut scenario), [""; 0], "{case}: before");
        scenario.disk.fail_all(kind, number);
        for round in 0..3 {
            assert_ne!(
                stage_and_deliver(&mut scenario),
                [""; 0],
                "{case}: round {round}"
            );
        }
        scenario.disk.clear_faults();
        scenario.run_keeper();
        scenario
            .test_dir
            .receiver
            .clock
            .forward(Duration::from_secs(3600));
        // The first run after the fault has ended may still report a problem that an earlier run
        // left.
        stage_and_deliver(&mut scenario);
        assert_eq!(stage_and_deliver(&mut scenario), [""; 0], "{case}: after");
        scenario.recover(&case);
        scenario.check(&case);
    }
}

/// Consolidates eight records into two batches and archives the batches, with these faults or
/// crashes. Then does both again without faults, and checks that each record exists once. Returns
/// three values: the number of records in pending batches and the number of disk operations, both
/// counted after the first consolidation, and true if the disk crashed.
fn consolidate_and_archive(events: Events) -> (usize, usize, bool) {
    let case = format!("{events:?}");
    let test_dir = TestDataDir::new();
    let staged = test_dir.entry(8, true);
    let crashing = Arc::new(CrashingDisk::with(events));
    let disk = Arc::clone(&crashing) as Arc<dyn Disk>;
    let consolidate = || test_dir.consolidate_on(&disk);
    let archive = || {
        let store = SpoolManager::on(Arc::clone(&disk), test_dir.path());
        archive(&store, &Watch::silent())
    };
    let _ = consolidate();
    let (batched, operations) = (
        test_dir.pending_records().len(),
        crashing.operations().len(),
    );
    let _ = archive();
    let has_crashed = crashing.has_crashed();
    crashing.restart();
    crashing.clear_faults();
    consolidate().unwrap();
    archive().unwrap();
    let found = test_dir.record_counts();
    let expected: BTreeMap<Uuid, usize> = staged.iter().map(|one| (one.id(), 1)).collect();
    assert_eq!(found, expected, "{case}");
    (batched, operations, has_crashed)
}

/// The directory entry of a batch is not synced if its consolidation has failed or is in progress.
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
    // The process ends before the first line is complete or synced, so recovery moves the torn
    // entry to `failed/`. The moved file must survive a power failure.
    disk.append(&file, br#"{"entry":"01890a5d"#).unwrap();
    drop(file);
    let dyn_disk = Arc::clone(&disk) as Arc<dyn Disk>;
    let done = test_dir.consolidate_on(&dyn_disk);
    done.unwrap();
    assert_eq!(
        names(&test_dir.data().failed).len(),
        2,
        "the entry and its reason"
    );
    disk.cut_power();
    test_dir.assert_balanced("at the end");
    assert_eq!(
        names(&test_dir.data().failed).len(),
        2,
        "the entry and its reason"
    );
}

/// The cost of a snapshot must not grow with the number of staged entries.
#[test]
fn staging_directory_is_listed_once_for_many_snapshots() {
    let listings = |entries: usize| {
        let test_dir = TestDataDir::new();
        for _ in 0..entries {
            test_dir.record_file();
        }
        let disk = Arc::new(CrashingDisk::with(Vec::new()));
        let dyn_disk = Arc::clone(&disk) as Arc<dyn Disk>;
        let options = Options {
            max_entries: 1,
            ..batches_of(4)
        };
        let state = &mut ConsolidatorState::default();
        while consolidate_on(&dyn_disk, test_dir.path(), &options, state)
            .unwrap()
            .entries
            > 0
        {}
        disk.listings(&test_dir.data().staging)
    };
    assert_eq!(listings(30), listings(10));
}

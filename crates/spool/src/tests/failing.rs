//! Acts of the disk that fail while the process goes on, alone and in pairs with others and with
//! crashes: nothing is lost, nothing is there twice, and when the fault is over everything goes on by
//! itself. (S1, S2, S4, S5, S9)

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::crash::options;
use super::crashing_disk::{CRASHES, CrashingDisk, Event, FAULTS, Fault, Kind};
use super::place::{Place, names, record};
use crate::consolidate::{Kept, consolidate_on};
use crate::data_dir::DataDir;
use crate::delivery::{Watch, archive};
use crate::disk::Disk;
use crate::manager::SpoolManager;
use crate::record::Record;
use crate::staging::{Durability, Limits, Staging};
use crate::verify::{verify, verify_in};

/// How often an act is tried that failed.
const MOST_TRIES: usize = 6;

/// A data directory, the processes that use it, and what they promised.
struct World {
    place: Place,
    disk: Arc<CrashingDisk>,
    staging: Option<Staging>,
    kept: Kept,
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
        let place = Place::new();
        let evicted = Event::Fault(Fault::Evicted);
        Self {
            forgets_unsynced: events.iter().any(|(_, event)| *event == evicted),
            disk: Arc::new(CrashingDisk::with(events)),
            staging: None,
            kept: Kept::default(),
            tried: BTreeSet::new(),
            power: BTreeSet::new(),
            process: BTreeSet::new(),
            orphans: BTreeSet::new(),
            now: Instant::now(),
            place,
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
        self.kept = Kept::default();
        self.orphans.append(&mut self.process);
    }

    fn staging(&mut self) -> Option<&Staging> {
        self.restart_if_crashed();
        if self.staging.is_none() {
            let limits = Limits {
                records: 4,
                age: Duration::from_secs(3600),
                reserve: 0,
                ..Limits::default()
            };
            let dir = self.place.data().staging;
            self.staging = Staging::open_without_keeper(self.on(), &dir, limits).ok();
        }
        self.staging.as_ref()
    }

    /// Stages a record until that succeeds, as the documentation says.
    fn stage(&mut self, durability: Durability) {
        let record = record();
        self.tried.insert(record.id());
        let is_staged = (0..MOST_TRIES).any(|_| {
            let staged = self
                .staging()
                .map(|staging| staging.stage(&record, durability));
            matches!(staged, Some(Ok(())))
        });
        assert!(is_staged, "the fault is over, and it cannot be staged");
        match durability {
            Durability::Power => self.power.insert(record.id()),
            Durability::Process => self.process.insert(record.id()),
        };
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

    fn consolidate(&mut self) -> bool {
        self.restart_if_crashed();
        let done = consolidate_on(&self.on(), self.place.path(), &options(), &mut self.kept);
        if done.is_err() {
            self.kept.forget();
        }
        done.is_ok_and(|done| done.entries == 0)
    }

    fn deliver(&mut self) -> bool {
        self.restart_if_crashed();
        self.place.deliver(&self.on()).is_ok()
    }

    fn archive(&mut self) -> bool {
        self.restart_if_crashed();
        let store = SpoolManager::on(self.on(), self.place.path());
        archive(&store, &Watch::silent()).is_ok()
    }

    /// What changes nothing must not change anything however it fails.
    fn look(&mut self) {
        self.restart_if_crashed();
        let data = DataDir::on(self.on(), self.place.path());
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
        let single = self.place.single();
        self.tried.insert(single.id());
        self.power.insert(single.id());
        self.consolidate();
        self.deliver();
        self.stage(Durability::Process);
        self.stage(Durability::Power);
        self.seal();
        // A restart, with an entry that its writer left open.
        self.stage(Durability::Process);
        self.kill();
        if self.forgets_unsynced {
            self.orphans.clear();
        }
        self.consolidate();
        self.archive();
        self.stage(Durability::Process);
        self.look();
    }

    /// The fault is over: everything goes on by itself.
    fn recover(&mut self) {
        self.disk.heal();
        for _ in 0..MOST_TRIES {
            self.keep();
            self.seal();
            self.consolidate();
            let is_delivered = self.deliver();
            if is_delivered && self.consolidate() {
                return;
            }
        }
    }

    /// How often each record is anywhere.
    fn found(&self) -> BTreeMap<Uuid, usize> {
        let mut found = self.place.batched();
        for dir in [self.place.data().archive, self.place.data().failed] {
            for name in names(&dir)
                .iter()
                .filter(|name| crate::batch::is_name(name))
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

    fn check(&self, what: &str) {
        let found = self.found();
        let twice: Vec<_> = found.iter().filter(|(_, times)| **times > 1).collect();
        assert!(twice.is_empty(), "{what}: there twice: {twice:?}");
        let found: BTreeSet<Uuid> = found.into_keys().collect();
        let lost: Vec<_> = self.power.difference(&found).collect();
        assert!(lost.is_empty(), "{what}: lost: {lost:?}");
        let unsynced = &self.process | &self.orphans;
        let lost: Vec<_> = unsynced.difference(&found).collect();
        assert!(lost.is_empty(), "{what}: lost: {lost:?}");
        let made_up: Vec<_> = found.difference(&self.tried).collect();
        assert!(made_up.is_empty(), "{what}: made up: {made_up:?}");
        assert_eq!(names(&self.place.data().staging), [""; 0], "{what}: stuck");
        assert_eq!(names(&self.place.data().spool), [""; 0], "{what}: stuck");
        let trouble = self.staging.as_ref().and_then(Staging::trouble);
        assert!(trouble.is_none(), "{what}: {trouble:?}");
        let books = verify(self.place.path(), &Watch::silent()).unwrap();
        assert!(books.balance(), "{what}: {:?}", books.problems);
        let sum = books.delivered + books.archived + books.pending + books.failed;
        assert_eq!(books.staged, sum, "{what}: {books:?}");
        let count = found.len() as u64;
        assert_eq!(self.place.totals(), (count, count), "{what}: totals");
    }
}

/// Lives through these events, and checks what is left. Returns the acts.
fn run(events: Vec<(usize, Event)>) -> Vec<Kind> {
    let what = format!("{events:?}");
    let mut world = World::new(events);
    world.live();
    world.restart_if_crashed();
    let acts = world.disk.acts();
    world.recover();
    world.check(&what);
    acts
}

/// The same, and the power fails when the events are over.
fn run_and_cut_power(events: Vec<(usize, Event)>) {
    let what = format!("{events:?}, then the power fails");
    let mut world = World::new(events);
    world.live();
    world.restart_if_crashed();
    world.keep();
    world.keep();
    world.disk.cut_power();
    world.kill();
    world.orphans.clear();
    world.recover();
    world.check(&what);
}

fn faults(kind: Kind) -> impl Iterator<Item = Fault> {
    FAULTS.into_iter().filter(move |fault| fault.is_for(kind))
}

#[expect(
    clippy::print_stdout,
    reason = "how much was tried is part of the result"
)]
fn say(what: &str) {
    println!("{what}");
}

/// Runs many cases, and fails with the first few that failed.
fn all(cases: impl Iterator<Item = Vec<(usize, Event)>>, run: fn(Vec<(usize, Event)>)) {
    let (mut count, mut failed) = (0, Vec::new());
    for events in cases {
        count += 1;
        let outcome = std::panic::catch_unwind(|| run(events.clone()));
        if outcome.is_err() {
            failed.push(events);
        }
    }
    let some: Vec<_> = failed.iter().take(20).collect();
    assert!(
        failed.is_empty(),
        "{} of {count} failed: {some:#?}",
        failed.len()
    );
    say(&format!("{count} cases"));
}

fn run_only(events: Vec<(usize, Event)>) {
    run(events);
}

/// Every act with every fault that it can have; without `FAULT_ALL` with one of them, each in turn.
fn singles() -> impl Iterator<Item = (usize, Kind, Fault)> {
    let is_all = std::env::var_os("FAULT_ALL").is_some();
    let acts = run(Vec::new()).into_iter().enumerate();
    acts.flat_map(move |(at, kind)| {
        let mut faults: Vec<Fault> = faults(kind).collect();
        if !is_all {
            faults = vec![faults[at % faults.len()]];
        }
        faults.into_iter().map(move |fault| (at, kind, fault))
    })
}

/// Numbers that look random and are the same for the same seed.
struct Random(u64);

impl Random {
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
fn nothing_happens_and_everything_is_as_it_must_be() {
    let acts = run(Vec::new());
    for kind in [
        Kind::Read,
        Kind::Write,
        Kind::Sync,
        Kind::Rename,
        Kind::Other,
    ] {
        assert!(acts.contains(&kind), "{kind:?}");
    }
    say(&format!("{} acts", acts.len()));
    run_and_cut_power(Vec::new());
}

#[test]
fn nothing_is_lost_or_there_twice_whatever_act_fails() {
    let cases = singles().map(|(at, _, fault)| vec![(at, Event::Fault(fault))]);
    all(cases, run_only);
}

#[test]
fn nothing_is_lost_or_there_twice_whatever_act_fails_before_the_power_does() {
    let cases = singles().filter(|(_, kind, _)| *kind != Kind::Read);
    let cases = cases.map(|(at, _, fault)| vec![(at, Event::Fault(fault))]);
    all(cases, run_and_cut_power);
}

#[test]
fn nothing_is_lost_or_there_twice_whatever_two_adjacent_acts_fail() {
    let seed = setting("FAULT_SEED", 1);
    say(&format!("seed {seed}"));
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let cases: Vec<_> = singles()
        .map(|(at, _, fault)| vec![(at, Event::Fault(fault)), (at + 1, random.event())])
        .collect();
    all(cases.into_iter(), run_only);
}

#[test]
fn nothing_is_lost_or_there_twice_whatever_two_acts_fail() {
    let (seed, count) = (setting("FAULT_SEED", 1), setting("FAULT_PAIRS", 200));
    say(&format!("seed {seed}"));
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let acts = run(Vec::new()).len();
    let cases: Vec<_> = (0..count)
        .map(|_| {
            vec![
                (random.below(acts), random.event()),
                (random.below(acts), random.event()),
            ]
        })
        .collect();
    all(cases.into_iter(), run_only);
}

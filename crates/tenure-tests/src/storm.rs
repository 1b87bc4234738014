//! Several processes that acquire and release one key in a loop, while they are killed one by one.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::Random;
use crate::contenders::{Contender, Outcome};
use crate::witness::{Counter, Witness};

/// Maximum time in which no process acquires the key. A longer pause counts as a stuck key, which a
/// correct lock never has.
const STUCK: Duration = Duration::from_secs(2);

/// Parameters of a storm, a stress test: several processes acquire and release one key in a loop,
/// while random ones are killed and replaced.
#[derive(Clone, Debug)]
pub struct Storm {
    /// The `torture` program.
    pub program: PathBuf,
    /// Lock algorithm under test.
    pub contender: Contender,
    /// Number of processes.
    pub workers: u64,
    /// Duration of the storm.
    pub length: Duration,
    /// Average time between kills. Zero: no process is killed.
    pub kill_every: Duration,
    /// Runs each process in its own network namespace, where the deletion guard has no effect.
    /// Needs root.
    pub separate_networks: bool,
}

/// Counts of a storm, summed over all its processes. Tests check that the key never had two owners.
#[derive(Clone, Copy, Debug)]
pub struct StormReport {
    /// Number of acquisitions.
    pub acquired: u64,
    /// Number of times that two processes owned the key.
    pub doubles: u64,
    /// Number of times that no process acquired the key within the limit of a stuck key (`STUCK`).
    pub stuck: u64,
    /// Number of attempts to acquire the key that failed with an error. Refusals because another
    /// process owns the key are not counted.
    pub errors: u64,
    /// Number of owners that found their lock file gone.
    pub lost: u64,
    /// Number of refusals that reported the owner's lock file as gone.
    pub reported_lost: u64,
    /// Number of processes that were killed.
    pub killed: u64,
}

impl Storm {
    /// Starts the processes, kills and replaces random ones until the storm ends, and returns the
    /// counts.
    pub fn run(&self) -> StormReport {
        let dir = tempfile::tempdir().expect("a directory");
        let witness = Witness::open(&dir.path().join("witness"), self.workers);
        let start = |slot: u64| self.worker(dir.path(), slot);
        let mut workers: Vec<Child> = (0..self.workers).map(start).collect();
        let mut random = Random::new(u64::from(std::process::id()));
        let until = Instant::now() + self.length;
        let mut report = StormReport {
            acquired: 0,
            doubles: 0,
            stuck: 0,
            errors: 0,
            lost: 0,
            reported_lost: 0,
            killed: 0,
        };
        let mut progress = (0, Instant::now());
        while Instant::now() < until {
            let around = u64::try_from(self.kill_every.as_micros())
                .unwrap_or(0)
                .max(2000);
            thread::sleep(Duration::from_micros(around / 2 + random.below(around)));
            if !self.kill_every.is_zero() {
                let slot = random.below(self.workers);
                let index = usize::try_from(slot).expect("few workers");
                witness.condemn(slot);
                let _ = workers[index].kill();
                let _ = workers[index].wait();
                witness.reuse(slot);
                workers[index] = start(slot);
                report.killed += 1;
            }
            let now = witness.total(Counter::Acquired);
            if now != progress.0 {
                progress = (now, Instant::now());
            } else if progress.1.elapsed() > STUCK {
                report.stuck += 1;
                progress.1 = Instant::now();
            }
        }
        for (slot, worker) in workers.iter_mut().enumerate() {
            witness.condemn(slot as u64);
            let _ = worker.kill();
            let _ = worker.wait();
        }
        report.acquired = witness.total(Counter::Acquired);
        report.doubles = witness.total(Counter::Doubles);
        report.errors = witness.total(Counter::Errors);
        report.lost = witness.total(Counter::Lost);
        report.reported_lost = witness.total(Counter::ReportedLost);
        report
    }

    fn worker(&self, dir: &Path, slot: u64) -> Child {
        let mut command = if self.separate_networks {
            let mut command = Command::new("unshare");
            command.args(["--net", "--"]).arg(&self.program);
            command
        } else {
            Command::new(&self.program)
        };
        command
            .args(["storm-worker", self.contender.name()])
            .arg(dir)
            .arg(slot.to_string())
            .arg(self.workers.to_string())
            .stdin(Stdio::null())
            .spawn()
            .expect("a worker starts")
    }
}

/// Acquires and releases the key in a loop and counts the outcomes in the witness file. Each
/// process of a storm runs this loop until it is killed.
pub fn worker(contender: Contender, dir: &Path, slot: u64, slots: u64) -> ! {
    let witness = Witness::open(&dir.join("witness"), slots);
    let mut random = Random::new(u64::from(std::process::id()) << 8 | slot);
    loop {
        match contender.try_acquire(dir) {
            Outcome::Acquired(guard) => {
                witness.enter(slot);
                witness.count(slot, Counter::Acquired);
                thread::sleep(Duration::from_micros(random.below(2000)));
                if guard.is_lost() {
                    witness.count(slot, Counter::Lost);
                }
                witness.leave(slot);
                guard.release();
            }
            Outcome::Refused(_) => {}
            Outcome::RefusedWithoutFile => witness.count(slot, Counter::ReportedLost),
            Outcome::Failed(_) => witness.count(slot, Counter::Errors),
        }
        thread::sleep(Duration::from_micros(50 + random.below(450)));
    }
}

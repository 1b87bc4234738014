//! Several processes that take and release one key in a loop while they are killed one by one.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::Chance;
use crate::contenders::{Contender, Outcome};
use crate::witness::{Counter, Witness};

/// How long without any acquisition counts as stuck.
const STUCK: Duration = Duration::from_secs(2);

/// What is to be done.
#[derive(Clone, Debug)]
pub struct Storm {
    /// The `torture` program.
    pub program: PathBuf,
    /// The algorithm.
    pub contender: Contender,
    /// How many processes.
    pub workers: u64,
    /// How long.
    pub length: Duration,
    /// How far apart kills are, on average. Zero: nobody is killed.
    pub kill_every: Duration,
    /// Each process in a network namespace of its own, where no deletion guard can help. Needs root.
    pub apart: bool,
}

/// What came of it.
#[derive(Clone, Copy, Debug)]
pub struct Damage {
    /// How often the key was acquired.
    pub acquired: u64,
    /// How often two were inside.
    pub doubles: u64,
    /// How often nobody got in for a long while.
    pub stuck: u64,
    /// How often an attempt failed.
    pub errors: u64,
    /// How often an owner found its lock file gone.
    pub lost: u64,
    /// How often a refusal said that the owner's lock file was gone.
    pub said_lost: u64,
    /// How many processes were killed.
    pub killed: u64,
}

impl Storm {
    /// Runs it.
    pub fn run(&self) -> Damage {
        let dir = tempfile::tempdir().expect("a directory");
        let witness = Witness::open(&dir.path().join("witness"), self.workers);
        let start = |slot: u64| self.worker(dir.path(), slot);
        let mut workers: Vec<Child> = (0..self.workers).map(start).collect();
        let mut chance = Chance::new(u64::from(std::process::id()));
        let until = Instant::now() + self.length;
        let mut damage = Damage {
            acquired: 0,
            doubles: 0,
            stuck: 0,
            errors: 0,
            lost: 0,
            said_lost: 0,
            killed: 0,
        };
        let mut progress = (0, Instant::now());
        while Instant::now() < until {
            let around = u64::try_from(self.kill_every.as_micros())
                .unwrap_or(0)
                .max(2000);
            thread::sleep(Duration::from_micros(around / 2 + chance.below(around)));
            if !self.kill_every.is_zero() {
                let slot = chance.below(self.workers);
                let place = usize::try_from(slot).expect("few workers");
                witness.condemn(slot);
                let _ = workers[place].kill();
                let _ = workers[place].wait();
                witness.reuse(slot);
                workers[place] = start(slot);
                damage.killed += 1;
            }
            let now = witness.total(Counter::Acquired);
            if now != progress.0 {
                progress = (now, Instant::now());
            } else if progress.1.elapsed() > STUCK {
                damage.stuck += 1;
                progress.1 = Instant::now();
            }
        }
        for (slot, worker) in workers.iter_mut().enumerate() {
            witness.condemn(slot as u64);
            let _ = worker.kill();
            let _ = worker.wait();
        }
        damage.acquired = witness.total(Counter::Acquired);
        damage.doubles = witness.total(Counter::Doubles);
        damage.errors = witness.total(Counter::Errors);
        damage.lost = witness.total(Counter::Lost);
        damage.said_lost = witness.total(Counter::SaidLost);
        damage
    }

    fn worker(&self, dir: &Path, slot: u64) -> Child {
        let mut command = if self.apart {
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

/// What each process does until it is killed.
pub fn worker(contender: Contender, dir: &Path, slot: u64, slots: u64) -> ! {
    let witness = Witness::open(&dir.join("witness"), slots);
    let mut chance = Chance::new(u64::from(std::process::id()) << 8 | slot);
    loop {
        match contender.try_enter(dir) {
            Outcome::Inside(guard) => {
                witness.enter(slot);
                witness.count(slot, Counter::Acquired);
                thread::sleep(Duration::from_micros(chance.below(2000)));
                if guard.is_lost() {
                    witness.count(slot, Counter::Lost);
                }
                witness.leave(slot);
                guard.release();
            }
            Outcome::Refused(_) => {}
            Outcome::RefusedWithoutFile => witness.count(slot, Counter::SaidLost),
            Outcome::Failed(_) => witness.count(slot, Counter::Errors),
        }
        thread::sleep(Duration::from_micros(50 + chance.below(450)));
    }
}

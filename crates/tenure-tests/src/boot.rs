//! Several processes that start together while the lock file of a crashed owner exists.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::contenders::{Contender, Outcome};
use crate::eventually;
use crate::witness::{Counter, Witness};

const OWNS: u64 = 1;
const REFUSED: u64 = 2;
const FAILED: u64 = 3;
/// Attempts that each refused process makes while the owner keeps the key. If its refusals name two
/// processes, they count as wrong.
const TRIES: usize = 20;

/// Parameters of a race: several processes start together and try to acquire one key.
#[derive(Clone, Debug)]
pub struct BootRace {
    /// The `torture` program.
    pub program: PathBuf,
    /// Lock algorithm under test.
    pub contender: Contender,
    /// Number of processes that start together.
    pub starters: u64,
    /// Number of rounds.
    pub rounds: u64,
}

/// Counts over all rounds of a race.
#[derive(Clone, Copy, Debug, Default)]
pub struct BootReport {
    /// Rounds with two or more owners.
    pub doubles: u64,
    /// Rounds without an owner.
    pub none: u64,
    /// Attempts that failed for another reason than a live owner.
    pub errors: u64,
    /// Refusals that named the owner.
    pub named: u64,
    /// Refusals that named no process.
    pub unknown: u64,
    /// Refusals that named a process other than the owner.
    pub wrong: u64,
}

impl BootRace {
    /// Runs all rounds. Every round ends with kill -9, so that the next one starts over a stale
    /// lock.
    pub fn run(&self) -> BootReport {
        let dir = tempfile::tempdir().expect("a directory");
        let mut result = BootReport::default();
        for round in 0..self.rounds {
            self.round(dir.path(), round, &mut result);
        }
        result
    }

    fn round(&self, dir: &Path, round: u64, result: &mut BootReport) {
        let path = dir.join(format!("witness-{round}"));
        // The witness is a shared file with a slot for the report of each starting process. An
        // extra last slot holds the signal to start, so that all processes begin at the same
        // moment.
        let witness = Witness::open(&path, self.starters + 1);
        let mut starters: Vec<Child> = (0..self.starters)
            .map(|slot| self.starter(dir, &path, slot))
            .collect();
        witness.set(self.starters, Counter::Report, OWNS);
        eventually("every starter reports", || {
            (0..self.starters).all(|slot| witness.value(slot, Counter::Report) != 0)
        });
        let slots = || 0..self.starters;
        let report = |slot| witness.value(slot, Counter::Report);
        let owners: Vec<u64> = slots().filter(|slot| report(*slot) == OWNS).collect();
        match owners[..] {
            [] => result.none += 1,
            [owner] => {
                let pid = starters[usize::try_from(owner).expect("few starters")].id();
                for slot in slots().filter(|slot| *slot != owner) {
                    match witness.value(slot, Counter::Named) {
                        0 => result.unknown += 1,
                        named if named == u64::from(pid) => result.named += 1,
                        _ => result.wrong += 1,
                    }
                }
            }
            _ => result.doubles += 1,
        }
        result.errors += slots().filter(|slot| report(*slot) == FAILED).count() as u64;
        for starter in &mut starters {
            let _ = starter.kill();
            let _ = starter.wait();
        }
        let _ = std::fs::remove_file(&path);
    }

    fn starter(&self, dir: &Path, witness: &Path, slot: u64) -> Child {
        Command::new(&self.program)
            .args(["boot-starter", self.contender.name()])
            .args([dir, witness])
            .arg(slot.to_string())
            .arg(self.starters.to_string())
            .stdin(Stdio::null())
            .spawn()
            .expect("a starter starts")
    }
}

/// Runs in each starting process: waits for the signal, tries to acquire the key, reports and stays
/// alive, so that an owner keeps the key until the end of the round.
pub fn starter(contender: Contender, dir: &Path, witness: &Path, slot: u64, slots: u64) -> ! {
    let witness = Witness::open(witness, slots + 1);
    while witness.value(slots, Counter::Report) == 0 {
        std::hint::spin_loop();
    }
    let mut named = None;
    let mut consistent = true;
    let mut report = REFUSED;
    for _ in 0..TRIES {
        match contender.try_acquire(dir) {
            Outcome::Acquired(guard) => {
                std::mem::forget(guard);
                report = OWNS;
                break;
            }
            Outcome::Refused(pid) => {
                consistent &= named.is_none() || pid.is_none() || pid == named;
                named = pid.or(named);
            }
            Outcome::RefusedWithoutFile | Outcome::Failed(_) => {
                report = FAILED;
                break;
            }
        }
    }
    // If refusals in one round named two processes, at least one of them is wrong. The invalid pid
    // `u64::MAX` reports that.
    let holder = if consistent {
        named.map_or(0, u64::from)
    } else {
        u64::MAX
    };
    witness.set(slot, Counter::Named, holder);
    witness.set(slot, Counter::Report, report);
    loop {
        thread::sleep(Duration::from_secs(60));
    }
}

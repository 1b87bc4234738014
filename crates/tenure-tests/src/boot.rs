//! Several processes started together over what a crash left behind.

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
/// How often those who were refused try again while the owner stays.
const TRIES: usize = 20;

/// What is to be done.
#[derive(Clone, Debug)]
pub struct Boot {
    /// The `torture` program.
    pub program: PathBuf,
    /// The algorithm.
    pub contender: Contender,
    /// How many processes start together.
    pub starters: u64,
    /// How often.
    pub rounds: u64,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Damage {
    /// Rounds in which two or more were owners.
    pub doubles: u64,
    /// Rounds in which nobody was.
    pub none: u64,
    /// Attempts that failed for another reason than a live owner.
    pub errors: u64,
    /// Refusals that named the owner.
    pub named: u64,
    /// Refusals that named nobody.
    pub unknown: u64,
    /// Refusals that named a process which was not the owner.
    pub wrong: u64,
}

impl Boot {
    /// Runs it. Every round ends with kill -9, so that the next begins over a stale lock.
    pub fn run(&self) -> Damage {
        let dir = tempfile::tempdir().expect("a directory");
        let mut damage = Damage::default();
        for round in 0..self.rounds {
            self.round(dir.path(), round, &mut damage);
        }
        damage
    }

    fn round(&self, dir: &Path, round: u64, damage: &mut Damage) {
        let path = dir.join(format!("witness-{round}"));
        // One slot more, for the signal to start.
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
            [] => damage.none += 1,
            [owner] => {
                let pid = starters[usize::try_from(owner).expect("few starters")].id();
                for slot in slots().filter(|slot| *slot != owner) {
                    match witness.value(slot, Counter::Named) {
                        0 => damage.unknown += 1,
                        named if named == u64::from(pid) => damage.named += 1,
                        _ => damage.wrong += 1,
                    }
                }
            }
            _ => damage.doubles += 1,
        }
        damage.errors += slots().filter(|slot| report(*slot) == FAILED).count() as u64;
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

/// What each process does: wait for the signal, try, report, stay.
pub fn starter(contender: Contender, dir: &Path, witness: &Path, slot: u64, slots: u64) -> ! {
    let witness = Witness::open(witness, slots + 1);
    while witness.value(slots, Counter::Report) == 0 {
        std::hint::spin_loop();
    }
    let mut named = None;
    let mut consistent = true;
    let mut report = REFUSED;
    for _ in 0..TRIES {
        match contender.try_enter(dir) {
            Outcome::Inside(guard) => {
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
    // Two different names in one round: at most one can be right.
    let said = if consistent {
        named.map_or(0, u64::from)
    } else {
        u64::MAX
    };
    witness.set(slot, Counter::Named, said);
    witness.set(slot, Counter::Report, report);
    loop {
        thread::sleep(Duration::from_secs(60));
    }
}

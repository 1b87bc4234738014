//! Processes that compete for one key while they are killed, suspended, or have different clocks.

use std::thread;
use std::time::{Duration, Instant};

use tenure_tests::Random;
use tenure_tests::lease_storm::{LeaseStorm, RunningStorm};

use crate::proof::{Proof, TTL, storm};
use crate::target::{Kind, Target};

/// Average time for which a process holds the key, unless a check needs another one.
const HOLD: Duration = Duration::from_millis(20);
/// Maximum time for which the key may have no owner after the owner was killed, while the store is
/// reachable. A longer gap fails the check.
pub(crate) const TAKEOVER: Duration = Duration::from_secs(3);

pub(crate) fn random_kills(proof: &mut Proof, target: &Target) {
    let mut running = storm(vec![target.location(); 8], HOLD).start(true);
    let killed = running.kill_randomly(proof.long_run(), Duration::from_millis(400));
    let name = format!(
        "8 processes, random kill -9, {} s",
        proof.long_run().as_secs()
    );
    proof.exclusive(
        &name,
        &running.finish(),
        &format!(" killed={killed}"),
        TAKEOVER,
    );
}

pub(crate) fn random_suspensions(proof: &mut Proof, target: &Target) {
    let running = storm(vec![target.location(); 4], HOLD).start(true);
    let suspended = suspend_randomly(&running, proof.short_run());
    // A suspended owner of a lock file keeps the key, as the kernel keeps its lock. The limit for
    // the time without an owner therefore includes the suspension.
    let gap = match target.kind() {
        Kind::File => 3 * TTL,
        _ => TAKEOVER,
    };
    let name = format!(
        "4 processes, random SIGSTOP for 2 x TTL, {} s",
        proof.short_run().as_secs()
    );
    let more = format!(" suspended={suspended}");
    proof.exclusive(&name, &running.finish(), &more, gap);
}

/// Suspends random processes for two TTLs each until the time is over. Returns their number.
pub(crate) fn suspend_randomly(running: &RunningStorm, length: Duration) -> u64 {
    let mut random = Random::new(11);
    let until = Instant::now() + length;
    let mut suspended = 0;
    let workers = running.workers();
    let mut resume_at = vec![None; workers];
    while Instant::now() < until {
        thread::sleep(Duration::from_millis(100 + random.below(300)));
        for (index, resume) in resume_at.iter_mut().enumerate() {
            if resume.is_some_and(|at| Instant::now() >= at) {
                running.resume(index);
                *resume = None;
            }
        }
        // At least one process keeps running, so that it can acquire the key while the others are
        // suspended.
        let index = usize::try_from(random.below(workers as u64 - 1)).unwrap_or(0);
        if resume_at[index].is_none() {
            running.suspend(index);
            resume_at[index] = Some(Instant::now() + 2 * TTL);
            suspended += 1;
        }
    }
    for index in 0..workers {
        running.resume(index);
    }
    thread::sleep(TTL);
    suspended
}

pub(crate) fn clocks_apart(proof: &mut Proof, target: &Target) {
    let apart = LeaseStorm {
        clock_offset: Some(Duration::from_secs(3600)),
        ..storm(vec![target.location(); 4], HOLD)
    };
    let mut running = apart.start(true);
    let killed = running.kill_randomly(proof.short_run(), Duration::from_millis(400));
    let name = format!(
        "4 processes, wall clocks an hour apart (faketime), {} s",
        proof.short_run().as_secs()
    );
    proof.exclusive(
        &name,
        &running.finish(),
        &format!(" killed={killed}"),
        TAKEOVER,
    );
}

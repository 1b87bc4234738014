//! Runs in which processes or the fenced resource behave wrongly on purpose. The runs pass only if
//! two owners or late writes are detected, which shows that the checks of the correct runs can
//! fail.

use std::thread;
use std::time::Duration;

use tenure_tests::lease_storm::{Behaviour, LeaseStorm};
use tenure_tests::servers::RedisServer;

use crate::proof::{Proof, storm};
use crate::storms::suspend_randomly;

pub(crate) fn all(proof: &mut Proof) {
    let Some(server) = RedisServer::start() else {
        return proof.verdict("redis-server", "not installed", "installed", false);
    };
    let length = proof.short_run().max(Duration::from_secs(10));
    let with = |behaviour| LeaseStorm {
        behaviour,
        ..storm(vec![server.url(); 4], Duration::from_millis(100))
    };

    let running = with(Behaviour::IgnoresLoss).start(true);
    suspend_randomly(&running, length);
    let found = running.finish();
    let doubles = found.verdict.overlaps.len();
    let measured = format!("doubles={doubles} rejected={}", found.resource.rejected);
    proof.verdict(
        "owners that ignore lost(), SIGSTOP",
        &measured,
        "> 0 doubles",
        doubles > 0,
    );

    let running = with(Behaviour::Correct).start(false);
    // A late write needs a suspension that hits the owner, and few of the random suspensions do.
    // Processes are therefore suspended again until a late write was accepted, at most four times.
    for _ in 0..4 {
        suspend_randomly(&running, length);
        if running.findings().resource.late > 0 {
            break;
        }
    }
    let found = running.finish();
    let measured = format!(
        "late_writes={} doubles={}",
        found.resource.late,
        found.verdict.overlaps.len()
    );
    let caught = found.resource.late > 0;
    proof.verdict(
        "resource without a check of tokens",
        &measured,
        "> 0 late writes",
        caught,
    );

    let running = with(Behaviour::DeletesUnchecked).start(true);
    thread::sleep(length);
    let doubles = running.finish().verdict.overlaps.len();
    let measured = format!("doubles={doubles}");
    proof.verdict(
        "release that does not compare the owner",
        &measured,
        "> 0 doubles",
        doubles > 0,
    );
}

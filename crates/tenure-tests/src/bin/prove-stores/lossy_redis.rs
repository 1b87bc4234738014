//! Checks with a Redis server that forgets a lease which it has granted. Two owners are then
//! possible for up to one TTL, and only the fencing token stops the late writes of the first.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use tenure_tests::Random;
use tenure_tests::lease_storm::{RunningStorm, StormFindings};
use tenure_tests::proxy::{Network, Proxy};
use tenure_tests::servers::RedisServer;

use crate::proof::{Proof, TTL, millis, storm};

/// Findings of all rounds in which Redis lost leases in the same way, added up.
#[derive(Default)]
struct Sum {
    rounds: usize,
    overlaps: usize,
    longest: Duration,
    unordered: usize,
    late: usize,
    rejected: u64,
    passed_on: usize,
}

impl Sum {
    fn add(&mut self, found: &StormFindings) {
        self.rounds += 1;
        self.overlaps += usize::from(!found.verdict.overlaps.is_empty());
        self.longest = self.longest.max(found.verdict.longest_overlap());
        self.unordered += found.verdict.unordered_tokens;
        self.late += found.resource.late;
        self.rejected += found.resource.rejected;
        self.passed_on += usize::from(found.verdict.intervals.len() > 1);
    }

    fn report(&self, proof: &mut Proof, name: &str) {
        let measured = format!(
            "overlap in {}/{} rounds, longest={} unordered_tokens={} late_writes={} rejected={}",
            self.overlaps,
            self.rounds,
            millis(self.longest),
            self.unordered,
            self.late,
            self.rejected
        );
        let passed = self.longest <= TTL
            && self.unordered == 0
            && self.late == 0
            && self.rounds > 0
            && self.passed_on == self.rounds;
        let limit = format!("longest {}, 0 unordered tokens, late writes", millis(TTL));
        proof.verdict(name, &measured, &limit, passed);
    }
}

/// Starts four processes that compete for the key. The process that acquires it keeps it for longer
/// than a round takes, so only the loss of the lease can end its ownership.
fn competing(location: &str, random: &mut Random) -> RunningStorm {
    let running = storm(vec![location.to_owned(); 4], 20 * TTL).start(true);
    running.wait_for_acquisition(Duration::ZERO, 5 * TTL);
    // After this pause the other processes wait for the key. Its random part lets the loss happen
    // at any point between two renewals of the owner.
    thread::sleep(Duration::from_millis(300 + random.below(700)));
    running
}

/// Waits until another process has acquired the lost key, and then until the former owner must have
/// noticed the loss. Returns the findings.
fn settle(running: RunningStorm, lost_at: Duration) -> StormFindings {
    running.wait_for_acquisition(lost_at, 5 * TTL);
    thread::sleep(TTL + Duration::from_millis(500));
    running.finish()
}

pub(crate) fn restarted_without_persistence(proof: &mut Proof) {
    let mut sum = Sum::default();
    let mut random = Random::new(13);
    for _ in 0..proof.rounds() {
        let Some(mut server) = RedisServer::start_with(&[]) else {
            break;
        };
        let running = competing(&server.url(), &mut random);
        let lost_at = tenure::boot_time();
        server.kill9();
        server.restart();
        sum.add(&settle(running, lost_at));
    }
    sum.report(proof, "server restarted without persistence");
}

pub(crate) fn promoted_replica(proof: &mut Proof) {
    let mut random = Random::new(17);
    for (name, lags) in [
        ("replica promoted, replication up to date", false),
        ("replica promoted, replication cut before the lease", true),
    ] {
        let mut sum = Sum::default();
        for _ in 0..proof.rounds() {
            if let Some(found) = fail_over(lags, &mut random) {
                sum.add(&found);
            }
        }
        sum.report(proof, name);
    }
}

/// Kills the primary while a process owns the key, and promotes its replica. With `lags`,
/// replication is cut before the lease is granted, so the replica does not have the lease.
fn fail_over(lags: bool, random: &mut Random) -> Option<StormFindings> {
    let mut primary = RedisServer::start()?;
    let replication = Proxy::start(loopback(primary.port()));
    let port = replication.address().port().to_string();
    let replica = RedisServer::start_with(&["--replicaof", "127.0.0.1", &port])?;
    let clients = Proxy::start(loopback(primary.port()));
    while !replica
        .command(&["INFO", "replication"])
        .contains("master_link_status:up")
    {
        thread::sleep(Duration::from_millis(20));
    }
    if lags {
        replication.set(Network::Cut);
    }
    let running = competing(&format!("redis://{}", clients.address()), random);
    let lost_at = tenure::boot_time();
    primary.kill9();
    replica.command(&["REPLICAOF", "NO", "ONE"]);
    clients.lead_to(loopback(replica.port()));
    if !lags {
        // The replica has the lease, so the owner must keep the key. The round ends with a handover
        // that the test forces, because the report requires one in every round.
        thread::sleep(TTL);
        let found = running.findings();
        if found.verdict.intervals.len() == 1 {
            return Some(pass_on(running));
        }
    }
    Some(settle(running, lost_at))
}

/// Kills the owner and all waiting processes and starts others, one of which must acquire the key
/// after the lease has expired.
fn pass_on(mut running: RunningStorm) -> StormFindings {
    let killed_at = tenure::boot_time();
    for index in 0..running.workers() {
        running.kill_and_replace(index);
    }
    running.wait_for_acquisition(killed_at, 3 * TTL);
    running.finish()
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

//! Checks with a store that loses no acknowledged write, while the network is cut, responses are
//! late, or the server is killed and restarted. The key must never have two owners.

use std::thread;
use std::time::{Duration, Instant};

use tenure_tests::Random;
use tenure_tests::proxy::{Network, Proxy};

use crate::hand_over::{owner, until_held, waiting};
use crate::proof::{Proof, TTL, storm};
use crate::target::Target;

/// Maximum time for which the key may have no owner while network faults hit owners and waiting
/// processes. A longer gap fails the check.
const RECOVERY: Duration = Duration::from_secs(5);

pub(crate) fn network(proof: &mut Proof, target: &Target) {
    bad_network(proof, target, "network cut", Network::Cut);
    let late = Network::SlowResponses(TTL * 3 / 2);
    bad_network(proof, target, "responses 1.5 x TTL late", late);
}

/// Runs competing processes that each reach the store through a proxy of their own. All proxies but
/// one have a fault at the same time, for up to two TTLs, so that most faults hit the owner.
fn bad_network(proof: &mut Proof, target: &Target, fault: &str, network: Network) {
    let Some(address) = target.address() else {
        return;
    };
    let proxies: Vec<Proxy> = (0..4).map(|_| Proxy::start(address)).collect();
    let locations = proxies
        .iter()
        .filter_map(|proxy| target.location_behind(proxy.address()))
        .collect();
    let running = storm(locations, Duration::from_millis(300)).start(true);
    let mut random = Random::new(3);
    let until = Instant::now() + proof.short_run();
    let mut faults = 0;
    while Instant::now() < until {
        thread::sleep(Duration::from_millis(random.below(500)));
        let spared = usize::try_from(random.below(4)).unwrap_or(0);
        for (index, proxy) in proxies.iter().enumerate() {
            if index != spared {
                proxy.set(network);
            }
        }
        faults += 1;
        thread::sleep(Duration::from_millis(500 + random.below(3500)));
        for proxy in &proxies {
            proxy.set(Network::Up);
        }
    }
    thread::sleep(TTL);
    let name = format!(
        "4 processes, {fault} for three of them, {} s",
        proof.short_run().as_secs()
    );
    proof.exclusive(
        &name,
        &running.finish(),
        &format!(" faults={faults}"),
        RECOVERY,
    );
}

/// Kills and restarts the server while processes compete for the key. Consumes the target, because
/// a server that fails to restart cannot be used by further checks.
pub(crate) fn restarts(proof: &mut Proof, mut target: Target) {
    if !target.kill() {
        return;
    }
    target.restart();
    let name = "after kill -9 of owner and server, from the restart";
    let times = killed_together(&mut target, proof.rounds().div_ceil(2));
    match times {
        Ok(mut times) => proof.durations(name, &mut times, 2 * TTL + Duration::from_secs(1)),
        Err(why) => proof.verdict(name, &format!("failed: {why}"), "", false),
    }
    let running = storm(vec![target.location(); 4], Duration::from_millis(100)).start(true);
    let mut random = Random::new(5);
    let length = proof.long_run() / 2;
    let until = Instant::now() + length;
    let mut restarts = 0;
    while Instant::now() < until {
        // etcd gives each lease its whole TTL again when it restarts. A key whose owner has crashed
        // would never become free if the server always ran for less than a TTL.
        thread::sleep(2 * TTL + Duration::from_millis(500 + random.below(1500)));
        target.kill();
        thread::sleep(Duration::from_millis(random.below(1000)));
        target.restart();
        restarts += 1;
    }
    thread::sleep(2 * TTL);
    let name = format!(
        "4 processes, server killed and restarted, {} s",
        length.as_secs()
    );
    let more = format!(" restarts={restarts}");
    proof.exclusive(
        &name,
        &running.finish(),
        &more,
        2 * TTL + Duration::from_secs(3),
    );
}

fn killed_together(target: &mut Target, rounds: usize) -> Result<Vec<Duration>, String> {
    let location = target.location();
    let mut times = Vec::new();
    let mut random = Random::new(9);
    for _ in 0..rounds {
        let mut first = owner(&location, "restart")?;
        let mut next = waiting(&location, "restart")?;
        thread::sleep(Duration::from_millis(random.below(700)));
        first.kill();
        target.kill();
        thread::sleep(Duration::from_millis(random.below(500)));
        target.restart();
        let began = Instant::now();
        until_held(&mut next)?;
        times.push(began.elapsed());
        next.request("release");
    }
    Ok(times)
}

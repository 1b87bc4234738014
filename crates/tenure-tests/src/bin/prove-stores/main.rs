//! Measures what each store promises while processes are killed and suspended, servers are restarted
//! and the network fails. Each check prints one line with measurement, limit and verdict; the exit
//! code is 1 if any failed. scripts/prove-stores builds and runs this program.
//!
//! Usage: `prove-stores [--seconds N] [--store file|redis|etcd|dynamodb].. [--group GROUP]..`. N is the
//! length of the longest run; below 60 the other checks have fewer rounds too. Groups are hand-over,
//! storms, network, restarts, lossy and broken.

#[cfg(unix)]
mod broken;
#[cfg(unix)]
mod faults;
#[cfg(unix)]
mod hand_over;
#[cfg(unix)]
mod lossy_redis;
#[cfg(unix)]
mod proof;
#[cfg(unix)]
mod storms;
#[cfg(unix)]
mod target;

use std::process::ExitCode;

#[cfg(unix)]
fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match proof::Options::parse(&words) {
        Ok(options) => run(&options),
        Err(why) => {
            proof::print(&format!("prove-stores: {why}"));
            ExitCode::from(2)
        }
    }
}

#[cfg(unix)]
fn run(options: &proof::Options) -> ExitCode {
    let mut proof = proof::Proof::new(options.clone());
    for kind in &options.kinds {
        let Some(target) = target::Target::start(*kind) else {
            proof.verdict(
                kind.name(),
                "its server is not installed",
                "installed",
                false,
            );
            continue;
        };
        if options.has("hand-over") {
            proof.section(&format!("{}: hand-over", kind.name()));
            hand_over::after_release(&mut proof, &target);
            hand_over::after_kill(&mut proof, &target);
            hand_over::after_suspension(&mut proof, &target);
        }
        proof.section(&format!(
            "{}: never two, decided by the witness",
            kind.name()
        ));
        if options.has("storms") {
            storms::random_kills(&mut proof, &target);
            storms::random_suspensions(&mut proof, &target);
            storms::clocks_apart(&mut proof, &target);
        }
        if options.has("network") {
            faults::network(&mut proof, &target);
        }
        if options.has("restarts") {
            faults::restarts(&mut proof, target);
        }
    }
    let redis = options.kinds.contains(&target::Kind::Redis);
    if redis && options.has("lossy") {
        proof.section("redis that forgets leases: at most one TTL, and tokens stop late writes");
        lossy_redis::restarted_without_persistence(&mut proof);
        lossy_redis::promoted_replica(&mut proof);
    }
    if redis && options.has("broken") {
        proof.section("wrong on purpose: the witness and the resource must report these");
        broken::all(&mut proof);
    }
    proof.finish()
}

#[cfg(not(unix))]
fn main() -> ExitCode {
    ExitCode::FAILURE
}

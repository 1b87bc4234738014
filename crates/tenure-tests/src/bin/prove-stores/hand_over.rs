//! Time until a waiting process owns the key, after the owner released it, was killed or was
//! suspended.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tenure_tests::fenced::FencedResource;
use tenure_tests::{Owner, Random};

use crate::proof::{Proof, TTL, program};
use crate::target::{Kind, Target};

/// Pause after a process has reported that it waits. By its end the process has subscribed to the
/// store's notifications, so a measurement does not include that.
const SETTLED: Duration = Duration::from_millis(300);

pub(crate) fn claimant(location: &str, key: &str) -> Owner {
    let mut command = Command::new(program("owner"));
    command.args(["--keep-file", "--wait"]);
    command.arg(format!("--ttl={}", TTL.as_millis()));
    Owner::start(command, Path::new(location), key)
}

pub(crate) fn owner(location: &str, key: &str) -> Result<Owner, String> {
    let mut owner = claimant(location, key);
    until_held(&mut owner)?;
    Ok(owner)
}

pub(crate) fn waiting(location: &str, key: &str) -> Result<Owner, String> {
    let mut waiting = claimant(location, key);
    let answer = waiting.answer();
    if answer.starts_with("waits ") {
        thread::sleep(SETTLED);
        Ok(waiting)
    } else {
        Err(answer)
    }
}

/// Waits until a started `owner` program reports that it owns the key. The error is its output if
/// it fails.
pub(crate) fn until_held(waiting: &mut Owner) -> Result<(), String> {
    loop {
        let answer = waiting.answer();
        if answer.starts_with("held ") {
            return Ok(());
        }
        if !answer.starts_with("waits ") {
            return Err(answer);
        }
    }
}

/// Measures the time from `act`, which ends the ownership of one process, until a waiting process
/// owns the key. Each round uses the process that acquired the key in the round before.
fn measure(
    target: &Target,
    key: &str,
    rounds: usize,
    act: impl Fn(&mut Owner),
) -> Result<Vec<Duration>, String> {
    let location = target.location();
    let mut random = Random::new(7);
    let mut times = Vec::new();
    let mut present = owner(&location, key)?;
    for _ in 0..rounds {
        let mut next = waiting(&location, key)?;
        // A random pause lets `act` end the ownership at any point between two renewals of the
        // lease, because the time to a takeover depends on the age of the last renewal.
        thread::sleep(Duration::from_millis(random.below(700)));
        let began = Instant::now();
        act(&mut present);
        until_held(&mut next)?;
        times.push(began.elapsed());
        present = next;
    }
    Ok(times)
}

fn report(proof: &mut Proof, name: &str, times: Result<Vec<Duration>, String>, limit: Duration) {
    match times {
        Ok(mut times) => proof.durations(name, &mut times, limit),
        Err(why) => proof.verdict(name, &format!("failed: {why}"), "", false),
    }
}

pub(crate) fn after_release(proof: &mut Proof, target: &Target) {
    let limit = match target.kind() {
        Kind::DynamoDb => Duration::from_secs(1),
        _ => Duration::from_millis(100),
    };
    let times = measure(target, "release", proof.rounds(), |owner| {
        owner.send("release");
    });
    report(proof, "after a clean release", times, limit);
}

pub(crate) fn after_kill(proof: &mut Proof, target: &Target) {
    let limit = match target.kind() {
        Kind::File => Duration::from_millis(100),
        _ => TTL + Duration::from_secs(1),
    };
    let times = measure(target, "kill", proof.rounds(), Owner::kill);
    report(proof, "after kill -9 of the owner", times, limit);
}

/// Suspends an owner for two TTLs. The owner of a lease must be replaced, must find on resume that
/// its lease is lost, and its late write must be rejected. The owner of a lock file must stay the
/// owner.
pub(crate) fn after_suspension(proof: &mut Proof, target: &Target) {
    let name = "SIGSTOP of the owner for 2 x TTL";
    let resource = FencedResource::start(true);
    let mut outcome = Ok(Suspension::default());
    for _ in 0..proof.rounds().div_ceil(2) {
        outcome = outcome.and_then(|sum| suspend(target, &resource, sum));
    }
    let rounds = proof.rounds().div_ceil(2);
    let sum = match outcome {
        Ok(sum) => sum,
        Err(why) => return proof.verdict(name, &format!("failed: {why}"), "", false),
    };
    let measured = format!(
        "lost={}/{rounds} rejected={}/{rounds} taken_over={}/{rounds}",
        sum.lost, sum.rejected, sum.taken_over
    );
    let expected = if target.kind() == Kind::File {
        0
    } else {
        rounds
    };
    proof.verdict(
        name,
        &measured,
        &format!("{expected} each"),
        (sum.lost, sum.rejected, sum.taken_over) == (expected, expected, expected)
            && resource.report().late == 0,
    );
}

#[derive(Default)]
struct Suspension {
    lost: usize,
    rejected: usize,
    taken_over: usize,
}

fn suspend(
    target: &Target,
    resource: &FencedResource,
    mut sum: Suspension,
) -> Result<Suspension, String> {
    let location = target.location();
    let write = format!("write {}", resource.address());
    let mut first = owner(&location, "stopped")?;
    first.request(&write);
    let mut next = waiting(&location, "stopped")?;
    signal(&first, Signal::STOP);
    let resume_at = Instant::now() + 2 * TTL;
    if target.kind() != Kind::File {
        until_held(&mut next)?;
        sum.taken_over += 1;
        next.request(&write);
    }
    thread::sleep(resume_at.saturating_duration_since(Instant::now()));
    signal(&first, Signal::CONT);
    sum.lost += usize::from(first.request("lost") == "true");
    sum.rejected += usize::from(first.request(&write) == "rejected");
    if target.kind() != Kind::File && next.request("lost") != "false" {
        return Err("the new owner lost its lease".to_owned());
    }
    first.kill();
    next.kill();
    Ok(sum)
}

fn signal(owner: &Owner, signal: Signal) {
    if let Ok(raw) = i32::try_from(owner.pid())
        && let Some(pid) = Pid::from_raw(raw)
    {
        let _ = kill_process(pid, signal);
    }
}

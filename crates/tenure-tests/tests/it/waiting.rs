//! Waiting for a key: deadlines, the callback that names the holder, and wake-ups.

use std::process::Command;
use std::time::{Duration, Instant};

use tenure_tests::Owner;

use crate::{Fixture, OWNER};

#[test]
fn wait_ends_at_its_deadline_and_names_the_holder() {
    let fixture = Fixture::new();
    let owner = fixture.owner();
    let mut holders = Vec::new();
    let error = fixture
        .store
        .claim(&fixture.key)
        .acquire_within(Duration::from_millis(300), |holder| {
            holders.push(holder.pid());
        })
        .unwrap_err();
    assert!(error.is_timeout() && error.is_held());
    assert_eq!(error.holder().unwrap().pid(), Some(owner.pid()));
    assert_eq!(holders, [Some(owner.pid())], "the callback is called once");
}

#[test]
fn free_key_is_acquired_without_waiting_even_with_a_zero_deadline() {
    let fixture = Fixture::new();
    let claim = || fixture.store.claim(&fixture.key);
    drop(
        claim()
            .acquire_within(Duration::ZERO, |_| panic!("the key is free"))
            .unwrap(),
    );
    let _owner = fixture.owner();
    assert!(
        claim()
            .acquire_within(Duration::ZERO, |_| {})
            .unwrap_err()
            .is_timeout()
    );
}

#[test]
fn waiting_processes_acquire_the_key_one_after_the_other() {
    let fixture = Fixture::new();
    let mut first = fixture.owner();
    let mut waiters: Vec<Owner> = (0..5)
        .map(|_| {
            let mut command = Command::new(OWNER);
            command.arg("--wait");
            Owner::start(command, fixture.dir(), "k")
        })
        .collect();
    for waiter in &mut waiters {
        assert!(waiter.answer().starts_with("waits "));
    }
    assert_eq!(first.request("release"), "released");
    // From here on one of the waiting processes holds the key. The loop lets each holder release
    // it, until all of them have had it.
    let began = Instant::now();
    while !waiters.is_empty() {
        assert!(
            began.elapsed() < Duration::from_secs(30),
            "{} still wait",
            waiters.len()
        );
        let Some(pid) = fixture.status().holder().and_then(tenure::Holder::pid) else {
            continue;
        };
        let place = waiters
            .iter()
            .position(|waiter| waiter.pid() == pid)
            .unwrap();
        let mut lucky = waiters.remove(place);
        let answer = loop {
            let answer = lucky.answer();
            if !answer.starts_with("waits ") {
                break answer;
            }
        };
        assert!(answer.starts_with(&format!("held {pid}")), "{answer}");
        assert_eq!(lucky.request("release"), "released");
    }
}

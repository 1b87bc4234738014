//! Waiting: with a deadline, told for whom, and woken.

use std::process::Command;
use std::time::{Duration, Instant};

use tenure_tests::Owner;

use crate::{OWNER, Scene};

#[test]
fn a_deadline_ends_the_wait_and_says_who_was_in_the_way() {
    let scene = Scene::new();
    let owner = scene.owner();
    let mut told = Vec::new();
    let error = scene
        .store
        .claim(&scene.key)
        .acquire_within(Duration::from_millis(300), |holder| told.push(holder.pid()))
        .unwrap_err();
    assert!(error.is_timeout() && error.is_held());
    assert_eq!(error.holder().unwrap().pid(), Some(owner.pid()));
    assert_eq!(told, [Some(owner.pid())], "told once");
}

#[test]
fn an_open_key_needs_no_waiting_and_no_deadline_is_a_try() {
    let scene = Scene::new();
    let claim = || scene.store.claim(&scene.key);
    drop(
        claim()
            .acquire_within(Duration::ZERO, |_| panic!("nobody is in the way"))
            .unwrap(),
    );
    let _owner = scene.owner();
    assert!(
        claim()
            .acquire_within(Duration::ZERO, |_| {})
            .unwrap_err()
            .is_timeout()
    );
}

#[test]
fn waiters_get_the_key_one_after_the_other() {
    let scene = Scene::new();
    let mut first = scene.owner();
    let mut waiters: Vec<Owner> = (0..5)
        .map(|_| {
            let mut command = Command::new(OWNER);
            command.arg("--wait");
            Owner::start(command, scene.dir(), "k")
        })
        .collect();
    for waiter in &mut waiters {
        assert!(waiter.answer().starts_with("waits "));
    }
    assert_eq!(first.tell("release"), "released");
    // Whoever holds it now; the others still wait.
    let began = Instant::now();
    while !waiters.is_empty() {
        assert!(
            began.elapsed() < Duration::from_secs(30),
            "{} still wait",
            waiters.len()
        );
        let Some(pid) = scene.status().holder().and_then(tenure::Holder::pid) else {
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
        assert_eq!(lucky.tell("release"), "released");
    }
}

//! T2: instant recovery. T6: what is left behind, and what is not.

use std::process::Command;

use tenure::State;
use tenure_tests::Owner;

use crate::{OWNER, Scene};

#[test]
fn the_next_attempt_after_kill_nine_succeeds_at_once() {
    let scene = Scene::new();
    for _ in 0..20 {
        let mut owner = scene.owner();
        assert!(scene.take().unwrap_err().is_held());
        owner.kill();
        assert!(matches!(scene.status().state(), State::Stale(_)));
        drop(scene.take().expect("free at once"));
    }
}

#[test]
fn a_clean_release_removes_the_file_and_a_crash_leaves_it() {
    let scene = Scene::new();
    let mut owner = scene.owner();
    assert!(scene.file().exists());
    assert_eq!(owner.tell("release"), "released");
    assert!(!scene.file().exists());

    let mut owner = scene.owner();
    owner.kill();
    assert!(scene.file().exists());
    drop(scene.take().unwrap());
    assert!(!scene.file().exists());
}

#[test]
fn a_waiter_gets_in_when_the_owner_is_killed() {
    let scene = Scene::new();
    let mut owner = scene.owner();
    let mut command = Command::new(OWNER);
    command.arg("--wait");
    let mut waiter = Owner::start(command, scene.dir(), "k");
    assert_eq!(waiter.answer(), format!("waits {}", owner.pid()));
    owner.kill();
    assert!(
        waiter
            .answer()
            .starts_with(&format!("held {}", waiter.pid()))
    );
}

#[test]
fn the_takeover_is_logged_with_the_old_record() {
    let scene = Scene::new();
    let mut owner = scene.owner();
    let pid = owner.pid();
    owner.kill();
    let (tenure, text) = crate::guard::logged(|| scene.take().unwrap());
    assert!(text.contains("WARN taking over"), "{text}");
    assert!(text.contains(&format!("pid={pid}")), "{text}");
    assert!(text.contains("DEBUG acquired"), "{text}");
    let (released, text) = crate::guard::logged(|| tenure.release());
    released.unwrap();
    assert!(text.contains("DEBUG released"), "{text}");
}

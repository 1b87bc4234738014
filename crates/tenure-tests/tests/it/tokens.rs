//! T11: tokens rise.

use std::fs;

use crate::Scene;

#[test]
fn every_acquisition_has_a_larger_token() {
    let scene = Scene::new();
    let mut last = 0;
    for _ in 0..2_000 {
        let tenure = scene.take().unwrap();
        assert!(tenure.token() > last);
        last = tenure.token();
    }
    for _ in 0..5 {
        let mut owner = scene.owner();
        owner.kill();
        let tenure = scene.take().unwrap();
        assert!(tenure.token() > last + 1);
        last = tenure.token();
    }
}

/// A crashed owner's record is from a time when the clock was ahead.
#[test]
fn a_clock_that_was_set_back_does_not_set_back_the_token() {
    let scene = Scene::new();
    let ahead = 9_000_000_000_000_000_u64;
    fs::write(scene.file(), format!("{{\"pid\":77,\"token\":{ahead}}}")).unwrap();
    let mut last = ahead;
    for _ in 0..3 {
        let tenure = scene
            .store
            .claim(&scene.key)
            .keep_file(true)
            .try_acquire()
            .unwrap();
        assert!(tenure.token() > last);
        last = tenure.token();
    }
}

#[test]
fn a_kept_file_is_marked_as_released_and_reads_as_free() {
    let scene = Scene::new();
    let tenure = scene
        .store
        .claim(&scene.key)
        .keep_file(true)
        .try_acquire()
        .unwrap();
    let token = tenure.token();
    tenure.release().unwrap();
    assert!(
        fs::read_to_string(scene.file())
            .unwrap()
            .contains("released_at")
    );
    assert!(matches!(scene.status().state(), tenure::State::Free));
    assert!(scene.take().unwrap().token() > token);
}

#[test]
fn a_nonsense_token_leaves_room_to_rise() {
    let scene = Scene::new();
    fs::write(
        scene.file(),
        format!("{{\"pid\":77,\"token\":{}}}", u64::MAX),
    )
    .unwrap();
    let first = scene
        .store
        .claim(&scene.key)
        .keep_file(true)
        .try_acquire()
        .unwrap()
        .token();
    let second = scene.take().unwrap().token();
    assert!(second > first && first < u64::MAX / 2);
}

//! T8: `stop` hits only the owner.

#[cfg(unix)]
use std::time::Duration;

use tenure::{Key, Stopped};

use crate::Scene;

#[cfg(unix)]
#[test]
fn the_owner_is_asked_to_end_and_the_key_is_free() {
    let scene = Scene::new();
    let mut owner = scene.owner();
    let stopped = scene.store.stop(&scene.key).run().unwrap();
    assert!(matches!(stopped, Stopped::Ended { pid, killed: false } if pid == owner.pid()));
    assert!(!owner.ended_well(), "ended by the signal");
    assert!(!scene.file().exists());
}

#[cfg(windows)]
#[test]
fn an_owner_that_waits_for_the_event_ends_and_another_is_refused_unless_forced() {
    let scene = Scene::new();
    let mut owner = scene.owner();
    assert_eq!(owner.tell("stop-request"), "waiting");
    let stopped = scene.store.stop(&scene.key).run().unwrap();
    assert!(matches!(stopped, Stopped::Ended { killed: false, .. }));
    assert_eq!(owner.answer(), "asked");
    assert!(owner.ended_well());

    let owner = scene.owner();
    let error = scene.store.stop(&scene.key).run().unwrap_err();
    assert!(
        error.is_stop_refused() && error.to_string().contains("force"),
        "{error}"
    );
    assert!(tenure::process::is_running(owner.pid()));
    scene.store.stop(&scene.key).force(true).run().unwrap();
    drop(scene.take().unwrap());
}

#[test]
fn nobody_to_stop_is_no_error_and_a_stale_file_is_cleaned() {
    let scene = Scene::new();
    let stop = || scene.store.stop(&scene.key).run().unwrap();
    assert!(matches!(stop(), Stopped::NotRunning));
    scene.owner().kill();
    assert!(matches!(stop(), Stopped::Cleaned { record: Some(_) }));
    assert!(!scene.file().exists());
    for remnant in ["", "{\"pid\":12,\"started_at\":\"2026-01"] {
        std::fs::write(scene.file(), remnant).unwrap();
        assert!(
            matches!(stop(), Stopped::Cleaned { record: None }),
            "{remnant}"
        );
    }
    assert!(matches!(stop(), Stopped::NotRunning));
}

#[test]
fn a_file_that_no_owner_wrote_is_left_alone() {
    let scene = Scene::new();
    for text in ["my thesis", "[1,2,3]", "{\"name\":\"settings\"}"] {
        std::fs::write(scene.file(), text).unwrap();
        let stopped = scene.store.stop(&scene.key).force(true).run().unwrap();
        assert!(matches!(stopped, Stopped::LeftAlone { .. }), "{text}");
        assert_eq!(std::fs::read_to_string(scene.file()).unwrap(), text);
    }
}

/// The owner lets go when asked, but lives on, and somebody else takes over at once.
#[cfg(unix)]
#[test]
fn an_owner_that_let_go_is_not_killed_and_neither_is_its_successor() {
    let scene = Scene::new();
    let mut owner = scene.owner();
    assert_eq!(owner.tell("ignore-term"), "ignored");
    let stop = scene.store.stop(&scene.key).force(true);
    let stop = stop.timeout(Duration::from_secs(5));
    let stopping = std::thread::spawn(move || stop.run());
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(owner.tell("release"), "released");
    let mut successor = scene.owner();
    let stopped = stopping.join().unwrap().unwrap();
    assert!(matches!(stopped, Stopped::Ended { pid, killed: false } if pid == owner.pid()));
    assert_eq!(owner.tell("lost"), "true", "it lives, without the key");
    assert_eq!(successor.tell("lost"), "false", "it lives and has the key");
}

#[test]
fn a_live_stranger_with_the_recorded_pid_is_left_alone() {
    let scene = Scene::new();
    let elsewhere = Scene::new();
    // The stranger is a live process of the same program; it owns another key.
    let mut stranger = elsewhere.owner();
    let text = format!(
        "{{\"pid\":{},\"started_at\":\"2026-01-30T12:00:00Z\"}}",
        stranger.pid()
    );
    std::fs::write(scene.file(), text).unwrap();
    let stopped = scene.store.stop(&scene.key).force(true).run().unwrap();
    assert!(matches!(stopped, Stopped::Cleaned { record: Some(_) }));
    assert_eq!(
        stranger.tell("lost"),
        "false",
        "it lives and holds what it held"
    );
}

/// Somebody holds the lock, and the record names somebody else.
#[cfg(unix)]
#[test]
fn a_stranger_named_by_a_held_lock_is_left_alone() {
    let scene = Scene::new();
    let elsewhere = Scene::new();
    let mut stranger = elsewhere.owner();
    let file = std::fs::File::create(scene.file()).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    let text = format!(
        "{{\"pid\":{},\"started_at\":\"2026-01-30T12:00:00Z\"}}",
        stranger.pid()
    );
    std::fs::write(scene.file(), text).unwrap();
    let error = scene.store.stop(&scene.key).force(true).run().unwrap_err();
    assert!(error.is_stop_refused(), "{error}");
    assert!(
        error
            .to_string()
            .contains(&format!("not by pid {}", stranger.pid())),
        "{error}"
    );
    assert_eq!(stranger.tell("lost"), "false");
}

#[cfg(unix)]
#[test]
fn an_owner_that_is_suspended_is_reported_and_can_be_killed() {
    let scene = Scene::new();
    let owner = scene.owner();
    let pid = rustix::process::Pid::from_raw(i32::try_from(owner.pid()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    tenure_tests::eventually("it is stopped", || {
        scene.status().holder().unwrap().is_suspended()
    });
    let stop = scene
        .store
        .stop(&scene.key)
        .timeout(Duration::from_millis(200));
    let error = stop.clone().run().unwrap_err();
    assert!(
        error.is_timeout() && error.to_string().contains("suspended"),
        "{error}"
    );
    let stopped = stop.force(true).run().unwrap();
    assert!(matches!(stopped, Stopped::Ended { killed: true, .. }));
    drop(scene.take().unwrap());
}

#[cfg(target_os = "linux")]
#[test]
fn an_owner_that_lost_its_file_can_still_be_stopped() {
    let scene = Scene::new();
    let owner = scene.owner();
    std::fs::remove_file(scene.file()).unwrap();
    let stopped = scene.store.stop(&scene.key).run().unwrap();
    assert!(matches!(stopped, Stopped::Ended { pid, .. } if pid == owner.pid()));
}

#[test]
fn a_key_held_by_this_very_process_is_not_confused_with_another() {
    let scene = Scene::new();
    let _mine = scene.take().unwrap();
    let other = Key::name("other").unwrap();
    assert!(matches!(
        scene.store.stop(&other).run().unwrap(),
        Stopped::NotRunning
    ));
}

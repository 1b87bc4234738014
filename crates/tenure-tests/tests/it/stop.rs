//! T8: `stop` signals only the owner.

#[cfg(unix)]
use std::time::Duration;

use tenure::{Key, Stopped};

use crate::Fixture;

#[cfg(unix)]
#[test]
fn stop_terminates_the_owner_and_frees_the_key() {
    let fixture = Fixture::new();
    let mut owner = fixture.owner();
    let stopped = fixture.store.stop(&fixture.key).run().unwrap();
    assert!(matches!(stopped, Stopped::Ended { pid, killed: false } if pid == owner.pid()));
    assert!(
        !owner.wait_for_success(),
        "the owner exited by itself instead of by the signal"
    );
    assert!(!fixture.file().exists());
}

#[cfg(windows)]
#[test]
fn stop_event_ends_an_owner_that_waits_for_it_and_others_need_force() {
    let fixture = Fixture::new();
    let mut owner = fixture.owner();
    assert_eq!(owner.request("stop-request"), "waiting");
    let stopped = fixture.store.stop(&fixture.key).run().unwrap();
    assert!(matches!(stopped, Stopped::Ended { killed: false, .. }));
    assert_eq!(owner.answer(), "asked");
    assert!(owner.wait_for_success());

    let owner = fixture.owner();
    let error = fixture.store.stop(&fixture.key).run().unwrap_err();
    assert!(
        error.is_stop_refused() && error.is_force_required(),
        "{error}"
    );
    assert!(tenure::process::is_running(owner.pid()));
    fixture.store.stop(&fixture.key).force(true).run().unwrap();
    drop(fixture.try_acquire().unwrap());
}

#[test]
fn stop_of_a_free_key_succeeds_and_removes_a_stale_file() {
    let fixture = Fixture::new();
    let stop = || fixture.store.stop(&fixture.key).run().unwrap();
    assert!(matches!(stop(), Stopped::NotRunning));
    fixture.owner().kill();
    assert!(matches!(stop(), Stopped::Cleaned { record: Some(_) }));
    assert!(!fixture.file().exists());
    for remnant in ["", "{\"pid\":12,\"started_at\":\"2026-01"] {
        std::fs::write(fixture.file(), remnant).unwrap();
        assert!(
            matches!(stop(), Stopped::Cleaned { record: None }),
            "{remnant}"
        );
    }
    assert!(matches!(stop(), Stopped::NotRunning));
}

#[test]
fn stop_keeps_a_file_that_is_not_a_lock_record() {
    let fixture = Fixture::new();
    for text in ["my thesis", "[1,2,3]", "{\"name\":\"settings\"}"] {
        std::fs::write(fixture.file(), text).unwrap();
        let stopped = fixture.store.stop(&fixture.key).force(true).run().unwrap();
        assert!(matches!(stopped, Stopped::LeftAlone { .. }), "{text}");
        assert_eq!(std::fs::read_to_string(fixture.file()).unwrap(), text);
    }
}

/// The owner releases the key when asked but keeps running, and another process acquires the key at
/// once. `stop --force` must kill neither.
#[cfg(unix)]
#[test]
fn stop_kills_neither_an_owner_that_released_the_key_nor_its_successor() {
    let fixture = Fixture::new();
    let mut owner = fixture.owner();
    assert_eq!(owner.request("ignore-term"), "ignored");
    let stop = fixture.store.stop(&fixture.key).force(true);
    let stop = stop.timeout(Duration::from_secs(5));
    let stopping = std::thread::spawn(move || stop.run());
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(owner.request("release"), "released");
    let mut successor = fixture.owner();
    let stopped = stopping.join().unwrap().unwrap();
    assert!(matches!(stopped, Stopped::Ended { pid, killed: false } if pid == owner.pid()));
    assert_eq!(
        owner.request("lost"),
        "true",
        "the former owner is running without the key"
    );
    assert_eq!(
        successor.request("lost"),
        "false",
        "the successor is running and has the key"
    );
}

#[test]
fn stop_does_not_signal_an_unrelated_process_named_by_a_stale_file() {
    let fixture = Fixture::new();
    let elsewhere = Fixture::new();
    // The process that the stale file names runs the same program, but owns another key.
    let mut unrelated = elsewhere.owner();
    let text = format!(
        "{{\"pid\":{},\"started_at\":\"2026-01-30T12:00:00Z\"}}",
        unrelated.pid()
    );
    std::fs::write(fixture.file(), text).unwrap();
    let stopped = fixture.store.stop(&fixture.key).force(true).run().unwrap();
    assert!(matches!(stopped, Stopped::Cleaned { record: Some(_) }));
    assert_eq!(
        unrelated.request("lost"),
        "false",
        "the unrelated process has lost its key"
    );
}

/// One process holds the lock, and the lock record names another one, which must not be signalled.
#[cfg(unix)]
#[test]
fn stop_does_not_signal_an_unrelated_process_named_by_a_held_file() {
    let fixture = Fixture::new();
    let elsewhere = Fixture::new();
    let mut unrelated = elsewhere.owner();
    let file = std::fs::File::create(fixture.file()).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    let text = format!(
        "{{\"pid\":{},\"started_at\":\"2026-01-30T12:00:00Z\"}}",
        unrelated.pid()
    );
    std::fs::write(fixture.file(), text).unwrap();
    let error = fixture
        .store
        .stop(&fixture.key)
        .force(true)
        .run()
        .unwrap_err();
    assert!(error.is_stop_refused(), "{error}");
    assert!(
        error.to_string().contains(&format!(
            "process {}, which the lock record names, could not be proven",
            unrelated.pid()
        )),
        "{error}"
    );
    assert_eq!(unrelated.request("lost"), "false");
}

#[cfg(unix)]
#[test]
fn stop_reports_a_suspended_owner_and_force_kills_it() {
    let fixture = Fixture::new();
    let owner = fixture.owner();
    let pid = rustix::process::Pid::from_raw(i32::try_from(owner.pid()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    tenure_tests::eventually("the owner is stopped", || {
        fixture.status().holder().unwrap().is_suspended()
    });
    let stop = fixture
        .store
        .stop(&fixture.key)
        .timeout(Duration::from_millis(200));
    let error = stop.clone().run().unwrap_err();
    assert!(
        error.is_timeout() && error.to_string().contains("suspended"),
        "{error}"
    );
    let stopped = stop.force(true).run().unwrap();
    assert!(matches!(stopped, Stopped::Ended { killed: true, .. }));
    drop(fixture.try_acquire().unwrap());
}

#[cfg(target_os = "linux")]
#[test]
fn owner_without_its_lock_file_can_be_stopped() {
    let fixture = Fixture::new();
    let owner = fixture.owner();
    std::fs::remove_file(fixture.file()).unwrap();
    let stopped = fixture.store.stop(&fixture.key).run().unwrap();
    assert!(matches!(stopped, Stopped::Ended { pid, .. } if pid == owner.pid()));
}

#[test]
fn stop_refuses_to_signal_the_calling_process() {
    let fixture = Fixture::new();
    let _mine = fixture.try_acquire().unwrap();
    let other = Key::name("other").unwrap();
    assert!(matches!(
        fixture.store.stop(&other).run().unwrap(),
        Stopped::NotRunning
    ));
}

//! T2: instant recovery. T6: files after a release and after a crash.

use std::process::Command;

use tenure::State;
use tenure_tests::Owner;

use crate::{Fixture, OWNER};

#[test]
fn next_attempt_succeeds_at_once_after_the_owner_is_killed() {
    let fixture = Fixture::new();
    for _ in 0..20 {
        let mut owner = fixture.owner();
        assert!(fixture.try_acquire().unwrap_err().is_held());
        owner.kill();
        assert!(matches!(fixture.status().state(), State::Stale(_)));
        drop(fixture.try_acquire().expect("the key is free at once"));
    }
}

#[test]
fn release_removes_the_file_and_a_crash_leaves_it() {
    let fixture = Fixture::new();
    let mut owner = fixture.owner();
    assert!(fixture.file().exists());
    assert_eq!(owner.request("release"), "released");
    assert!(!fixture.file().exists());

    let mut owner = fixture.owner();
    owner.kill();
    assert!(fixture.file().exists());
    drop(fixture.try_acquire().unwrap());
    assert!(!fixture.file().exists());
}

#[test]
fn waiting_process_acquires_the_key_when_the_owner_is_killed() {
    let fixture = Fixture::new();
    let mut owner = fixture.owner();
    let mut command = Command::new(OWNER);
    command.arg("--wait");
    let mut waiter = Owner::start(command, fixture.dir(), "k");
    assert_eq!(waiter.answer(), format!("waits {}", owner.pid()));
    owner.kill();
    assert!(
        waiter
            .answer()
            .starts_with(&format!("held {}", waiter.pid()))
    );
}

#[test]
fn takeover_is_logged_with_the_previous_lock_record() {
    let fixture = Fixture::new();
    let mut owner = fixture.owner();
    let pid = owner.pid();
    owner.kill();
    let (tenure, text) = crate::guard::logged(|| fixture.try_acquire().unwrap());
    assert!(text.contains("WARN taking over"), "{text}");
    assert!(text.contains(&format!("pid={pid}")), "{text}");
    assert!(text.contains("DEBUG acquired"), "{text}");
    let (released, text) = crate::guard::logged(|| tenure.release());
    released.unwrap();
    assert!(text.contains("DEBUG released"), "{text}");
}

/// The lock record is this process's own, so no other owner has crashed.
#[test]
fn takeover_of_the_own_lock_record_logs_no_warning() {
    let fixture = Fixture::new();
    for round in 0..3 {
        let (tenure, text) = crate::guard::logged(|| fixture.try_acquire().unwrap());
        assert!(!text.contains("WARN"), "round {round}: {text}");
        tenure.leave().unwrap();
        assert!(fixture.file().exists(), "round {round}");
    }
}

/// Lock files of an earlier build, which neither padded lock records nor marked those that it
/// removed. This build must be able to read them and to take over from their owners.
const PREVIOUS_BUILD: [&str; 2] = [
    concat!(
        r#"{"pid":13208,"started_at":"2026-11-17T04:41:41.686Z","key":"k","host":"vm","user":"root","progr"#,
        r#"am":"tenure","verb":"run","stop":"tenure stop k","process":{"start":539648,"boot":"bc82c55e-7d6a-4233-8eb9-257b5c0a3664","pid_ns":4026531836},"command":{"pid":13213,"#,
        r#""program":"sleep","process":{"start":539662,"boot":"bc82c55e-7d6a-4233-8eb9-257b5c0a3664","pid_ns":4026531836}},"token":9794890501686445,"version":1,"crc32":"51e270bd"}"#,
        "\n"
    ),
    concat!(
        r#"{"pid":13208,"started_at":"2026-11-17T04:41:41.686Z","key":"k","host":"vm","user":"root","progr"#,
        r#"am":"tenure","verb":"run","stop":"tenure stop k","process":{"start":539648,"boot":"bc82c55e-7d6a-4233-8eb9-257b5c0a3664","pid_ns":4026531836},"command":{"pid":13213,"#,
        r#""program":"sleep","process":{"start":539662,"boot":"bc82c55e-7d6a-4233-8eb9-257b5c0a3664","pid_ns":4026531836}},"token":9794890501686445,"version":1,"released_at":"2026-11-17T04:42:00Z","crc32":"f79c491e"}"#,
        "\n"
    ),
];

#[test]
fn lock_files_of_an_earlier_build_are_taken_over() {
    let [crashed, released] = PREVIOUS_BUILD;
    for (text, is_stale) in [(crashed, true), (released, false)] {
        for keep in [false, true] {
            let fixture = Fixture::new();
            std::fs::write(fixture.file(), text).unwrap();
            match fixture.status().state() {
                State::Stale(record) => {
                    assert!(is_stale);
                    assert_eq!((record.pid(), record.verb()), (13208, Some("run")));
                    assert_eq!(record.command_program(), Some("sleep"));
                }
                State::Free => assert!(!is_stale),
                other => panic!("{other:?}"),
            }
            let claim = fixture.store.claim(&fixture.key).keep_file(keep);
            let (tenure, log) = crate::guard::logged(|| claim.try_acquire().unwrap());
            assert_eq!(log.contains("WARN taking over"), is_stale, "{log}");
            assert!(
                tenure.token() > 9_794_890_501_686_445,
                "the token increases"
            );
        }
    }
}

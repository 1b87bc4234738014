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

/// Issue 14, item 12o: no other owner is gone.
#[test]
fn record_that_this_process_left_is_not_taken_over_with_a_warning() {
    let scene = Scene::new();
    for round in 0..3 {
        let (tenure, text) = crate::guard::logged(|| scene.take().unwrap());
        assert!(!text.contains("WARN"), "round {round}: {text}");
        tenure.leave().unwrap();
        assert!(scene.file().exists(), "round {round}");
    }
}

/// Lock files of build 6ef6b32, which neither padded records nor marked those that it removed.
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
fn files_of_the_previous_build_are_read_and_taken_over() {
    let [crashed, released] = PREVIOUS_BUILD;
    for (text, is_stale) in [(crashed, true), (released, false)] {
        for keep in [false, true] {
            let scene = Scene::new();
            std::fs::write(scene.file(), text).unwrap();
            match scene.status().state() {
                State::Stale(record) => {
                    assert!(is_stale);
                    assert_eq!((record.pid(), record.verb()), (13208, Some("run")));
                    assert_eq!(record.command_program(), Some("sleep"));
                }
                State::Free => assert!(!is_stale),
                other => panic!("{other:?}"),
            }
            let claim = scene.store.claim(&scene.key).keep_file(keep);
            let (tenure, log) = crate::guard::logged(|| claim.try_acquire().unwrap());
            assert_eq!(log.contains("WARN taking over"), is_stale, "{log}");
            assert!(tenure.token() > 9_794_890_501_686_445, "the token rises");
        }
    }
}

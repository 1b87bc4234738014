//! T1: never two owners. The full length runs are in scripts/prove-tenure.

use std::path::PathBuf;
use std::time::Duration;

use tenure_tests::boot::Boot;
use tenure_tests::contenders::Contender;
use tenure_tests::storm::Storm;

fn torture() -> PathBuf {
    env!("CARGO_BIN_EXE_torture").into()
}

fn storm(contender: Contender, apart: bool) -> tenure_tests::storm::Damage {
    Storm {
        program: torture(),
        contender,
        workers: 8,
        length: Duration::from_secs(4),
        kill_every: Duration::from_millis(60),
        apart,
    }
    .run()
}

#[test]
fn a_storm_of_kill_nine_never_lets_two_in_and_never_gets_stuck() {
    let damage = storm(Contender::Tenure, false);
    assert!(damage.acquired > 100 && damage.killed > 10, "{damage:?}");
    assert_eq!(
        (damage.doubles, damage.stuck, damage.errors),
        (0, 0, 0),
        "{damage:?}"
    );
    // Nobody but the owners touches the files. One that is held up between removing its file and
    // letting go looks for that moment as if it had lost it; that is rare.
    assert_eq!(damage.lost, 0, "{damage:?}");
    assert!(damage.said_lost * 100 < damage.acquired, "{damage:?}");
}

/// As between containers that share a directory but no network: the file lock alone decides.
#[test]
fn without_a_second_guard_a_storm_still_never_lets_two_in() {
    if !crate::root("a network namespace") {
        return;
    }
    let damage = storm(Contender::Tenure, true);
    assert!(damage.acquired > 100 && damage.killed > 10, "{damage:?}");
    assert_eq!(
        (damage.doubles, damage.stuck, damage.errors),
        (0, 0, 0),
        "{damage:?}"
    );
    // Nobody but the owners touches the files. One that is held up between removing its file and
    // letting go looks for that moment as if it had lost it; that is rare.
    assert_eq!(damage.lost, 0, "{damage:?}");
    assert!(damage.said_lost * 100 < damage.acquired, "{damage:?}");
}

#[test]
fn the_same_storm_finds_two_owners_where_the_pid_decides() {
    let damage = storm(Contender::PidFile, false);
    assert!(damage.doubles > 0, "{damage:?}");
}

#[test]
fn starters_over_a_stale_lock_find_one_owner_and_all_others_are_told_who() {
    let damage = Boot {
        program: torture(),
        contender: Contender::Tenure,
        starters: 8,
        rounds: 40,
    }
    .run();
    assert_eq!(
        (damage.doubles, damage.none, damage.errors),
        (0, 0, 0),
        "{damage:?}"
    );
    assert_eq!(damage.wrong, 0, "{damage:?}");
    assert!(damage.named > damage.unknown, "{damage:?}");
}

#[test]
fn the_same_start_finds_two_owners_where_the_pid_decides() {
    let damage = Boot {
        program: torture(),
        contender: Contender::PidFile,
        starters: 8,
        rounds: 60,
    }
    .run();
    assert!(damage.doubles > 0, "{damage:?}");
}

/// The file that it created is locked, removed and replaced by others before it can lock it.
#[cfg(target_os = "linux")]
#[test]
fn a_starter_that_stalls_before_locking_does_no_harm_to_the_owner() {
    let scene = crate::Scene::new();
    let mut slow = std::process::Command::new("strace");
    slow.args(["--quiet=all", "--output=/dev/null", "--trace=flock"])
        .args(["--inject=flock:delay_enter=1s", crate::OWNER]);
    let mut slow = tenure_tests::Owner::start(slow, scene.dir(), "k");
    tenure_tests::eventually("it has created the file", || scene.file().exists());
    drop(scene.take().expect("nobody has the lock"));
    let tenure = scene.take().unwrap();
    let answer = slow.answer();
    let told = format!("refused {} ", std::process::id());
    assert!(answer.starts_with(&told), "{answer}");
    assert!(!answer.contains("deleted"), "{answer}");
    assert!(!tenure.lost(), "its file was removed");
}

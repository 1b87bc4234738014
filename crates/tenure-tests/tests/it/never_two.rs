//! T1: never two owners. scripts/prove-tenure has the full-length runs.

use std::path::PathBuf;
use std::time::Duration;

use tenure_tests::boot::BootRace;
use tenure_tests::contenders::Contender;
use tenure_tests::storm::Storm;

fn torture() -> PathBuf {
    env!("CARGO_BIN_EXE_torture").into()
}

/// Network namespaces of the processes of a storm.
#[derive(Clone, Copy, PartialEq)]
enum Namespaces {
    Shared,
    Separate,
}

fn storm(contender: Contender, namespaces: Namespaces) -> tenure_tests::storm::StormReport {
    Storm {
        program: torture(),
        contender,
        workers: 8,
        length: Duration::from_secs(4),
        kill_every: Duration::from_millis(60),
        separate_networks: namespaces == Namespaces::Separate,
    }
    .run()
}

fn assert_storm_has_one_owner_at_a_time(namespaces: Namespaces) {
    let report = storm(Contender::Tenure, namespaces);
    assert!(report.acquired > 100 && report.killed > 10, "{report:?}");
    assert_eq!(
        (report.doubles, report.stuck, report.errors),
        (0, 0, 0),
        "{report:?}"
    );
    // Only owners remove lock files here, so no owner may find its own file lost. An owner that is
    // delayed between removing its file and releasing the lock looks to other processes as if it
    // had lost the file. Such reports must be rare: fewer than one per hundred acquisitions.
    assert_eq!(report.lost, 0, "{report:?}");
    assert!(report.reported_lost * 100 < report.acquired, "{report:?}");
}

#[test]
fn kill_storm_never_yields_two_owners_and_never_gets_stuck() {
    assert_storm_has_one_owner_at_a_time(Namespaces::Shared);
}

/// Containers that share a directory but no network have no common deletion guard: only the file
/// lock excludes a second owner.
#[test]
fn kill_storm_without_a_deletion_guard_never_yields_two_owners() {
    if crate::root("a network namespace") {
        assert_storm_has_one_owner_at_a_time(Namespaces::Separate);
    }
}

#[test]
fn kill_storm_yields_two_owners_with_a_pid_file() {
    let report = storm(Contender::PidFile, Namespaces::Shared);
    assert!(report.doubles > 0, "{report:?}");
}

#[test]
fn race_over_a_stale_lock_yields_one_owner_and_refusals_name_it() {
    let report = BootRace {
        program: torture(),
        contender: Contender::Tenure,
        starters: 8,
        rounds: 40,
    }
    .run();
    assert_eq!(
        (report.doubles, report.none, report.errors),
        (0, 0, 0),
        "{report:?}"
    );
    assert_eq!(report.wrong, 0, "{report:?}");
    assert!(report.named > report.unknown, "{report:?}");
}

#[test]
fn race_over_a_stale_lock_yields_two_owners_with_a_pid_file() {
    let report = BootRace {
        program: torture(),
        contender: Contender::PidFile,
        starters: 8,
        rounds: 60,
    }
    .run();
    assert!(report.doubles > 0, "{report:?}");
}

/// The file that the starter created is locked, removed and replaced by other processes before the
/// starter locks it. The starter must not remove the new file.
#[cfg(target_os = "linux")]
#[test]
fn starter_delayed_before_locking_does_not_remove_the_owners_file() {
    let fixture = crate::Fixture::new();
    let mut slow = std::process::Command::new("strace");
    slow.args(["--quiet=all", "--output=/dev/null", "--trace=flock"])
        .args(["--inject=flock:delay_enter=1s", crate::OWNER]);
    let mut slow = tenure_tests::Owner::start(slow, fixture.dir(), "k");
    tenure_tests::eventually("the starter has created the file", || {
        fixture.file().exists()
    });
    drop(fixture.try_acquire().expect("no process has the lock"));
    let tenure = fixture.try_acquire().unwrap();
    let answer = slow.answer();
    let refusal = format!("refused {} ", std::process::id());
    assert!(answer.starts_with(&refusal), "{answer}");
    assert!(!answer.contains("deleted"), "{answer}");
    assert!(!tenure.lost(), "the owner's file was removed");
}

//! Somebody else has the key: `run` refuses, says who, and starts nothing.

use crate::process::{Process, until};
use crate::support::{Owner, Place, exit_with, sleeper, sleeper_with};

// T1: the second one does not run; Command: 75 by default.
#[test]
fn a_second_run_is_refused_with_75_and_starts_nothing() {
    let here = Place::new();
    let _owner = here.hold("x");
    let refused = here.tenure("run x --").args(exit_with(0)).finish();
    assert_eq!(refused.code, Some(75), "{refused:?}");
    assert!(refused.stdout.is_empty(), "{refused:?}");
}

// T5: who, since when, how to stop it.
#[test]
fn the_refusal_names_the_owner_the_time_and_the_way_to_stop_it() {
    let here = Place::new();
    let owner = here.hold("x");
    let since = here.record("x").unwrap()["started_at"].clone();
    let refused = here.tenure("run x --").args(exit_with(0)).finish();
    let program = sleeper()[0];
    for part in [
        format!("x is held by pid {}", owner.process.id()),
        "tenure run".to_owned(),
        format!("running {program}, pid {}", owner.command),
        format!("since {}", since.as_str().unwrap()),
        "hint: ".to_owned(),
        "tenure stop x`".to_owned(),
        "`--wait`".to_owned(),
    ] {
        assert!(refused.stderr.contains(&part), "{part:?} in {refused:?}");
    }
}

// T5: the hint can be typed as it stands.
#[test]
fn the_hint_for_a_port_and_for_a_file_is_a_command_that_works() {
    let here = Place::new();
    let file = here.path("it is mine.lock");
    let by_file = here.tenure("run --file").arg(&file).arg("--");
    let _first = Owner::found(by_file.args(sleeper()).start(), &file);
    let by_port = here.tenure("run --port 81 --").args(sleeper());
    let _second = Owner::found(by_port.start(), &here.locks().join("port_81.lock"));

    let refused = here.tenure("run --port 81 --").args(exit_with(0)).finish();
    assert!(
        refused.stderr.contains("tenure stop --port 81`"),
        "{refused:?}"
    );
    let refused = here.tenure("run --file").arg(&file).arg("--");
    let refused = refused.args(exit_with(0)).finish();
    // As the system's own shell wants it.
    let quote = if cfg!(windows) { '"' } else { '\'' };
    let quoted = format!("tenure stop --file {quote}{}{quote}`", file.display());
    assert!(refused.stderr.contains(&quoted), "{refused:?}");
}

// T5: nor does it depend on where one stands.
#[test]
fn the_hint_for_a_relative_path_works_from_elsewhere() {
    let here = Place::new();
    let file = here.path("my.lock");
    let mut launch = here.tenure("run --file my.lock --").args(sleeper());
    launch.command.current_dir(here.path(""));
    let _owner = Owner::found(launch.start(), &file);
    let launch = here.tenure("run --file").arg(&file).arg("--");
    let refused = launch.args(exit_with(0)).finish();
    assert_eq!(refused.code, Some(75), "{refused:?}");
    let (_, hint) = refused.stderr.split_once("tenure stop --file ").unwrap();
    let path = file.display().to_string();
    assert!(hint.contains(&path), "{path:?} in {refused:?}");
}

// T1: however many start in the same moment.
#[test]
fn of_many_that_start_at_once_over_a_stale_file_one_gets_in() {
    const CROWD: usize = 8;
    let here = Place::new();
    here.leave_lock_file("x", r#"{"pid":2147483647}"#);
    let start = |_| here.tenure("run x --").args(sleeper()).start();
    let mut crowd: Vec<Process> = (0..CROWD).map(start).collect();
    let running = |crowd: &mut [Process]| {
        let states = crowd.iter_mut().map(Process::is_running);
        states.filter(|runs| *runs).count()
    };
    until("all but one have ended", || running(&mut crowd) == 1);
    for one in &mut crowd {
        if !one.is_running() {
            let outcome = one.wait();
            assert_eq!(outcome.code, Some(75), "{outcome:?}");
        }
    }
}

// Command: `-E` changes the code.
#[test]
fn the_code_for_a_held_key_can_be_chosen() {
    let here = Place::new();
    let _owner = here.hold("x");
    for (option, code) in [("-E 0", 0), ("-E 9", 9), ("--conflict-exit-code 255", 255)] {
        let line = format!("run {option} x --");
        let refused = here.tenure(&line).args(exit_with(3)).finish();
        assert_eq!(refused.code, Some(code), "{option}: {refused:?}");
        assert!(refused.stderr.contains("is held by"), "{refused:?}");
    }
}

// Command: `--quiet` leaves it to the code.
#[test]
fn a_quiet_refusal_says_nothing() {
    let here = Place::new();
    let _owner = here.hold("x");
    let refused = here.tenure("run --quiet x --").args(exit_with(0)).finish();
    assert_eq!(refused.code, Some(75));
    assert_eq!((refused.text(), refused.stderr), Default::default());
}

// T5, File store: never the arguments, they may be secret.
#[test]
fn the_arguments_of_the_command_are_written_nowhere() {
    let here = Place::new();
    let secret = "hunter2-of-the-command";
    let launch = here.tenure("run x --").args(sleeper_with(secret));
    let _owner = here.hold_with("x", launch);
    let file = std::fs::read_to_string(here.lock_file("x")).unwrap();
    let table = here.tenure("status").finish();
    let json = here.tenure("status --json x").finish();
    let refused = here.tenure("run x --").args(exit_with(0)).finish();
    for text in [file, table.text(), json.text(), refused.stderr] {
        assert!(text.contains("tenure"), "this says nothing at all: {text}");
        assert!(!text.contains(secret), "{text}");
    }
}

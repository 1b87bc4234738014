//! Another process holds the key: `run` is refused, names the holder, and starts nothing.

use crate::process::{Process, until};
use crate::support::{Owner, Sandbox, exit_with, sleeper, sleeper_with};

// T1
#[test]
fn second_run_is_refused_with_75_and_starts_nothing() {
    let sandbox = Sandbox::new();
    let _owner = sandbox.hold("x");
    let refused = sandbox.tenure("run x --").args(exit_with(0)).finish();
    assert_eq!(refused.code, Some(75), "{refused:?}");
    assert!(refused.stdout.is_empty(), "{refused:?}");
}

// T5
#[test]
fn refusal_names_the_owner_its_start_time_and_the_stop_command() {
    let sandbox = Sandbox::new();
    let owner = sandbox.hold("x");
    let since = sandbox.record("x").unwrap()["started_at"].clone();
    let refused = sandbox.tenure("run x --").args(exit_with(0)).finish();
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

// T5: the command in the hint can be typed as printed.
#[test]
fn hint_for_a_port_or_a_file_is_a_valid_command() {
    let sandbox = Sandbox::new();
    let file = sandbox.path("it is mine.lock");
    let by_file = sandbox.tenure("run --file").arg(&file).arg("--");
    let _first = Owner::wait_for(by_file.args(sleeper()).start(), &file);
    let by_port = sandbox.tenure("run --port 81 --").args(sleeper());
    let _second = Owner::wait_for(by_port.start(), &sandbox.locks().join("port_81.lock"));

    let refused = sandbox
        .tenure("run --port 81 --")
        .args(exit_with(0))
        .finish();
    assert!(
        refused.stderr.contains("tenure stop --port 81`"),
        "{refused:?}"
    );
    let refused = sandbox.tenure("run --file").arg(&file).arg("--");
    let refused = refused.args(exit_with(0)).finish();
    // The hint quotes the path for the shell of the operating system, so the expected quote differs
    // on Windows.
    let quote = if cfg!(windows) { '"' } else { '\'' };
    let quoted = format!("tenure stop --file {quote}{}{quote}`", file.display());
    assert!(refused.stderr.contains(&quoted), "{refused:?}");
}

// T5: the command in the hint does not depend on the working directory.
#[test]
fn hint_for_a_relative_path_names_the_absolute_path() {
    let sandbox = Sandbox::new();
    let file = sandbox.path("my.lock");
    let mut launch = sandbox.tenure("run --file my.lock --").args(sleeper());
    launch.command.current_dir(sandbox.path(""));
    let _owner = Owner::wait_for(launch.start(), &file);
    let launch = sandbox.tenure("run --file").arg(&file).arg("--");
    let refused = launch.args(exit_with(0)).finish();
    assert_eq!(refused.code, Some(75), "{refused:?}");
    let (_, hint) = refused.stderr.split_once("tenure stop --file ").unwrap();
    let path = file.display().to_string();
    assert!(hint.contains(&path), "{path:?} in {refused:?}");
}

// T1: any number of processes may start at the same time.
#[test]
fn stale_file_is_taken_over_by_exactly_one_of_many_processes() {
    const PROCESSES: usize = 8;
    let sandbox = Sandbox::new();
    sandbox.leave_lock_file("x", r#"{"pid":2147483647}"#);
    let start = |_| sandbox.tenure("run x --").args(sleeper()).start();
    let mut processes: Vec<Process> = (0..PROCESSES).map(start).collect();
    let running = |processes: &mut [Process]| {
        let states = processes.iter_mut().map(Process::is_running);
        states.filter(|runs| *runs).count()
    };
    until("all but one process have exited", || {
        running(&mut processes) == 1
    });
    for one in &mut processes {
        if !one.is_running() {
            let outcome = one.wait();
            assert_eq!(outcome.code, Some(75), "{outcome:?}");
        }
    }
}

#[test]
fn conflict_exit_code_option_sets_the_code_for_a_held_key() {
    let sandbox = Sandbox::new();
    let _owner = sandbox.hold("x");
    for (option, code) in [("-E 0", 0), ("-E 9", 9), ("--conflict-exit-code 255", 255)] {
        let line = format!("run {option} x --");
        let refused = sandbox.tenure(&line).args(exit_with(3)).finish();
        assert_eq!(refused.code, Some(code), "{option}: {refused:?}");
        assert!(refused.stderr.contains("is held by"), "{refused:?}");
    }
}

#[test]
fn quiet_refusal_prints_nothing() {
    let sandbox = Sandbox::new();
    let _owner = sandbox.hold("x");
    let refused = sandbox
        .tenure("run --quiet x --")
        .args(exit_with(0))
        .finish();
    assert_eq!(refused.code, Some(75));
    assert_eq!((refused.text(), refused.stderr), Default::default());
}

// T5: arguments may be secret and are stored nowhere.
#[test]
fn command_arguments_are_neither_stored_nor_printed() {
    let sandbox = Sandbox::new();
    let secret = "hunter2-of-the-command";
    let launch = sandbox.tenure("run x --").args(sleeper_with(secret));
    let _owner = sandbox.hold_with("x", launch);
    let file = std::fs::read_to_string(sandbox.lock_file("x")).unwrap();
    let table = sandbox.tenure("status").finish();
    let json = sandbox.tenure("status --json x").finish();
    let refused = sandbox.tenure("run x --").args(exit_with(0)).finish();
    for text in [file, table.text(), json.text(), refused.stderr] {
        assert!(
            text.contains("tenure"),
            "the text does not describe the owner: {text}"
        );
        assert!(!text.contains(secret), "{text}");
    }
}

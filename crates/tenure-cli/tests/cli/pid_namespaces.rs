//! Owners in containers: their numbers mean something else outside.

use crate::process::{Launch, Outcome, Process, eventually, until};
use crate::support::{Owner, Place, TENURE, pid_in, skip};
use crate::unix::{is_alive, is_root};

/// Prepares a program that is process 1 of a PID namespace; `None` if that is not allowed here.
fn inside(here: &Place) -> Option<Launch> {
    let unshare = || {
        let launch = here.program("unshare");
        let launch = launch.words("--pid --fork --mount-proc --kill-child");
        if is_root() {
            launch
        } else {
            launch.words("--user --map-root-user")
        }
    };
    if unshare().arg("true").finish().code == Some(0) {
        Some(unshare())
    } else {
        skip("no PID namespaces can be made here");
        None
    }
}

/// A script inside, with the tool as `$TENURE`.
fn script_inside(here: &Place, script: &str) -> Option<Outcome> {
    let launch = inside(here)?.arg("sh").arg("-c").arg(script);
    Some(launch.env("TENURE", TENURE).finish())
}

/// An owner inside, whose wrapper is process 1 there.
fn hold_inside(here: &Place) -> Option<Owner> {
    let launch = inside(here)?.arg(TENURE);
    let owner = here.hold_with("x", launch.words("run x -- sleep 300"));
    assert_eq!(owner.wrapper, 1, "its own number for itself");
    Some(owner)
}

/// The number that the wrapper has outside: the only child of `unshare`.
fn outer_pid(unshare: &Process) -> u32 {
    let id = unshare.id();
    let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
    let children = children.expect("the children of unshare");
    children.trim().parse().expect("one child")
}

// T1, T5: the same key, whoever counts the processes; named by the number that means it here.
#[test]
fn an_owner_inside_keeps_others_outside_out() {
    let here = Place::new();
    let Some(owner) = hold_inside(&here) else {
        return;
    };
    let refused = here.tenure("run x -- echo in").finish();
    assert_eq!(refused.code, Some(75), "{refused:?}");
    let named = format!("held by pid {} ", outer_pid(&owner.process));
    assert!(refused.stderr.contains(&named), "{named:?} in {refused:?}");
}

// T3, Command: the kernel tells which process it is.
#[test]
fn status_outside_shows_the_outer_pid_of_an_owner_inside() {
    let here = Place::new();
    let Some(owner) = hold_inside(&here) else {
        return;
    };
    let status = here.status("x");
    assert_eq!(status["proof"], "verified", "{status}");
    assert_eq!(status["pid"], outer_pid(&owner.process), "{status}");
    assert_eq!(status["record"]["pid"], 1, "{status}");
}

// T8: proven through its namespace, so it is the right one.
#[test]
fn an_owner_inside_can_be_stopped_from_outside() {
    let here = Place::new();
    let Some(mut owner) = hold_inside(&here) else {
        return;
    };
    let stopped = here.tenure("stop x").finish();
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    until("the owner has ended", || !owner.process.is_running());
    assert!(!here.has_lock_file("x"));
}

// T1, T5: it cannot be seen, and is not guessed.
#[test]
fn an_owner_outside_keeps_others_inside_out() {
    let here = Place::new();
    let owner = here.hold("x");
    let Some(refused) = script_inside(&here, "\"$TENURE\" run x -- echo in") else {
        return;
    };
    assert_eq!(refused.code, Some(75), "{refused:?}");
    assert_eq!(refused.text(), "");
    assert!(refused.stderr.contains("not visible"), "{refused:?}");
    let by_record = format!("by its record pid {}", owner.wrapper);
    assert!(refused.stderr.contains(&by_record), "{refused:?}");
}

// Command: `status` says what it cannot prove.
#[test]
fn status_inside_says_that_an_owner_outside_is_not_visible() {
    let here = Place::new();
    let _owner = here.hold("x");
    let Some(table) = script_inside(&here, "\"$TENURE\" status x") else {
        return;
    };
    assert_eq!(table.code, Some(0), "{table:?}");
    assert!(
        table.text().contains("held (pid not visible here)"),
        "{table:?}"
    );
}

// T8: the number means another process inside.
#[test]
fn an_owner_outside_is_not_stopped_from_inside() {
    let here = Place::new();
    let mut owner = here.hold("x");
    let Some(refused) = script_inside(&here, "\"$TENURE\" stop --force x") else {
        return;
    };
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(
        refused.stderr.contains("stop it where it runs"),
        "{refused:?}"
    );
    assert!(owner.process.is_running() && is_alive(owner.command));
}

// T1, T5: inside, the kernel's table does not name a dead wrapper.
#[test]
fn a_command_inside_whose_wrapper_was_killed_keeps_the_key_and_is_named() {
    let here = Place::new();
    let script = r#"
        "$TENURE" run x -- sleep 300 & wrapper=$!
        until grep -q '"command"' "$TENURE_DIR/name_x.lock" 2>/dev/null; do sleep 0.02; done
        kill -9 $wrapper; wait $wrapper
        "$TENURE" run x -- echo in; echo "code $?"
        "$TENURE" status --json x"#;
    let Some(outcome) = script_inside(&here, script) else {
        return;
    };
    assert!(outcome.text().starts_with("code 75\n"), "{outcome:?}");
    let text = outcome.text();
    let json = text.strip_prefix("code 75\n").unwrap();
    let status: serde_json::Value = serde_json::from_str(json).unwrap();
    let lock = &status["locks"][0];
    assert_eq!(lock["command_only"], true, "{lock}");
    assert_eq!(lock["pid"], lock["record"]["command"]["pid"], "{lock}");
}

// Command: as the first process of a container the wrapper reaps orphans, and still exits as its
// command did.
#[test]
fn a_wrapper_that_is_process_1_reaps_orphans() {
    let here = Place::new();
    let Some(launch) = inside(&here) else {
        return;
    };
    let script = "for i in 1 2 3; do (sh -c 'echo orphan' &) ; done
                  sleep 0.1
                  while grep -q '^State:.Z' /proc/[0-9]*/status; do sleep 0.02; done
                  exit 7";
    let launch = launch.arg(TENURE).words("run x -- sh -c").arg(script);
    let outcome = launch.finish();
    assert_eq!(outcome.code, Some(7), "{outcome:?}");
    assert_eq!(outcome.text(), "orphan\n".repeat(3));
}

// T8: never pid 1, even if it does have the lock.
#[test]
fn process_1_is_never_signalled() {
    let here = Place::new();
    here.leave_lock_file("x", r#"{"pid":1,"started_at":"2026-01-30T12:00:00Z"}"#);
    let script = r#"
        trap 'echo hit' TERM
        exec 9<"$TENURE_DIR/name_x.lock"
        flock 9
        "$TENURE" stop --timeout 0.2 --force x; echo "code $?""#;
    let Some(outcome) = script_inside(&here, script) else {
        return;
    };
    assert_eq!(outcome.text(), "code 1\n", "{outcome:?}");
    assert!(
        outcome.stderr.contains("pid 1 is never signalled"),
        "{outcome:?}"
    );
}

// T8: the number of a dead owner, given to a stranger by the kernel itself.
#[test]
fn a_stranger_that_was_given_the_number_of_a_dead_owner_survives() {
    let here = Place::new();
    let script = r#"
        "$TENURE" run x -- sleep 300 & wrapper=$!
        until grep -q '"command"' "$TENURE_DIR/name_x.lock" 2>/dev/null; do sleep 0.02; done
        command=$(sed 's/.*"command":{"pid":\([0-9]*\).*/\1/' "$TENURE_DIR/name_x.lock")
        kill -9 -1; wait $wrapper
        while grep -q '^State:.[^ZX]' /proc/$command/status 2>/dev/null; do sleep 0.01; done
        echo $((wrapper - 1)) > /proc/sys/kernel/ns_last_pid || exit 8
        sleep 300 & stranger=$!
        [ $stranger = $wrapper ] || exit 9
        "$TENURE" stop --force x; echo "code $?"
        kill -0 $stranger && echo alive"#;
    // Another process inside may take the number first.
    let outcome = eventually("a number is given twice", || {
        match script_inside(&here, script) {
            Some(outcome) if outcome.code == Some(9) => None,
            other => Some(other),
        }
    });
    let Some(outcome) = outcome else {
        return;
    };
    if outcome.code == Some(8) {
        skip("the next process id cannot be chosen here");
        return;
    }
    assert!(outcome.text().contains("left alone"), "{outcome:?}");
    assert!(outcome.text().ends_with("code 0\nalive\n"), "{outcome:?}");
    assert_eq!(pid_in(&here.status("x")["pid"]), None);
}

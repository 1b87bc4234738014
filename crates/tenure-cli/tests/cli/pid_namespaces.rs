//! Owners in other PID namespaces, where pids have another meaning.

use crate::process::{Launch, Outcome, Process, eventually, until};
use crate::support::{Owner, Sandbox, TENURE, pid_in, skip};
use crate::unix::{is_alive, is_root};

/// Prepares a program that is process 1 of a new PID namespace; `None` if that is not allowed here.
fn inside(sandbox: &Sandbox) -> Option<Launch> {
    let unshare = || {
        let launch = sandbox.program("unshare");
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
        skip("PID namespaces cannot be created here");
        None
    }
}

fn script_inside(sandbox: &Sandbox, script: &str) -> Option<Outcome> {
    let launch = inside(sandbox)?.arg("sh").arg("-c").arg(script);
    Some(launch.env("TENURE", TENURE).finish())
}

fn hold_inside(sandbox: &Sandbox) -> Option<Owner> {
    let launch = inside(sandbox)?.arg(TENURE);
    let owner = sandbox.hold_with("x", launch.words("run x -- sleep 300"));
    assert_eq!(
        owner.wrapper, 1,
        "the wrapper is process 1 of its namespace"
    );
    Some(owner)
}

/// Pid of the wrapper outside of the namespace: the only child of `unshare`.
fn outer_pid(unshare: &Process) -> u32 {
    let id = unshare.id();
    let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
    let children = children.expect("the children of unshare");
    children.trim().parse().expect("one child")
}

// T1, T5: the key is the same in both namespaces, and the refusal names the pid that the owner has
// outside.
#[test]
fn owner_inside_a_namespace_refuses_claims_outside() {
    let sandbox = Sandbox::new();
    let Some(owner) = hold_inside(&sandbox) else {
        return;
    };
    let refused = sandbox.tenure("run x -- echo in").finish();
    assert_eq!(refused.code, Some(75), "{refused:?}");
    let named = format!("held by pid {} ", outer_pid(&owner.process));
    assert!(refused.stderr.contains(&named), "{named:?} in {refused:?}");
}

// T3: the lock record has the pid of the inner namespace, so `status` must take the outer pid from
// the kernel.
#[test]
fn status_outside_shows_the_outer_pid_of_an_owner_inside() {
    let sandbox = Sandbox::new();
    let Some(owner) = hold_inside(&sandbox) else {
        return;
    };
    let status = sandbox.status("x");
    assert_eq!(status["proof"], "verified", "{status}");
    assert_eq!(status["pid"], outer_pid(&owner.process), "{status}");
    assert_eq!(status["record"]["pid"], 1, "{status}");
}

// T8: the pid that the owner has in its own namespace matches the lock record, which proves the
// owner.
#[test]
fn stop_outside_ends_an_owner_inside() {
    let sandbox = Sandbox::new();
    let Some(mut owner) = hold_inside(&sandbox) else {
        return;
    };
    let stopped = sandbox.tenure("stop x").finish();
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    until("the owner has exited", || !owner.process.is_running());
    assert!(!sandbox.has_lock_file("x"));
}

// T1, T5: a process in the namespace cannot see the owner, and names no pid instead of guessing
// one.
#[test]
fn owner_outside_refuses_claims_inside_a_namespace() {
    let sandbox = Sandbox::new();
    let owner = sandbox.hold("x");
    let Some(refused) = script_inside(&sandbox, "\"$TENURE\" run x -- echo in") else {
        return;
    };
    assert_eq!(refused.code, Some(75), "{refused:?}");
    assert_eq!(refused.text(), "");
    assert!(refused.stderr.contains("not visible"), "{refused:?}");
    let by_record = format!("unverified pid {} from the lock record", owner.wrapper);
    assert!(refused.stderr.contains(&by_record), "{refused:?}");
}

#[test]
fn status_inside_shows_that_an_owner_outside_is_not_visible() {
    let sandbox = Sandbox::new();
    let _owner = sandbox.hold("x");
    let Some(table) = script_inside(&sandbox, "\"$TENURE\" status x") else {
        return;
    };
    assert_eq!(table.code, Some(0), "{table:?}");
    assert!(
        table.text().contains("held (pid not visible here)"),
        "{table:?}"
    );
}

// T8: inside the namespace, the pid in the lock record belongs to another process, which must not
// be signalled.
#[test]
fn stop_inside_refuses_an_owner_outside() {
    let sandbox = Sandbox::new();
    let mut owner = sandbox.hold("x");
    let Some(refused) = script_inside(&sandbox, "\"$TENURE\" stop --force x") else {
        return;
    };
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(
        refused
            .stderr
            .contains("stop it on its host or in its container"),
        "{refused:?}"
    );
    assert!(owner.process.is_running() && is_alive(owner.command));
}

// T1, T5: in the namespace, the kernel's lock table does not name a wrapper that has exited. The
// command must be recognized as the holder by other means.
#[test]
fn command_inside_keeps_the_key_and_is_named_after_its_wrapper_was_killed() {
    let sandbox = Sandbox::new();
    let script = r#"
        "$TENURE" run x -- sleep 300 & wrapper=$!
        until grep -q '"command"' "$TENURE_DIR/name_x.lock" 2>/dev/null; do sleep 0.02; done
        kill -9 $wrapper; wait $wrapper
        "$TENURE" run x -- echo in; echo "code $?"
        "$TENURE" status --json x"#;
    let Some(outcome) = script_inside(&sandbox, script) else {
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

// As the first process of a container, the wrapper inherits orphans and must reap them.
#[test]
fn wrapper_that_is_process_1_reaps_orphans() {
    let sandbox = Sandbox::new();
    let Some(launch) = inside(&sandbox) else {
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

// T8: pid 1 is not signalled even if it has the lock.
#[test]
fn process_1_is_never_signalled() {
    let sandbox = Sandbox::new();
    sandbox.leave_lock_file("x", r#"{"pid":1,"started_at":"2026-01-30T12:00:00Z"}"#);
    let script = r#"
        trap 'echo hit' TERM
        exec 9<"$TENURE_DIR/name_x.lock"
        flock 9
        "$TENURE" stop --timeout 0.2 --force x; echo "code $?""#;
    let Some(outcome) = script_inside(&sandbox, script) else {
        return;
    };
    assert_eq!(outcome.text(), "code 1\n", "{outcome:?}");
    assert!(
        outcome.stderr.contains("pid 1 is never signalled"),
        "{outcome:?}"
    );
}

// T8: the kernel has given the pid of a dead owner to an unrelated process, which `stop` must not
// signal.
#[test]
fn process_that_reuses_the_pid_of_a_dead_owner_is_not_signalled() {
    let sandbox = Sandbox::new();
    let script = r#"
        "$TENURE" run x -- sleep 300 & wrapper=$!
        until grep -q '"command"' "$TENURE_DIR/name_x.lock" 2>/dev/null; do sleep 0.02; done
        command=$(sed 's/.*"command":{"pid":\([0-9]*\).*/\1/' "$TENURE_DIR/name_x.lock")
        kill -9 -1; wait $wrapper
        while grep -q '^State:.[^ZX]' /proc/$command/status 2>/dev/null; do sleep 0.01; done
        echo $((wrapper - 1)) > /proc/sys/kernel/ns_last_pid || exit 8
        sleep 300 & unrelated=$!
        [ $unrelated = $wrapper ] || exit 9
        "$TENURE" stop --force x; echo "code $?"
        kill -0 $unrelated && echo alive"#;
    // Another process in the namespace may get the pid first, so several attempts are made.
    let outcome = eventually("the pid is reused", || {
        match script_inside(&sandbox, script) {
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
    assert!(outcome.text().contains("was not signalled"), "{outcome:?}");
    assert!(outcome.text().ends_with("code 0\nalive\n"), "{outcome:?}");
    assert_eq!(pid_in(&sandbox.status("x")["pid"]), None);
}

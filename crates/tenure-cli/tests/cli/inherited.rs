//! The command has the lock too: killing the wrapper alone lets nobody in.

#[cfg(target_os = "linux")]
use std::fs;

use crate::process::{Process, until};
use crate::support::{Owner, Place};
use crate::unix::{is_alive, send};

/// An owner whose wrapper was killed; the command lives on.
fn orphaned(here: &Place) -> Owner {
    let mut owner = here.hold("x");
    owner.process.kill();
    owner
}

// T1: the command still runs, so nobody else may.
#[test]
fn killing_the_wrapper_alone_lets_nobody_in() {
    let here = Place::new();
    let owner = orphaned(&here);
    assert!(is_alive(owner.command), "the command went down with it");
    let refused = here.tenure("run x -- echo in").finish();
    assert_eq!(refused.code, Some(75), "{refused:?}");
    assert_eq!(refused.text(), "");
}

// T5: who holds it now is the command.
#[test]
fn the_refusal_names_the_command_that_is_left() {
    let here = Place::new();
    let owner = orphaned(&here);
    let refused = here.tenure("run x -- echo in").finish();
    for part in [
        format!("held by pid {}", owner.command),
        "running sleep".to_owned(),
        format!("its wrapper, pid {}, is gone", owner.wrapper),
    ] {
        assert!(refused.stderr.contains(&part), "{part:?} in {refused:?}");
    }
}

// Command: `status` proves what it says.
#[test]
fn status_says_that_only_the_command_is_left() {
    let here = Place::new();
    let owner = orphaned(&here);
    let status = here.status("x");
    assert_eq!(status["state"], "held");
    assert_eq!(status["proof"], "verified");
    assert_eq!(status["command_only"], true);
    assert_eq!(status["pid"], owner.command);
    let table = here.tenure("status x").finish();
    assert!(table.text().contains("only sleep is left"), "{table:?}");
}

// T2: no timeouts, no hand cleaning.
#[test]
fn the_key_is_free_as_soon_as_the_command_has_ended() {
    let here = Place::new();
    let owner = orphaned(&here);
    send(owner.command, libc::SIGKILL);
    until("the command is gone", || !is_alive(owner.command));
    let next = here.tenure("run x -- echo in").finish();
    assert_eq!(
        (next.code, next.text().as_str()),
        (Some(0), "in\n"),
        "{next:?}"
    );
}

// T6: whoever takes over from a crashed owner says so.
#[test]
fn taking_over_from_a_crashed_owner_is_said() {
    let here = Place::new();
    let mut owner = here.hold("x");
    owner.crash();
    assert!(here.has_lock_file("x"), "a crash leaves the file");
    let next = here.tenure("run x -- true").finish();
    assert_eq!(next.code, Some(0));
    assert!(next.stderr.contains("taking over"), "{next:?}");
    let pid = owner.wrapper.to_string();
    assert!(next.stderr.contains(&pid), "{next:?}");
}

// T8: the command is proven to be the holder, so it may be stopped.
#[test]
fn stop_ends_the_command_that_is_left() {
    let here = Place::new();
    let owner = orphaned(&here);
    let stopped = here.tenure("stop x").finish();
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    let said = format!("x: stopped pid {}", owner.command);
    assert!(stopped.text().contains(&said), "{stopped:?}");
    assert!(!is_alive(owner.command));
    assert!(!here.has_lock_file("x"), "nobody was left to remove it");
}

// T1: the guard that the command inherited holds without the file.
#[cfg(target_os = "linux")]
#[test]
fn not_even_a_deleted_file_lets_anyone_in_while_the_command_lives() {
    let here = Place::new();
    let owner = orphaned(&here);
    fs::remove_file(here.lock_file("x")).unwrap();
    let refused = here.tenure("run x -- echo in").finish();
    assert_eq!(refused.code, Some(75), "{refused:?}");
    let named = format!("held by pid {} ", owner.command);
    assert!(refused.stderr.contains(&named), "{refused:?}");
}

/// A command that left a descendant, with every descriptor it had, and ended.
fn leave_a_descendant(here: &Place) -> (Process, u32) {
    let script = "sleep 300 >/dev/null 2>&1 & echo $!";
    let mut process = here.tenure("run x -- sh -c").arg(script).start();
    let outcome = process.wait();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let descendant = outcome.text().trim().parse().expect("a process id");
    assert!(is_alive(descendant));
    (process, descendant)
}

// Command: the wrapper releases when the command exits, even if a descendant still has the
// descriptor.
#[test]
fn a_descendant_that_lives_on_does_not_keep_the_key() {
    let here = Place::new();
    let (_group, descendant) = leave_a_descendant(&here);
    assert!(!here.has_lock_file("x"));
    let next = here.tenure("run x -- echo in").finish();
    assert_eq!(
        (next.code, next.text().as_str()),
        (Some(0), "in\n"),
        "{next:?}"
    );
    assert!(is_alive(descendant));
}

// T1: such a descendant does not cost the next owner its deletion guard.
#[cfg(target_os = "linux")]
#[test]
fn a_descendant_that_lives_on_does_not_weaken_the_next_owner() {
    let here = Place::new();
    let (_group, _) = leave_a_descendant(&here);
    let owner = here.hold("x");
    let refused = here.tenure("run x -- echo in").finish();
    assert_eq!(refused.code, Some(75), "{refused:?}");
    fs::remove_file(here.lock_file("x")).unwrap();
    let refused = here.tenure("run x -- echo in").finish();
    assert!(is_alive(owner.command));
    assert_eq!(refused.code, Some(75), "a second owner: {refused:?}");
}

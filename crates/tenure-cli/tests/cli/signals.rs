//! Signals sent to the wrapper reach the command, once.

use std::process::Stdio;

use crate::process::{Launch, until};
use crate::support::{Owner, Place, TENURE};
use crate::unix::{ignoring, is_alive, send};

/// Reports each signal that reaches it, and ends with 42 when a line comes in.
const REPORTER: &str = "
    for name in HUP INT QUIT TERM USR1 USR2; do trap \"echo $name\" $name; done
    echo ready
    until read line; do :; done
    exit 42";

fn reporter(here: &Place) -> Launch {
    let launch = here.tenure("run x -- sh -c").arg(REPORTER);
    launch.stdin(Stdio::piped())
}

fn start(here: &Place, launch: Launch) -> Owner {
    let owner = here.hold_with("x", launch);
    owner.process.until_stdout_has("ready\n");
    owner
}

/// Sends a signal to the wrapper and checks that the command got it, once, and ended in peace.
fn reaches_the_command_once(signal: i32, name: &str) {
    let here = Place::new();
    let mut owner = start(&here, reporter(&here));
    send(owner.wrapper, signal);
    owner.process.until_stdout_has(&format!("{name}\n"));
    owner.process.say("go");
    let outcome = owner.process.finish();
    assert_eq!(outcome.text(), format!("ready\n{name}\n"));
    assert_eq!(
        outcome.code,
        Some(42),
        "the wrapper exits as the command did"
    );
    assert!(!here.has_lock_file("x"), "the key was not let go");
}

// Command: signals sent to the wrapper reach the command once.
#[test]
fn a_request_to_terminate_reaches_the_command_once() {
    reaches_the_command_once(libc::SIGTERM, "TERM");
}

// Command
#[test]
fn a_hangup_reaches_the_command_once() {
    reaches_the_command_once(libc::SIGHUP, "HUP");
}

// Command
#[test]
fn a_user_signal_reaches_the_command_once() {
    reaches_the_command_once(libc::SIGUSR1, "USR1");
}

// Command
#[test]
fn an_interrupt_that_was_sent_reaches_the_command_once() {
    reaches_the_command_once(libc::SIGINT, "INT");
}

// Command: the wrapper exits as the command did.
#[test]
fn a_command_that_a_passed_on_signal_ended_is_128_plus_its_number() {
    let here = Place::new();
    let owner = here.hold("x");
    send(owner.wrapper, libc::SIGTERM);
    let outcome = owner.process.finish();
    assert_eq!(outcome.code, Some(128 + libc::SIGTERM), "{outcome:?}");
    assert!(!is_alive(owner.command));
    assert!(!here.has_lock_file("x"));
}

// Command: rarer ones too.
#[cfg(target_os = "linux")]
#[test]
fn signals_of_every_kind_reach_the_command() {
    let here = Place::new();
    for signal in [
        libc::SIGUSR2,
        libc::SIGALRM,
        libc::SIGVTALRM,
        libc::SIGPROF,
        libc::SIGIO,
        libc::SIGPWR,
        libc::SIGRTMIN(),
        libc::SIGRTMAX(),
    ] {
        let owner = here.hold("x");
        send(owner.wrapper, signal);
        let outcome = owner.process.finish();
        assert_eq!(outcome.code, Some(128 + signal), "{outcome:?}");
        assert!(!here.has_lock_file("x"), "signal {signal}");
    }
}

// Command: what arrives while the command is being started is kept for it. Whatever the moment,
// the wrapper ends soon, and the key is free.
#[test]
fn a_signal_in_the_first_instants_is_not_lost() {
    let here = Place::new();
    for turn in 0..40 {
        let process = here.tenure("run x -- sleep 300").start();
        until("the key is taken", || here.has_lock_file("x"));
        for _ in 0..turn * 50 {
            std::hint::spin_loop();
        }
        send(process.id(), libc::SIGTERM);
        process.finish();
        let next = here.tenure("run --quiet x -- true").finish();
        assert_eq!(next.code, Some(0), "turn {turn}: {next:?}");
    }
}

// Command: `nohup tenure run …` shields the command as `nohup` alone would.
#[test]
fn a_signal_that_the_caller_ignored_stays_ignored_in_the_command() {
    let here = Place::new();
    let mut launch = here.program("sh");
    let ignore = "trap '' HUP; exec \"$0\" \"$@\"";
    launch = launch.arg("-c").arg(ignore).arg(TENURE);
    let script = "echo ready; read line; exit 42";
    launch = launch.words("run x -- sh -c").arg(script);
    let mut owner = start(&here, launch.stdin(Stdio::piped()));
    send(owner.wrapper, libc::SIGHUP);
    send(owner.command, libc::SIGHUP);
    owner.process.say("go");
    assert_eq!(owner.process.finish().code, Some(42));
}

// Command: a caller that does not care about its children does not cost the code.
#[test]
fn the_code_is_passed_on_though_the_caller_ignores_the_end_of_children() {
    let here = Place::new();
    let launch = here.tenure("run x -- sh -c").arg("exit 7");
    let outcome = ignoring(launch, libc::SIGCHLD).finish();
    assert_eq!(outcome.code, Some(7), "{outcome:?}");
}

/// What `/proc/self/status` says about signals in a command, run with or without `tenure`.
#[cfg(target_os = "linux")]
fn signal_masks(here: &Place, ignored: &str, prefix: &str) -> Vec<(String, u64)> {
    // The C library uses these two for itself, and its `posix_spawn` leaves them ignored.
    const INTERNAL: u64 = 0b11 << 31;
    let script = format!("trap '' {ignored}; exec {prefix} grep ^Sig /proc/self/status");
    let launch = here.program("sh").arg("-c").arg(script);
    let outcome = launch.env("TENURE", TENURE).finish();
    let parse = |line: &str| {
        let (name, mask) = line.split_once(":\t")?;
        let mask = u64::from_str_radix(mask, 16).ok()?;
        (name != "SigQ").then(|| (name.to_owned(), mask & !INTERNAL))
    };
    let text = outcome.text();
    let masks: Vec<_> = text.lines().filter_map(parse).collect();
    assert!(masks.len() >= 4, "{outcome:?}");
    masks
}

// Command: which signals are blocked or ignored is the caller's choice.
#[cfg(target_os = "linux")]
#[test]
fn the_command_finds_signals_as_it_would_without_the_wrapper() {
    let here = Place::new();
    for ignored in ["HUP", "INT QUIT", "TERM USR1 TSTP WINCH"] {
        let without = signal_masks(&here, ignored, "");
        let with = signal_masks(&here, ignored, "\"$TENURE\" run x --");
        assert_eq!(with, without, "ignored: {ignored}");
    }
}

// Command: a signal that was ignored stays ignored. (Rust's start-up code changes this one.)
#[cfg(target_os = "linux")]
#[test]
fn a_broken_pipe_that_the_caller_ignored_stays_ignored_in_the_command() {
    let here = Place::new();
    let without = signal_masks(&here, "PIPE", "");
    let with = signal_masks(&here, "PIPE", "\"$TENURE\" run x --");
    assert_eq!(with, without);
}

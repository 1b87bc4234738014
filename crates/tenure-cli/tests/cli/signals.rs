//! Signals sent to the wrapper reach the command once.

use std::process::Stdio;

use crate::process::{Launch, until};
use crate::support::{Owner, Sandbox, TENURE};
use crate::unix::{ignoring, is_alive, send};

/// Script that reports each signal it receives, and exits with 42 when it reads a line.
const REPORTER: &str = "
    for name in HUP INT QUIT TERM USR1 USR2; do trap \"echo $name\" $name; done
    echo ready
    until read line; do :; done
    exit 42";

fn reporter(sandbox: &Sandbox) -> Launch {
    let launch = sandbox.tenure("run x -- sh -c").arg(REPORTER);
    launch.stdin(Stdio::piped())
}

fn start(sandbox: &Sandbox, launch: Launch) -> Owner {
    let owner = sandbox.hold_with("x", launch);
    owner.process.until_stdout_has("ready\n");
    owner
}

/// Sends a signal to the wrapper and asserts that the command received it once and then exited
/// normally.
fn assert_reaches_the_command_once(signal: i32, name: &str) {
    let sandbox = Sandbox::new();
    let mut owner = start(&sandbox, reporter(&sandbox));
    send(owner.wrapper, signal);
    owner.process.until_stdout_has(&format!("{name}\n"));
    owner.process.write_line("go");
    let outcome = owner.process.finish();
    assert_eq!(outcome.text(), format!("ready\n{name}\n"));
    assert_eq!(
        outcome.code,
        Some(42),
        "the wrapper exits with the code of the command"
    );
    assert!(!sandbox.has_lock_file("x"), "the key was not released");
}

#[test]
fn sigterm_reaches_the_command_once() {
    assert_reaches_the_command_once(libc::SIGTERM, "TERM");
}

#[test]
fn sighup_reaches_the_command_once() {
    assert_reaches_the_command_once(libc::SIGHUP, "HUP");
}

#[test]
fn sigusr1_reaches_the_command_once() {
    assert_reaches_the_command_once(libc::SIGUSR1, "USR1");
}

#[test]
fn sigint_from_a_process_reaches_the_command_once() {
    assert_reaches_the_command_once(libc::SIGINT, "INT");
}

#[test]
fn command_ended_by_a_forwarded_signal_exits_with_128_plus_its_number() {
    let sandbox = Sandbox::new();
    let owner = sandbox.hold("x");
    send(owner.wrapper, libc::SIGTERM);
    let outcome = owner.process.finish();
    assert_eq!(outcome.code, Some(128 + libc::SIGTERM), "{outcome:?}");
    assert!(!is_alive(owner.command));
    assert!(!sandbox.has_lock_file("x"));
}

// Handlers for rarely used signals are installed only after the command has started. These signals
// must be forwarded too.
#[cfg(target_os = "linux")]
#[test]
fn rare_and_realtime_signals_reach_the_command() {
    let sandbox = Sandbox::new();
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
        let owner = sandbox.hold("x");
        send(owner.wrapper, signal);
        let outcome = owner.process.finish();
        assert_eq!(outcome.code, Some(128 + signal), "{outcome:?}");
        assert!(!sandbox.has_lock_file("x"), "signal {signal}");
    }
}

// A signal that arrives while the command is being started is stored and sent to it afterwards.
#[test]
fn signal_during_the_start_is_not_lost() {
    let sandbox = Sandbox::new();
    for turn in 0..40 {
        let process = sandbox.tenure("run x -- sleep 300").start();
        until("the key is acquired", || sandbox.has_lock_file("x"));
        for _ in 0..turn * 50 {
            std::hint::spin_loop();
        }
        send(process.id(), libc::SIGTERM);
        process.finish();
        let next = sandbox.tenure("run --quiet x -- true").finish();
        assert_eq!(next.code, Some(0), "turn {turn}: {next:?}");
    }
}

// `nohup tenure run …` protects the command as `nohup` alone would.
#[test]
fn signal_ignored_by_the_caller_stays_ignored_in_the_command() {
    let sandbox = Sandbox::new();
    let mut launch = sandbox.program("sh");
    let ignore = "trap '' HUP; exec \"$0\" \"$@\"";
    launch = launch.arg("-c").arg(ignore).arg(TENURE);
    let script = "echo ready; read line; exit 42";
    launch = launch.words("run x -- sh -c").arg(script);
    let mut owner = start(&sandbox, launch.stdin(Stdio::piped()));
    send(owner.wrapper, libc::SIGHUP);
    send(owner.command, libc::SIGHUP);
    owner.process.write_line("go");
    assert_eq!(owner.process.finish().code, Some(42));
}

#[test]
fn exit_code_is_returned_even_if_the_caller_ignores_sigchld() {
    let sandbox = Sandbox::new();
    let launch = sandbox.tenure("run x -- sh -c").arg("exit 7");
    let outcome = ignoring(launch, libc::SIGCHLD).finish();
    assert_eq!(outcome.code, Some(7), "{outcome:?}");
}

/// Sets of pending, blocked, ignored and caught signals of a command, from its `/proc/self/status`.
/// `prefix` runs the command with or without `tenure`.
#[cfg(target_os = "linux")]
fn signal_masks(sandbox: &Sandbox, ignored: &str, prefix: &str) -> Vec<(String, u64)> {
    // Signals 32 and 33, which the C library reserves for itself. Its `posix_spawn` leaves them
    // ignored, so they are not compared.
    const INTERNAL: u64 = 0b11 << 31;
    let script = format!("trap '' {ignored}; exec {prefix} grep ^Sig /proc/self/status");
    let launch = sandbox.program("sh").arg("-c").arg(script);
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

// The caller of `tenure run` decides which signals its command blocks or ignores, so the wrapper
// must not change them.
#[cfg(target_os = "linux")]
#[test]
fn command_has_the_same_signal_masks_as_without_the_wrapper() {
    let sandbox = Sandbox::new();
    for ignored in ["HUP", "INT QUIT", "TERM USR1 TSTP WINCH"] {
        let without = signal_masks(&sandbox, ignored, "");
        let with = signal_masks(&sandbox, ignored, "\"$TENURE\" run x --");
        assert_eq!(with, without, "ignored: {ignored}");
    }
}

// An ignored SIGPIPE stays ignored, although Rust's start-up code would change it.
#[cfg(target_os = "linux")]
#[test]
fn sigpipe_ignored_by_the_caller_stays_ignored_in_the_command() {
    let sandbox = Sandbox::new();
    let without = signal_masks(&sandbox, "PIPE", "");
    let with = signal_masks(&sandbox, "PIPE", "\"$TENURE\" run x --");
    assert_eq!(with, without);
}

//! Tests that need ports or addresses which may be in use where they run.

use std::process::Command;

use crate::support::Place;

/// Runs one of the ignored tests in a network of its own, which has nothing but a loopback.
#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
pub(crate) fn in_its_own(test: &str) {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root for a network namespace");
        return;
    }
    let place = Place::new();
    let mut command = Command::new("unshare");
    command
        .args(["--net", "sh", "-c"])
        .arg("ip link set lo up && exec \"$0\" --exact \"$1\" --ignored --nocapture")
        .arg(std::env::current_exe().unwrap())
        .arg(test);
    let outcome = place.start(&mut command).finish();
    assert_eq!(outcome.code, Some(0), "{}{}", outcome.out, outcome.err);
    assert!(outcome.out.contains("1 passed"), "{}", outcome.out);
}

//! Tests that need ports or addresses which may be in use where they run.

use std::process::Command;

/// Runs one of the ignored tests in a network of its own, which has nothing but a loopback.
pub(crate) fn in_its_own(test: &str) {
    if !testkit::has_root("for a network namespace").unwrap() {
        return;
    }
    let mut command = Command::new("unshare");
    command
        .args(["--net", "sh", "-c"])
        .arg("ip link set lo up && exec \"$0\" \"$@\"");
    testkit::run_role(&mut command, test).unwrap();
}

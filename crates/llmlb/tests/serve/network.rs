//! Network namespaces, for tests that need certain ports or addresses.

use std::process::Command;

/// Runs an ignored test of this program in a network namespace of its own with only a loopback
/// interface.
pub(crate) fn run_in_network_namespace(test: &str) {
    if !testkit::has_root("for a network namespace").unwrap() {
        return;
    }
    let mut command = Command::new("unshare");
    command
        .args(["--net", "sh", "-c"])
        .arg("ip link set lo up && exec \"$0\" \"$@\"");
    testkit::run_role(&mut command, test).unwrap();
}

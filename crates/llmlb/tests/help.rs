//! Help screens of `llmlb` and its subcommands.

use std::path::Path;

#[test]
fn help_screens_are_those_of_the_snapshot() {
    let snapshot = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/help.txt");
    testkit::help::assert_screens(env!("CARGO_BIN_EXE_llmlb"), &snapshot);
}

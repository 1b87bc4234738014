//! Runs the fast attacks against a debug build of llmlb. No attack may succeed. (promises L5, L6,
//! L8, L9, L11)

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "helpers fail the test that called them")]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds llmlb, which is another package, in the profile of this test. Returns the path of the program.
fn llmlb() -> PathBuf {
    // Cargo writes all programs of one profile into one directory, so llmlb is beside this test's program.
    let llmlb = PathBuf::from(env!("CARGO_BIN_EXE_attack")).with_file_name("llmlb");
    let directory = llmlb.parent().and_then(Path::file_name);
    let profile = match directory.and_then(OsStr::to_str) {
        None | Some("debug") => "dev",
        Some(profile) => profile,
    };
    let built = Command::new(env!("CARGO"))
        .args(["build", "--locked", "--quiet", "--profile", profile])
        // Build with the same features as `scripts/test`. Other tests use the same program file,
        // and other features would replace it.
        .args(["-p", "llmlb", "--bin", "llmlb", "--all-features"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status();
    assert!(built.unwrap().success(), "llmlb does not compile");
    llmlb
}

#[test]
fn fast_attacks_have_no_effect() {
    let output = Command::new(env!("CARGO_BIN_EXE_attack"))
        .args(["--fast", "--llmlb-bin"])
        .arg(llmlb())
        .output()
        .unwrap();
    let verdicts = String::from_utf8_lossy(&output.stdout);
    println!("{verdicts}");
    let failed: Vec<_> = verdicts
        .lines()
        .filter(|line| line.starts_with("FAILS"))
        .collect();
    assert!(output.status.success(), "{}", failed.join("\n"));
}

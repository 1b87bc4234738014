//! Servers of another user. These tests need root to run commands as that user.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use llmlb::lock::{LockError, read_lock_info};

use crate::support::{LockDir, this_test};

const NOBODY: [&str; 4] = [
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
];

/// Copies a program to a directory that the other user can read, because that user cannot run it
/// from the build directory.
fn copy(lock_dir: &LockDir, program: &str, name: &str) -> String {
    let copy = lock_dir.path().join(name);
    fs::set_permissions(lock_dir.path(), Permissions::from_mode(0o755)).expect("readable");
    testkit::copy_program(program, &copy).expect("a copy");
    copy.into_os_string()
        .into_string()
        .expect("a path that is text")
}

#[test]
fn server_of_another_user_is_reported_and_not_stopped() {
    let lock_dir = LockDir::new();
    let tool = copy(&lock_dir, env!("CARGO_BIN_EXE_llmlb"), "llmlb");
    let as_nobody =
        |words: &[&str]| lock_dir.run(&[NOBODY.as_slice(), &[tool.as_str()], words].concat());
    if !testkit::has_root("to run commands as another user").expect("nothing is missing") {
        return;
    }
    assert_eq!(as_nobody(&["--version"]).code, Some(0));
    let server = lock_dir.stand_in(4008, "end");
    let ran = as_nobody(&["status", "-p", "4008"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for line in [
        "  state      running (another user's)\n",
        "  PID        unknown\n",
        "  owner      root\n",
    ] {
        assert!(ran.stdout.contains(line), "{line:?} in {ran:?}");
    }
    let ran = as_nobody(&["stop", "-p", "4008", "--force"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""));
    assert!(
        ran.stderr.contains("only that user or root can stop"),
        "{ran:?}"
    );
    assert!(llmlb::lock::is_process_running(server.pid()));

    let test = copy(&lock_dir, &this_test(), "test");
    let role = "other_users::lock_record_of_root_is_not_read";
    let words = [test.as_str(), "--exact", role, "--ignored"];
    let ran = lock_dir.run(&[NOBODY.as_slice(), &words].concat());
    assert!(ran.stdout.contains("1 passed"), "{ran:?}");

    drop(server);
    let ran = as_nobody(&["status", "-p", "4008"]);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(
        ran.stdout
            .contains("belongs to root; no process is seen to hold its lock"),
        "{ran:?}"
    );
}

/// Not a test of its own: another user runs it while a server of root holds port 4008.
#[test]
#[ignore = "another test runs it as another user"]
fn lock_record_of_root_is_not_read() {
    match read_lock_info(4008) {
        Err(LockError::ReadFailed { why, .. }) => assert_eq!(why, "the file belongs to root"),
        other => panic!("{other:?}"),
    }
}

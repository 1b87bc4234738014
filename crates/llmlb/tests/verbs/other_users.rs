//! Two users on one machine. Needs root, who can become another user.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use llmlb::lock::{LockError, read_lock_info};

use crate::support::{Place, this_test};

const NOBODY: [&str; 4] = [
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
];

/// A copy of a program where the other user can get at it.
fn copy(place: &Place, program: &str, name: &str) -> String {
    let copy = place.path().join(name);
    fs::set_permissions(place.path(), Permissions::from_mode(0o755)).expect("readable");
    // A process of its own copies it: a child that another test starts meanwhile would inherit the
    // descriptor, and a program that is open for writing cannot be run.
    let mut install = std::process::Command::new("install");
    let copied = install.args(["-m", "755", program]).arg(&copy).status();
    assert!(copied.expect("install").success());
    copy.into_os_string()
        .into_string()
        .expect("a path that is text")
}

#[test]
fn another_users_server_is_seen_and_left_alone() {
    let place = Place::new();
    let tool = copy(&place, env!("CARGO_BIN_EXE_llmlb"), "llmlb");
    let as_nobody =
        |words: &[&str]| place.run(&[NOBODY.as_slice(), &[tool.as_str()], words].concat());
    if !testkit::has_root("who can become another user").expect("nothing is missing") {
        return;
    }
    assert_eq!(as_nobody(&["--version"]).code, Some(0));
    let server = place.stand_in(4008, "end");
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

    let test = copy(&place, &this_test(), "test");
    let unread = "other_users::not_for_other_users";
    let words = [test.as_str(), "--exact", unread, "--ignored"];
    let ran = place.run(&[NOBODY.as_slice(), &words].concat());
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

/// Not a test of its own: what another user runs while a server of root's has port 4008.
#[test]
#[ignore = "another test runs it as another user"]
fn not_for_other_users() {
    match read_lock_info(4008) {
        Err(LockError::ReadFailed { why, .. }) => assert_eq!(why, "the file belongs to root"),
        other => panic!("{other:?}"),
    }
}

//! Paths that cannot be trusted: a clear refusal, no link followed, no file changed, no hang.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use crate::process::Outcome;
use crate::support::Sandbox;

const PRECIOUS: &str = "do not touch";

/// Sandbox with a lock directory, and a file beside it to which tests lead links. A refused attempt
/// must not change that file.
fn sandbox_with_precious_file() -> Sandbox {
    let sandbox = Sandbox::new();
    fs::create_dir_all(sandbox.locks()).expect("the lock directory");
    fs::write(sandbox.path("precious"), PRECIOUS).expect("a file");
    sandbox
}

fn assert_refused(sandbox: &Sandbox, outcome: &Outcome, path: &Path, why: &str) {
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert_eq!(outcome.text(), "", "the command was started");
    let named = path.display().to_string();
    assert!(outcome.stderr.contains(&named), "{named:?} in {outcome:?}");
    assert!(outcome.stderr.contains(why), "{why:?} in {outcome:?}");
    let precious = fs::read_to_string(sandbox.path("precious")).expect("the file still exists");
    assert_eq!(precious, PRECIOUS);
}

fn run(sandbox: &Sandbox) -> Outcome {
    sandbox.tenure("run x -- echo in").finish()
}

// T9
#[test]
fn symbolic_link_is_not_followed() {
    let sandbox = sandbox_with_precious_file();
    symlink(sandbox.path("precious"), sandbox.lock_file("x")).unwrap();
    assert_refused(
        &sandbox,
        &run(&sandbox),
        &sandbox.lock_file("x"),
        "symbolic link",
    );
}

// T9: the target of the link is not created.
#[test]
fn dangling_symbolic_link_creates_nothing() {
    let sandbox = sandbox_with_precious_file();
    symlink(sandbox.path("absent"), sandbox.lock_file("x")).unwrap();
    assert_refused(
        &sandbox,
        &run(&sandbox),
        &sandbox.lock_file("x"),
        "symbolic link",
    );
    assert!(!sandbox.path("absent").exists());
}

// T9
#[test]
fn hard_link_is_refused() {
    let sandbox = sandbox_with_precious_file();
    fs::hard_link(sandbox.path("precious"), sandbox.lock_file("x")).unwrap();
    assert_refused(
        &sandbox,
        &run(&sandbox),
        &sandbox.lock_file("x"),
        "hard link",
    );
}

// T9: opening a FIFO without a writer would block.
#[test]
fn fifo_is_refused_at_once() {
    let sandbox = sandbox_with_precious_file();
    let made = sandbox
        .program("mkfifo")
        .arg(sandbox.lock_file("x"))
        .finish();
    assert_eq!(made.code, Some(0), "{made:?}");
    assert_refused(&sandbox, &run(&sandbox), &sandbox.lock_file("x"), "FIFO");
}

// T9
#[test]
fn directory_at_the_path_is_refused() {
    let sandbox = sandbox_with_precious_file();
    fs::create_dir(sandbox.lock_file("x")).unwrap();
    assert_refused(
        &sandbox,
        &run(&sandbox),
        &sandbox.lock_file("x"),
        "directory",
    );
}

// T9: a user who may write the directory may replace the lock file.
#[test]
fn lock_directory_that_every_user_may_write_is_refused() {
    let sandbox = sandbox_with_precious_file();
    fs::set_permissions(sandbox.locks(), Permissions::from_mode(0o777)).unwrap();
    assert_refused(&sandbox, &run(&sandbox), &sandbox.locks(), "not sticky");
    assert!(!sandbox.has_lock_file("x"));
}

// T9: with `--file`, too, the directory is checked: a user who may write to it may replace the lock
// file.
#[test]
fn file_in_a_directory_that_every_user_may_write_is_refused() {
    let sandbox = sandbox_with_precious_file();
    let open = sandbox.path("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
    let launch = sandbox.tenure("run --file").arg(open.join("my.lock"));
    let outcome = launch.words("-- echo in").finish();
    assert_refused(&sandbox, &outcome, &open, "not sticky");
    assert!(!open.join("my.lock").exists());
}

// T9: the directory in which the lock directory would be created is checked too.
#[test]
fn temporary_directory_that_every_user_may_write_is_refused_unless_sticky() {
    let sandbox = sandbox_with_precious_file();
    let temp = sandbox.path("tmp");
    fs::create_dir(&temp).unwrap();
    let run = || {
        let launch = sandbox.tenure("run x -- echo in").env("TMPDIR", &temp);
        launch.env("TENURE_DIR", "").finish()
    };
    fs::set_permissions(&temp, Permissions::from_mode(0o777)).unwrap();
    assert_refused(&sandbox, &run(), &temp, "not sticky");
    fs::set_permissions(&temp, Permissions::from_mode(0o1777)).unwrap();
    let outcome = run();
    assert_eq!((outcome.code, outcome.text().as_str()), (Some(0), "in\n"));
}

// T9
#[test]
fn lock_directory_that_is_a_link_is_refused() {
    let sandbox = sandbox_with_precious_file();
    fs::remove_dir(sandbox.locks()).unwrap();
    fs::create_dir(sandbox.path("elsewhere")).unwrap();
    symlink(sandbox.path("elsewhere"), sandbox.locks()).unwrap();
    assert_refused(&sandbox, &run(&sandbox), &sandbox.locks(), "symbolic link");
    assert_eq!(fs::read_dir(sandbox.path("elsewhere")).unwrap().count(), 0);
}

// T9: in a sticky directory other users cannot replace the lock file, so `--file` is accepted.
#[test]
fn file_in_a_sticky_directory_is_accepted() {
    let sandbox = sandbox_with_precious_file();
    let sticky = sandbox.path("sticky");
    fs::create_dir(&sticky).unwrap();
    fs::set_permissions(&sticky, Permissions::from_mode(0o1777)).unwrap();
    let launch = sandbox.tenure("run --file").arg(sticky.join("my.lock"));
    let outcome = launch.words("-- echo in").finish();
    assert_eq!((outcome.code, outcome.text().as_str()), (Some(0), "in\n"));
}

// The mode of a lock file is 0600 even if the umask permits more, because its record is not meant
// for other users.
#[test]
fn lock_file_is_accessible_to_its_owner_only() {
    let sandbox = sandbox_with_precious_file();
    let script = "umask 0; exec \"$0\" run x -- sleep 300";
    let launch = sandbox.program("sh").arg("-c").arg(script);
    let _owner = sandbox.hold_with("x", launch.arg(crate::support::TENURE));
    let mode = fs::metadata(sandbox.lock_file("x")).unwrap().mode();
    assert_eq!(mode & 0o7777, 0o600);
}

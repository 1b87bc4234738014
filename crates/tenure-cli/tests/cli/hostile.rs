//! Places that cannot be trusted: a clear refusal, nothing followed, nothing changed, no hang.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use crate::process::Outcome;
use crate::support::Place;

const PRECIOUS: &str = "do not touch";

/// A place with something precious beside the lock directory, which exists.
fn place() -> Place {
    let here = Place::new();
    fs::create_dir_all(here.locks()).expect("the lock directory");
    fs::write(here.path("precious"), PRECIOUS).expect("a file");
    here
}

fn assert_refused(here: &Place, outcome: &Outcome, path: &Path, why: &str) {
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert_eq!(outcome.text(), "", "the command ran");
    let named = path.display().to_string();
    assert!(outcome.stderr.contains(&named), "{named:?} in {outcome:?}");
    assert!(outcome.stderr.contains(why), "{why:?} in {outcome:?}");
    let precious = fs::read_to_string(here.path("precious")).expect("it is still there");
    assert_eq!(precious, PRECIOUS);
}

fn run(here: &Place) -> Outcome {
    here.tenure("run x -- echo in").finish()
}

// T9
#[test]
fn a_symbolic_link_is_not_followed() {
    let here = place();
    symlink(here.path("precious"), here.lock_file("x")).unwrap();
    assert_refused(&here, &run(&here), &here.lock_file("x"), "symbolic link");
}

// T9: nor does it create what it points to.
#[test]
fn a_dangling_symbolic_link_creates_nothing() {
    let here = place();
    symlink(here.path("absent"), here.lock_file("x")).unwrap();
    assert_refused(&here, &run(&here), &here.lock_file("x"), "symbolic link");
    assert!(!here.path("absent").exists());
}

// T9
#[test]
fn a_hard_link_is_refused() {
    let here = place();
    fs::hard_link(here.path("precious"), here.lock_file("x")).unwrap();
    assert_refused(&here, &run(&here), &here.lock_file("x"), "hard link");
}

// T9: no hang.
#[test]
fn a_fifo_is_refused_at_once() {
    let here = place();
    let made = here.program("mkfifo").arg(here.lock_file("x")).finish();
    assert_eq!(made.code, Some(0), "{made:?}");
    assert_refused(&here, &run(&here), &here.lock_file("x"), "FIFO");
}

// T9
#[test]
fn a_directory_at_the_path_is_refused() {
    let here = place();
    fs::create_dir(here.lock_file("x")).unwrap();
    assert_refused(&here, &run(&here), &here.lock_file("x"), "directory");
}

// T9: whoever may write there may replace the file.
#[test]
fn a_lock_directory_that_anyone_may_write_is_refused() {
    let here = place();
    fs::set_permissions(here.locks(), Permissions::from_mode(0o777)).unwrap();
    assert_refused(&here, &run(&here), &here.locks(), "not sticky");
    assert!(!here.has_lock_file("x"));
}

// T9: the same for the directory of a file that was named by its path.
#[test]
fn a_file_in_a_directory_that_anyone_may_write_is_refused() {
    let here = place();
    let open = here.path("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
    let launch = here.tenure("run --file").arg(open.join("my.lock"));
    let outcome = launch.words("-- echo in").finish();
    assert_refused(&here, &outcome, &open, "not sticky");
    assert!(!open.join("my.lock").exists());
}

// T9: the same for the directory that the lock directory would be created in.
#[test]
fn a_temporary_directory_that_anyone_may_write_is_refused_unless_sticky() {
    let here = place();
    let temp = here.path("tmp");
    fs::create_dir(&temp).unwrap();
    let run = || {
        let launch = here.tenure("run x -- echo in").env("TMPDIR", &temp);
        launch.env("TENURE_DIR", "").finish()
    };
    fs::set_permissions(&temp, Permissions::from_mode(0o777)).unwrap();
    assert_refused(&here, &run(), &temp, "not sticky");
    fs::set_permissions(&temp, Permissions::from_mode(0o1777)).unwrap();
    let outcome = run();
    assert_eq!((outcome.code, outcome.text().as_str()), (Some(0), "in\n"));
}

// T9: a link in place of the lock directory.
#[test]
fn a_lock_directory_that_is_a_link_is_refused() {
    let here = place();
    fs::remove_dir(here.locks()).unwrap();
    fs::create_dir(here.path("elsewhere")).unwrap();
    symlink(here.path("elsewhere"), here.locks()).unwrap();
    assert_refused(&here, &run(&here), &here.locks(), "symbolic link");
    assert_eq!(fs::read_dir(here.path("elsewhere")).unwrap().count(), 0);
}

// T9: `--file` in a sticky directory is fine.
#[test]
fn a_file_in_a_sticky_directory_is_fine() {
    let here = place();
    let sticky = here.path("sticky");
    fs::create_dir(&sticky).unwrap();
    fs::set_permissions(&sticky, Permissions::from_mode(0o1777)).unwrap();
    let launch = here.tenure("run --file").arg(sticky.join("my.lock"));
    let outcome = launch.words("-- echo in").finish();
    assert_eq!((outcome.code, outcome.text().as_str()), (Some(0), "in\n"));
}

// File store: mode 0600, whatever the mask.
#[test]
fn the_lock_file_is_for_its_owner_only() {
    let here = place();
    let script = "umask 0; exec \"$0\" run x -- sleep 300";
    let launch = here.program("sh").arg("-c").arg(script);
    let _owner = here.hold_with("x", launch.arg(crate::support::TENURE));
    let mode = fs::metadata(here.lock_file("x")).unwrap().mode();
    assert_eq!(mode & 0o7777, 0o600);
}

//! T9: hostile directories. No link is followed, no file is truncated, and no call blocks.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

use tenure::{Error, Key, State, Store, Tenure};
use tenure_tests::Owner;

use crate::{Fixture, OWNER, root};

fn assert_refused(result: Result<Tenure, Error>, word: &str) {
    let error = result.expect_err(word);
    assert!(error.is_hostile(), "{error:?}");
    assert!(
        error.to_string().contains(word),
        "{error} does not contain {word}"
    );
}

#[test]
fn symbolic_link_at_the_path_is_not_followed() {
    let fixture = Fixture::new();
    let target = fixture.dir().join("precious");
    fs::write(&target, "precious").unwrap();
    symlink(&target, fixture.file()).unwrap();
    assert_refused(fixture.try_acquire(), "symbolic link");
    assert_eq!(fs::read_to_string(&target).unwrap(), "precious");
    assert!(
        matches!(fixture.status().state(), State::Unusable(why) if why.contains("symbolic link"))
    );

    fs::remove_file(fixture.file()).unwrap();
    symlink(fixture.dir().join("dangling"), fixture.file()).unwrap();
    assert_refused(fixture.try_acquire(), "symbolic link");
    assert!(!fixture.dir().join("dangling").exists());
}

#[test]
fn hard_link_at_the_path_is_not_written_to() {
    let fixture = Fixture::new();
    let target = fixture.dir().join("precious");
    fs::write(&target, "precious").unwrap();
    fs::hard_link(&target, fixture.file()).unwrap();
    assert_refused(fixture.try_acquire(), "hard link");
    assert_eq!(fs::read_to_string(&target).unwrap(), "precious");
}

#[test]
fn fifo_socket_and_directory_at_the_path_are_refused_without_blocking() {
    let fixture = Fixture::new();
    let made = Command::new("mkfifo").arg(fixture.file()).status().unwrap();
    assert!(made.success());
    assert_refused(fixture.try_acquire(), "FIFO");
    assert!(matches!(fixture.status().state(), State::Unusable(_)));
    fs::remove_file(fixture.file()).unwrap();

    let socket = std::os::unix::net::UnixListener::bind(fixture.file()).unwrap();
    assert_refused(fixture.try_acquire(), "socket");
    drop(socket);
    fs::remove_file(fixture.file()).unwrap();

    fs::create_dir(fixture.file()).unwrap();
    assert_refused(fixture.try_acquire(), "directory");
}

#[test]
fn directory_that_every_user_may_write_is_refused_unless_it_is_sticky() {
    let fixture = Fixture::new();
    let file = Key::file(fixture.dir().join("f.lock")).unwrap();
    fs::set_permissions(fixture.dir(), fs::Permissions::from_mode(0o777)).unwrap();
    assert_refused(fixture.try_acquire(), "every user may write");
    assert_refused(
        fixture.store.claim(&file).try_acquire(),
        "every user may write",
    );
    assert_eq!(fs::read_dir(fixture.dir()).unwrap().count(), 0);
    fs::set_permissions(fixture.dir(), fs::Permissions::from_mode(0o1777)).unwrap();
    drop(
        fixture
            .store
            .claim(&file)
            .try_acquire()
            .expect("a sticky directory is accepted"),
    );
}

#[test]
fn lock_directory_that_is_a_link_or_a_file_is_refused() {
    let fixture = Fixture::new();
    let link = fixture.dir().join("link");
    symlink(fixture.dir(), &link).unwrap();
    assert_refused(
        Store::in_dir(&link).claim(&fixture.key).try_acquire(),
        "symbolic link",
    );
    let file = fixture.dir().join("file");
    fs::write(&file, "").unwrap();
    assert_refused(
        Store::in_dir(&file).claim(&fixture.key).try_acquire(),
        "not a directory",
    );
}

#[test]
fn directory_or_file_of_another_user_is_refused() {
    if !root("files of another user") {
        return;
    }
    let fixture = Fixture::new();
    fs::write(fixture.file(), "theirs").unwrap();
    std::os::unix::fs::chown(fixture.file(), Some(65534), Some(65534)).unwrap();
    fs::set_permissions(fixture.dir(), fs::Permissions::from_mode(0o1777)).unwrap();
    assert_refused(fixture.try_acquire(), "belongs to");
    assert_eq!(fs::read_to_string(fixture.file()).unwrap(), "theirs");
    fs::remove_file(fixture.file()).unwrap();
    std::os::unix::fs::chown(fixture.dir(), Some(65534), Some(65534)).unwrap();
    assert_refused(fixture.try_acquire(), "belongs to");
}

/// The test runs as an unprivileged user, because root may write everywhere.
#[test]
fn read_only_directory_is_reported_on_acquire_and_on_release() {
    if !root("acting as another user") {
        return;
    }
    let fixture = Fixture::new();
    // Only the user who created the temporary directory may search it by default. The unprivileged
    // user must reach the program and the lock directory in it.
    fs::set_permissions(fixture.dir(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = fixture.dir().join("owner");
    fs::copy(OWNER, &program).unwrap();
    let locks = fixture.dir().join("locks");
    fs::create_dir(&locks).unwrap();
    std::os::unix::fs::chown(&locks, Some(65534), Some(65534)).unwrap();
    let mode = |mode| fs::set_permissions(&locks, fs::Permissions::from_mode(mode)).unwrap();
    let unprivileged = || {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(&program);
        Owner::start(command, &locks, "k")
    };

    mode(0o555);
    let answer = unprivileged().answer();
    assert!(
        answer.starts_with("failed cannot create the lock file"),
        "{answer}"
    );
    assert!(
        answer.contains("name_k.lock") && answer.contains("permission denied"),
        "{answer}"
    );

    mode(0o755);
    let mut owner = unprivileged();
    assert!(owner.answer().starts_with("held"));
    mode(0o555);
    let answer = owner.request("release");
    assert!(
        answer.starts_with("failed the lock is released, but its file"),
        "{answer}"
    );
    mode(0o755);
    assert!(
        unprivileged().answer().starts_with("held"),
        "it was released all the same"
    );
}

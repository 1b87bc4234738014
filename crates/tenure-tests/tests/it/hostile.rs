//! T9: hostile directories. Nothing is followed, nothing truncated, nothing hangs.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

use tenure::{Error, Key, State, Store, Tenure};
use tenure_tests::Owner;

use crate::{OWNER, Scene, root};

fn refused(result: Result<Tenure, Error>, word: &str) {
    let error = result.expect_err(word);
    assert!(error.is_hostile(), "{error:?}");
    assert!(
        error.to_string().contains(word),
        "{error} does not say {word}"
    );
}

#[test]
fn a_symbolic_link_at_the_path_is_not_followed() {
    let scene = Scene::new();
    let target = scene.dir().join("precious");
    fs::write(&target, "precious").unwrap();
    symlink(&target, scene.file()).unwrap();
    refused(scene.take(), "symbolic link");
    assert_eq!(fs::read_to_string(&target).unwrap(), "precious");
    assert!(
        matches!(scene.status().state(), State::Unusable(why) if why.contains("symbolic link"))
    );

    fs::remove_file(scene.file()).unwrap();
    symlink(scene.dir().join("dangling"), scene.file()).unwrap();
    refused(scene.take(), "symbolic link");
    assert!(!scene.dir().join("dangling").exists());
}

#[test]
fn a_hard_link_at_the_path_is_not_written_to() {
    let scene = Scene::new();
    let target = scene.dir().join("precious");
    fs::write(&target, "precious").unwrap();
    fs::hard_link(&target, scene.file()).unwrap();
    refused(scene.take(), "hard link");
    assert_eq!(fs::read_to_string(&target).unwrap(), "precious");
}

#[test]
fn a_fifo_a_socket_and_a_directory_are_refused_without_hanging() {
    let scene = Scene::new();
    let made = Command::new("mkfifo").arg(scene.file()).status().unwrap();
    assert!(made.success());
    refused(scene.take(), "FIFO");
    assert!(matches!(scene.status().state(), State::Unusable(_)));
    fs::remove_file(scene.file()).unwrap();

    let socket = std::os::unix::net::UnixListener::bind(scene.file()).unwrap();
    refused(scene.take(), "socket");
    drop(socket);
    fs::remove_file(scene.file()).unwrap();

    fs::create_dir(scene.file()).unwrap();
    refused(scene.take(), "directory");
}

#[test]
fn a_directory_that_anyone_may_write_is_refused_unless_it_is_sticky() {
    let scene = Scene::new();
    let file = Key::file(scene.dir().join("f.lock")).unwrap();
    fs::set_permissions(scene.dir(), fs::Permissions::from_mode(0o777)).unwrap();
    refused(scene.take(), "anyone may write");
    refused(scene.store.claim(&file).try_acquire(), "anyone may write");
    assert_eq!(fs::read_dir(scene.dir()).unwrap().count(), 0);
    fs::set_permissions(scene.dir(), fs::Permissions::from_mode(0o1777)).unwrap();
    drop(
        scene
            .store
            .claim(&file)
            .try_acquire()
            .expect("sticky is fine"),
    );
}

#[test]
fn a_lock_directory_that_is_a_link_or_a_file_is_refused() {
    let scene = Scene::new();
    let link = scene.dir().join("link");
    symlink(scene.dir(), &link).unwrap();
    refused(
        Store::in_dir(&link).claim(&scene.key).try_acquire(),
        "symbolic link",
    );
    let file = scene.dir().join("file");
    fs::write(&file, "").unwrap();
    refused(
        Store::in_dir(&file).claim(&scene.key).try_acquire(),
        "not a directory",
    );
}

#[test]
fn another_users_directory_and_another_users_file_are_refused() {
    if !root("files of another user") {
        return;
    }
    let scene = Scene::new();
    fs::write(scene.file(), "theirs").unwrap();
    std::os::unix::fs::chown(scene.file(), Some(65534), Some(65534)).unwrap();
    fs::set_permissions(scene.dir(), fs::Permissions::from_mode(0o1777)).unwrap();
    refused(scene.take(), "belongs to");
    assert_eq!(fs::read_to_string(scene.file()).unwrap(), "theirs");
    fs::remove_file(scene.file()).unwrap();
    std::os::unix::fs::chown(scene.dir(), Some(65534), Some(65534)).unwrap();
    refused(scene.take(), "belongs to");
}

/// As a user without rights, since root may write everywhere.
#[test]
fn a_read_only_directory_is_said_to_be_one_and_a_release_that_cannot_clean_up_says_so() {
    if !root("acting as another user") {
        return;
    }
    let scene = Scene::new();
    // The temporary directory itself may be closed to others.
    fs::set_permissions(scene.dir(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = scene.dir().join("owner");
    fs::copy(OWNER, &program).unwrap();
    let locks = scene.dir().join("locks");
    fs::create_dir(&locks).unwrap();
    std::os::unix::fs::chown(&locks, Some(65534), Some(65534)).unwrap();
    let mode = |mode| fs::set_permissions(&locks, fs::Permissions::from_mode(mode)).unwrap();
    let nobody = || {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(&program);
        Owner::start(command, &locks, "k")
    };

    mode(0o555);
    let answer = nobody().answer();
    assert!(
        answer.starts_with("failed cannot create the lock file"),
        "{answer}"
    );
    assert!(
        answer.contains("name_k.lock") && answer.contains("permission denied"),
        "{answer}"
    );

    mode(0o755);
    let mut owner = nobody();
    assert!(owner.answer().starts_with("held"));
    mode(0o555);
    let answer = owner.tell("release");
    assert!(
        answer.starts_with("failed the lock is released, but its file"),
        "{answer}"
    );
    mode(0o755);
    assert!(
        nobody().answer().starts_with("held"),
        "it was released all the same"
    );
}

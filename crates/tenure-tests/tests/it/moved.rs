//! T1: renaming an ancestor directory or changing a symbolic link makes the path another key.
//! `lost()` returns true for the old owner.

#![cfg(unix)]

use std::fs;
use std::os::unix::fs::symlink;

use tenure::{Key, Store};
use tenure_tests::Owner;

use crate::{Fixture, OWNER};

fn owner_below(dir: &std::path::Path) -> Owner {
    let locks = dir.join("locks");
    fs::create_dir_all(&locks).unwrap();
    let mut owner = Owner::holding(OWNER, &locks, "k");
    assert_eq!(owner.request("lost"), "false");
    owner
}

fn try_acquire_below(dir: &std::path::Path) -> Result<tenure::Tenure, tenure::Error> {
    let key = Key::name("k").unwrap();
    Store::in_dir(dir.join("locks")).claim(&key).try_acquire()
}

#[test]
fn lost_returns_true_after_an_ancestor_directory_is_renamed() {
    let fixture = Fixture::new();
    let (ancestor, moved) = (fixture.dir().join("a"), fixture.dir().join("b"));
    let mut owner = owner_below(&ancestor);
    fs::rename(&ancestor, &moved).unwrap();
    assert_eq!(owner.request("lost"), "true");
    fs::create_dir(&ancestor).unwrap();
    drop(
        try_acquire_below(&ancestor)
            .expect("the path leads to another directory, which is another key"),
    );
    assert!(try_acquire_below(&moved).unwrap_err().is_held());
    // The renamed directory has its old name again, so the path leads to the owner's lock file
    // again and the key is no longer lost.
    fs::remove_dir_all(&ancestor).unwrap();
    fs::rename(&moved, &ancestor).unwrap();
    assert_eq!(owner.request("lost"), "false");
}

#[test]
fn lost_returns_true_after_a_symbolic_link_is_changed() {
    let fixture = Fixture::new();
    let (one, two, link) = (
        fixture.dir().join("one"),
        fixture.dir().join("two"),
        fixture.dir().join("current"),
    );
    fs::create_dir_all(one.join("locks")).unwrap();
    fs::create_dir_all(two.join("locks")).unwrap();
    symlink(&one, &link).unwrap();
    let mut owner = owner_below(&link);
    let new = fixture.dir().join("new");
    symlink(&two, &new).unwrap();
    fs::rename(&new, &link).unwrap();
    assert_eq!(owner.request("lost"), "true");
    drop(
        try_acquire_below(&link)
            .expect("the path leads to another directory, which is another key"),
    );
}

#[test]
fn watch_reports_a_renamed_ancestor() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let fixture = Fixture::new();
    let ancestor = fixture.dir().join("a");
    fs::create_dir(&ancestor).unwrap();
    let tenure = try_acquire_below(&ancestor).unwrap();
    let lost = std::sync::Arc::new(AtomicBool::new(false));
    let is_lost = std::sync::Arc::clone(&lost);
    let every = std::time::Duration::from_millis(5);
    let watch = tenure.watch(every, move || is_lost.store(true, Ordering::Relaxed));
    fs::rename(&ancestor, fixture.dir().join("b")).unwrap();
    tenure_tests::eventually("the watch reports the loss", || {
        lost.load(Ordering::Relaxed)
    });
    drop(watch);
}

/// An owner that may no longer search an ancestor directory cannot resolve the path, but has not
/// lost its file.
#[cfg(target_os = "linux")]
#[test]
fn lost_returns_false_if_an_ancestor_can_no_longer_be_searched() {
    use tenure_tests::run_as::{RunAs, SharedDir, USER, set_mode};
    let Some(shared_dir) = SharedDir::new() else {
        return;
    };
    let ancestor = shared_dir.dir("a", 0, 0o755);
    let locks = shared_dir.dir("a/locks", USER, 0o755);
    let program = RunAs::user(USER).command(shared_dir.copy_of(OWNER));
    let mut owner = Owner::start(program, &locks, "k");
    assert!(owner.answer().starts_with("held "));
    set_mode(&ancestor, 0o700);
    assert_eq!(owner.request("lost"), "false");
    fs::remove_file(locks.join("name_k.lock")).unwrap();
    assert_eq!(owner.request("lost"), "true");
}

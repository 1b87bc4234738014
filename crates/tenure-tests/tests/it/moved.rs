//! T1: an ancestor directory renamed, or a symbolic link switched, names another key. The old owner can
//! tell that it lost.

#![cfg(unix)]

use std::fs;
use std::os::unix::fs::symlink;

use tenure::{Key, Store};
use tenure_tests::Owner;

use crate::{OWNER, Scene};

/// An owner of the key `k` in `dir/locks`, to which `dir` is the way.
fn owner_below(dir: &std::path::Path) -> Owner {
    let locks = dir.join("locks");
    fs::create_dir_all(&locks).unwrap();
    let mut owner = Owner::holding(OWNER, &locks, "k");
    assert_eq!(owner.tell("lost"), "false");
    owner
}

fn take_below(dir: &std::path::Path) -> Result<tenure::Tenure, tenure::Error> {
    let key = Key::name("k").unwrap();
    Store::in_dir(dir.join("locks")).claim(&key).try_acquire()
}

#[test]
fn owner_has_lost_after_an_ancestor_directory_was_renamed() {
    let scene = Scene::new();
    let (ancestor, moved) = (scene.dir().join("a"), scene.dir().join("b"));
    let mut owner = owner_below(&ancestor);
    fs::rename(&ancestor, &moved).unwrap();
    assert_eq!(owner.tell("lost"), "true");
    fs::create_dir(&ancestor).unwrap();
    drop(take_below(&ancestor).expect("another directory, so another key"));
    assert!(take_below(&moved).unwrap_err().is_held());
    // Back where it was: the path leads to the file again.
    fs::remove_dir_all(&ancestor).unwrap();
    fs::rename(&moved, &ancestor).unwrap();
    assert_eq!(owner.tell("lost"), "false");
}

#[test]
fn owner_has_lost_after_a_symbolic_link_was_switched() {
    let scene = Scene::new();
    let (one, two, link) = (
        scene.dir().join("one"),
        scene.dir().join("two"),
        scene.dir().join("current"),
    );
    fs::create_dir_all(one.join("locks")).unwrap();
    fs::create_dir_all(two.join("locks")).unwrap();
    symlink(&one, &link).unwrap();
    let mut owner = owner_below(&link);
    let new = scene.dir().join("new");
    symlink(&two, &new).unwrap();
    fs::rename(&new, &link).unwrap();
    assert_eq!(owner.tell("lost"), "true");
    drop(take_below(&link).expect("another directory, so another key"));
}

#[test]
fn watch_reports_a_renamed_ancestor() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let scene = Scene::new();
    let ancestor = scene.dir().join("a");
    fs::create_dir(&ancestor).unwrap();
    let tenure = take_below(&ancestor).unwrap();
    let lost = std::sync::Arc::new(AtomicBool::new(false));
    let told = std::sync::Arc::clone(&lost);
    let every = std::time::Duration::from_millis(5);
    let watch = tenure.watch(every, move || told.store(true, Ordering::Relaxed));
    fs::rename(&ancestor, scene.dir().join("b")).unwrap();
    tenure_tests::eventually("it is reported", || lost.load(Ordering::Relaxed));
    drop(watch);
}

/// An owner that may not search an ancestor any more has not lost its file.
#[cfg(target_os = "linux")]
#[test]
fn owner_that_may_no_longer_search_an_ancestor_has_not_lost() {
    use tenure_tests::run_as::{Commons, RunAs, USER, set_mode};
    let Some(commons) = Commons::new() else {
        return;
    };
    let ancestor = commons.dir("a", 0, 0o755);
    let locks = commons.dir("a/locks", USER, 0o755);
    let program = RunAs::user(USER).command(commons.copy_of(OWNER));
    let mut owner = Owner::start(program, &locks, "k");
    assert!(owner.answer().starts_with("held "));
    set_mode(&ancestor, 0o700);
    assert_eq!(owner.tell("lost"), "false");
    fs::remove_file(locks.join("name_k.lock")).unwrap();
    assert_eq!(owner.tell("lost"), "true");
}

//! T10: a forked child never releases its parent's lock. T2: a child that inherited it keeps it.

use tenure::State;
use tenure_tests::eventually;

use crate::{Orphan, Scene};

#[test]
fn a_forked_child_that_drops_its_copy_releases_nothing() {
    let scene = Scene::new();
    let mut owner = scene.owner();
    let _child = Orphan::new(&owner.tell("fork-drop"));
    // The child has dropped its copy once it sleeps.
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert!(scene.file().exists());
    assert_eq!(
        scene.take().unwrap_err().holder().unwrap().pid(),
        Some(owner.pid())
    );
    assert_eq!(owner.tell("lost"), "false");
}

#[test]
fn a_release_counts_even_if_a_forked_child_still_has_the_descriptors() {
    let scene = Scene::new();
    let mut owner = scene.owner();
    let _child = Orphan::new(&owner.tell("fork"));
    assert_eq!(owner.tell("release"), "released");
    let tenure = scene.take().expect("released for the child too");
    assert!(scene.take().unwrap_err().is_held());
    drop(tenure);
}

/// The file stays, so the child's copy of its descriptor must not keep the lock.
#[test]
fn a_release_that_keeps_the_file_counts_for_a_forked_child_too() {
    let scene = Scene::new();
    let mut command = std::process::Command::new(crate::OWNER);
    command.arg("--keep-file");
    let mut owner = tenure_tests::Owner::start(command, scene.dir(), "k");
    assert!(owner.answer().starts_with("held "));
    let _child = Orphan::new(&owner.tell("fork"));
    assert_eq!(owner.tell("release"), "released");
    assert!(scene.file().exists());
    drop(scene.take().expect("released for the child too"));
}

#[test]
fn after_the_owner_dies_a_child_that_inherited_the_lock_keeps_everyone_out() {
    let scene = Scene::new();
    let mut owner = scene.owner();
    let child = Orphan::new(&owner.tell("fork"));
    owner.kill();
    let error = scene.take().unwrap_err();
    assert!(error.is_held());
    assert_eq!(
        error.holder().unwrap().pid(),
        None,
        "the recorded owner is dead: {error}"
    );
    assert!(matches!(scene.status().state(), State::Held(_)));
    drop(child);
    eventually("the key is free once the child is gone", || {
        scene.take().is_ok()
    });
}

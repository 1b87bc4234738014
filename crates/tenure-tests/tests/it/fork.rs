//! T10: a forked child never releases its parent's lock. T2: a child that inherited the lock keeps
//! it.

use tenure::State;
use tenure_tests::eventually;

use crate::{Fixture, Orphan};

#[test]
fn forked_child_that_drops_its_copy_releases_nothing() {
    let fixture = Fixture::new();
    let mut owner = fixture.owner();
    let _child = Orphan::new(&owner.request("fork-drop"));
    // The child does not report that it has dropped its copy of the guard. The test waits long
    // enough for a wrong release to take effect.
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert!(fixture.file().exists());
    assert_eq!(
        fixture.try_acquire().unwrap_err().holder().unwrap().pid(),
        Some(owner.pid())
    );
    assert_eq!(owner.request("lost"), "false");
}

#[test]
fn release_frees_the_key_while_a_forked_child_has_the_descriptors() {
    let fixture = Fixture::new();
    let mut owner = fixture.owner();
    let _child = Orphan::new(&owner.request("fork"));
    assert_eq!(owner.request("release"), "released");
    let tenure = fixture
        .try_acquire()
        .expect("the lock of the child's copy is released too");
    assert!(fixture.try_acquire().unwrap_err().is_held());
    drop(tenure);
}

/// A kept file has the same inode for the next owner, so the child's copy of the descriptor must
/// not keep its lock.
#[test]
fn release_of_a_kept_file_frees_the_key_while_a_forked_child_has_the_descriptors() {
    let fixture = Fixture::new();
    let mut command = std::process::Command::new(crate::OWNER);
    command.arg("--keep-file");
    let mut owner = tenure_tests::Owner::start(command, fixture.dir(), "k");
    assert!(owner.answer().starts_with("held "));
    let _child = Orphan::new(&owner.request("fork"));
    assert_eq!(owner.request("release"), "released");
    assert!(fixture.file().exists());
    drop(
        fixture
            .try_acquire()
            .expect("the lock of the child's copy is released too"),
    );
}

#[test]
fn child_that_inherited_the_lock_keeps_the_key_after_the_owner_dies() {
    let fixture = Fixture::new();
    let mut owner = fixture.owner();
    let child = Orphan::new(&owner.request("fork"));
    owner.kill();
    let error = fixture.try_acquire().unwrap_err();
    assert!(error.is_held());
    assert_eq!(
        error.holder().unwrap().pid(),
        None,
        "the recorded owner is dead: {error}"
    );
    assert!(matches!(fixture.status().state(), State::Held(_)));
    drop(child);
    eventually("the key is free after the child has exited", || {
        fixture.try_acquire().is_ok()
    });
}

//! Exception to T6: lock files that are kept. T3, S9: a lock whose record cannot be written is
//! still held.

use std::fs;
use std::process::Command;

use tenure::State;
#[cfg(target_os = "linux")]
use tenure::{Key, Proof, Store};
use tenure_tests::Owner;
#[cfg(target_os = "linux")]
use tenure_tests::disk::SmallDisk;

use crate::guard::logged;
use crate::{Fixture, OWNER};

fn keeping(fixture: &Fixture) -> Owner {
    let mut command = Command::new(OWNER);
    command.arg("--keep-file");
    let mut owner = Owner::start(command, fixture.dir(), "k");
    assert!(owner.answer().starts_with("held "));
    owner
}

#[test]
fn kept_file_has_the_same_length_from_its_creation_to_the_next_owner() {
    let fixture = Fixture::new();
    let length = || fs::metadata(fixture.file()).unwrap().len();
    let mut owner = keeping(&fixture);
    assert_eq!(length(), 4096);
    assert_eq!(owner.request("release"), "released");
    assert_eq!(length(), 4096);
    assert!(matches!(fixture.status().state(), State::Free));
    let mut owner = keeping(&fixture);
    assert_eq!(fixture.status().holder().unwrap().pid(), Some(owner.pid()));
    owner.kill();
    assert_eq!(length(), 4096);
    assert!(matches!(fixture.status().state(), State::Stale(_)));
}

/// An earlier build wrote `released_at` but did not pad the file to 4 KiB. This build must take the
/// file over and pad it.
#[test]
fn kept_file_of_an_earlier_build_is_taken_over_and_padded() {
    let fixture = Fixture::new();
    let short = r#"{"pid":77,"token":5,"released_at":"2026-01-30T12:00:00Z"}"#;
    fs::write(fixture.file(), short).unwrap();
    assert!(matches!(fixture.status().state(), State::Free));
    let mut owner = keeping(&fixture);
    assert_eq!(owner.request("release"), "released");
    assert_eq!(fs::metadata(fixture.file()).unwrap().len(), 4096);
}

#[cfg(target_os = "linux")]
#[test]
fn kept_file_names_its_owner_on_a_full_disk() {
    use std::os::unix::fs::MetadataExt;
    if !crate::root("mounting a small disk") {
        return;
    }
    let disk = SmallDisk::mount();
    let fixture = Fixture {
        store: Store::in_dir(disk.path().join("locks")),
        ..Fixture::new()
    };
    let claim = || fixture.store.claim(&fixture.key).keep_file(true);
    claim().try_acquire().unwrap().release().unwrap();
    assert!(fs::metadata(fixture.file()).unwrap().blocks() >= 8);
    disk.fill();
    // On a full disk, a lock record that is longer than the earlier ones still fits into the padded
    // file.
    let tenure = claim().field("note", "x".repeat(2000)).try_acquire();
    let tenure = tenure.unwrap();
    assert!(tenure.record_error().is_none());
    let pid = fixture.try_acquire().unwrap_err().holder().unwrap().pid();
    assert_eq!(pid, Some(std::process::id()));
    tenure.release().unwrap();
    assert!(matches!(fixture.status().state(), State::Free));
}

#[cfg(target_os = "linux")]
#[test]
fn new_lock_on_a_full_disk_is_held_without_a_record_until_space_is_freed() {
    if !crate::root("mounting a small disk") {
        return;
    }
    let disk = SmallDisk::mount();
    let store = Store::in_dir(disk.path());
    let key = Key::name("k").unwrap();
    disk.fill();
    let (tenure, text) = logged(|| store.claim(&key).try_acquire().unwrap());
    assert_eq!(text.matches("WARN").count(), 1, "{text}");
    assert!(text.contains("no space left on device"), "{text}");
    let error = tenure.record_error().unwrap().io_error().unwrap();
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    let refused = store.claim(&key).try_acquire().unwrap_err();
    assert_eq!(refused.holder().unwrap().pid(), None, "{refused}");

    disk.empty();
    let mut tenure = tenure;
    tenure.set_field("space", "again").unwrap();
    assert!(tenure.record_error().is_none());
    let refused = store.claim(&key).try_acquire().unwrap_err();
    let pid = refused.holder().unwrap().pid();
    assert_eq!(pid, Some(std::process::id()), "{refused}");
    tenure.release().unwrap();
    assert!(!store.path_of(&key).exists());
}

#[cfg(target_os = "linux")]
#[test]
fn kept_file_is_locked_on_a_read_only_disk() {
    if !crate::root("mounting a small disk") {
        return;
    }
    let disk = SmallDisk::mount();
    let store = Store::in_dir(disk.path());
    let key = Key::name("k").unwrap();
    let claim = || store.claim(&key).keep_file(true);
    claim().try_acquire().unwrap().release().unwrap();
    disk.make_read_only();
    let tenure = claim().try_acquire().unwrap();
    let error = tenure.record_error().unwrap().io_error().unwrap();
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    assert!(claim().try_acquire().unwrap_err().is_held());
    let (released, text) = logged(|| tenure.release());
    released.unwrap();
    assert!(
        !text.contains("WARN"),
        "the warning was logged twice: {text}"
    );
    drop(claim().try_acquire().unwrap());
}

/// T5: the file still has the previous owner's lock record. It names a live process, which is not
/// the owner and must not be named.
#[cfg(target_os = "linux")]
#[test]
fn owner_is_unknown_to_others_if_its_lock_record_cannot_be_written() {
    for error in ["ENOSPC", "EIO", "EDQUOT"] {
        let fixture = Fixture::new();
        let unrelated = crate::UnrelatedProcess::new();
        let stale = format!(
            "{{\"pid\":{},\"started_at\":\"2026-01-30T12:00:00Z\"}}",
            unrelated.pid()
        );
        fs::write(fixture.file(), &stale).unwrap();
        let mut failing = Command::new("strace");
        failing
            .args(["--quiet=all", "--output=/dev/null", "--trace=pwrite64"])
            .args([&format!("--inject=pwrite64:error={error}"), OWNER]);
        let mut owner = Owner::start(failing, fixture.dir(), "k");
        let answer = owner.answer();
        assert!(answer.starts_with("held "), "{error}: {answer}");
        let answer = owner.request("record-error");
        assert!(
            answer.starts_with("cannot write the lock record to"),
            "{answer}"
        );

        let refused = fixture.try_acquire().unwrap_err();
        let holder = refused.holder().unwrap();
        assert_eq!((holder.pid(), holder.proof()), (None, Proof::Unknown));
        assert!(!holder.is_reading(), "{refused}");
        let unrelated = unrelated.pid().to_string();
        assert!(!refused.to_string().contains(&unrelated), "{refused}");
        assert_eq!(owner.request("release"), "released");
        drop(fixture.try_acquire().unwrap());
    }
}

/// An owner that could not mark its lock record as released finds that record on its next acquire.
/// No other owner has crashed, so no takeover is logged.
#[test]
fn process_that_finds_its_own_record_logs_no_takeover() {
    let fixture = Fixture::new();
    fixture.try_acquire().unwrap().leave().unwrap();
    let (tenure, text) = logged(|| fixture.try_acquire().unwrap());
    assert!(!text.contains("WARN"), "{text}");
    drop(tenure);
}

/// A command that root runs must not lock the directory's user out, even if it is killed.
#[cfg(target_os = "linux")]
#[test]
fn file_that_root_creates_belongs_to_the_owner_of_the_directory() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
    if !crate::root("acting as another user") {
        return;
    }
    let fixture = Fixture::new();
    fs::set_permissions(fixture.dir(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = fixture.dir().join("owner");
    fs::copy(OWNER, &program).unwrap();
    let theirs = fixture.dir().join("theirs");
    fs::create_dir(&theirs).unwrap();
    chown(&theirs, Some(65534), Some(65533)).unwrap();
    let file = theirs.join("f.lock");
    let key = file.to_str().unwrap();

    let mut root = Owner::holding(OWNER, fixture.dir(), key);
    let meta = fs::metadata(&file).unwrap();
    assert_eq!((meta.uid(), meta.gid()), (65534, 65533));
    assert_eq!(meta.mode() & 0o7777, 0o600);
    let as_user = || {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(&program);
        Owner::start(command, &theirs, key)
    };
    let refused = as_user().answer();
    assert!(refused.starts_with("refused "), "{refused}");
    root.kill();
    let mut user = as_user();
    let answer = user.answer();
    assert!(answer.starts_with("held "), "{answer}");
    user.kill();
    // Root must accept a lock file that belongs to the owner of the directory, although that owner
    // is another user.
    drop(Owner::holding(OWNER, fixture.dir(), key));
    drop(
        Store::in_dir(fixture.dir())
            .claim(&Key::file(file).unwrap())
            .try_acquire()
            .unwrap(),
    );
}

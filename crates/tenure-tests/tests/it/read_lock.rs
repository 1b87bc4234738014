//! T3: read locks exclude owners and leave nothing behind.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use tenure::State;
use tenure_tests::Owner;

use crate::{Fixture, OWNER};

fn reader(fixture: &Fixture) -> Owner {
    let mut command = Command::new(OWNER);
    command.arg("--read");
    Owner::start(command, fixture.dir(), "k")
}

/// Every file of the lock directory with its content, with which tests check that a read lock
/// changes nothing.
fn content(fixture: &Fixture) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = fs::read_dir(fixture.dir()).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect()
}

#[test]
fn killed_reader_leaves_nothing_behind() {
    let fixture = Fixture::new();
    assert_eq!(reader(&fixture).answer(), "no file");
    assert_eq!(content(&fixture), BTreeMap::new());

    let keep = || fixture.store.claim(&fixture.key).keep_file(true);
    keep().try_acquire().unwrap().release().unwrap();
    let before = content(&fixture);
    let mut killed = reader(&fixture);
    let mut second = reader(&fixture);
    for reader in [&mut killed, &mut second] {
        let answer = reader.answer();
        assert!(answer.starts_with("reading "), "{answer}");
    }
    let refused = keep().try_acquire().unwrap_err();
    assert!(refused.holder().unwrap().is_reading(), "{refused}");
    let text = refused.to_string();
    assert!(
        text.contains("held by a process with a read lock"),
        "{text}"
    );
    killed.kill();
    assert!(
        keep().try_acquire().unwrap_err().is_held(),
        "one process still has a read lock"
    );
    drop(second);
    assert_eq!(content(&fixture), before);
    drop(keep().try_acquire().expect("no reader is left"));
}

#[test]
fn read_lock_is_refused_while_the_key_is_owned_and_names_the_owner() {
    let fixture = Fixture::new();
    let owner = fixture.owner();
    let answer = reader(&fixture).answer();
    let named = format!("refused k is held by pid {} ", owner.pid());
    assert!(answer.starts_with(&named), "{answer}");
}

#[cfg(target_os = "linux")]
#[test]
fn read_lock_is_refused_while_an_owner_without_its_file_is_running() {
    let fixture = Fixture::new();
    let owner = fixture.owner();
    fs::remove_file(fixture.file()).unwrap();
    let answer = reader(&fixture).answer();
    let named = format!("refused k is held by pid {} ", owner.pid());
    assert!(answer.starts_with(&named), "{answer}");
}

#[test]
fn stop_of_a_stale_key_reports_a_read_lock_on_it() {
    let fixture = Fixture::new();
    fixture.owner().kill();
    assert!(matches!(fixture.status().state(), State::Stale(_)));
    let mut reading = reader(&fixture);
    assert!(reading.answer().starts_with("reading "));
    let error = fixture.store.stop(&fixture.key).run().unwrap_err();
    assert!(error.is_stop_refused(), "{error}");
    assert!(error.to_string().contains("read lock"), "{error}");
    reading.kill();
    fixture.store.stop(&fixture.key).run().unwrap();
    assert!(!fixture.file().exists());
}

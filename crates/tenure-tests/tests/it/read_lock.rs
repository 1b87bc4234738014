//! T3: locks that only keep owners out leave nothing behind.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use tenure::State;
use tenure_tests::Owner;

use crate::{OWNER, Scene};

fn reader(scene: &Scene) -> Owner {
    let mut command = Command::new(OWNER);
    command.arg("--read");
    Owner::start(command, scene.dir(), "k")
}

/// Every file of a directory with its content.
fn content(scene: &Scene) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = fs::read_dir(scene.dir()).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect()
}

#[test]
fn killed_reader_leaves_nothing_behind() {
    let scene = Scene::new();
    assert_eq!(reader(&scene).answer(), "no file");
    assert_eq!(content(&scene), BTreeMap::new());

    let keep = || scene.store.claim(&scene.key).keep_file(true);
    keep().try_acquire().unwrap().release().unwrap();
    let before = content(&scene);
    let mut killed = reader(&scene);
    let mut second = reader(&scene);
    for reader in [&mut killed, &mut second] {
        let answer = reader.answer();
        assert!(answer.starts_with("reading "), "{answer}");
    }
    let refused = keep().try_acquire().unwrap_err();
    assert!(refused.holder().unwrap().is_reading(), "{refused}");
    let text = refused.to_string();
    assert!(text.contains("held by a process that only reads"), "{text}");
    killed.kill();
    assert!(
        keep().try_acquire().unwrap_err().is_held(),
        "one still reads"
    );
    drop(second);
    assert_eq!(content(&scene), before);
    drop(keep().try_acquire().expect("nobody reads"));
}

#[test]
fn reader_is_refused_while_there_is_an_owner_and_names_it() {
    let scene = Scene::new();
    let owner = scene.owner();
    let answer = reader(&scene).answer();
    let named = format!("refused k is held by pid {} ", owner.pid());
    assert!(answer.starts_with(&named), "{answer}");
}

#[cfg(target_os = "linux")]
#[test]
fn reader_is_refused_while_an_owner_without_file_lives() {
    let scene = Scene::new();
    let owner = scene.owner();
    fs::remove_file(scene.file()).unwrap();
    let answer = reader(&scene).answer();
    let named = format!("refused k is held by pid {} ", owner.pid());
    assert!(answer.starts_with(&named), "{answer}");
}

#[test]
fn stop_of_a_stale_key_reports_the_reader_that_is_in_the_way() {
    let scene = Scene::new();
    scene.owner().kill();
    assert!(matches!(scene.status().state(), State::Stale(_)));
    let mut reading = reader(&scene);
    assert!(reading.answer().starts_with("reading "));
    let error = scene.store.stop(&scene.key).run().unwrap_err();
    assert!(error.is_stop_refused(), "{error}");
    assert!(error.to_string().contains("reads"), "{error}");
    reading.kill();
    scene.store.stop(&scene.key).run().unwrap();
    assert!(!scene.file().exists());
}

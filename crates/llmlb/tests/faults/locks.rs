//! Lock files that nobody holds, whatever they say.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::json;
use uuid::Uuid;

use crate::books::Policy;
use crate::fault::{Fault, Mix};
use crate::process::Running;
use crate::reckoning::Reckoning;
use crate::world::World;
use testkit::{random::Random, until};

/// The lock files that a deliverer leaves behind when it is killed in the middle of its work.
fn left_behind(world: &World) -> Vec<PathBuf> {
    world.receiver.state().mix = Mix::of(&[(1, Fault::HangThenCommit)]);
    world.stage_fresh(20, 0).assert_code(0);
    let deliverer = world.start_deliverer();
    until("it is in the middle", || {
        world.receiver.state().tally.requests > 0
    });
    deliverer.kill();
    world.receiver.behave();
    let mut found = vec![world.staging().join(".consolidation.lock")];
    let mut dirs = vec![world.data().to_owned()];
    while let Some(dir) = dirs.pop() {
        for file in fs::read_dir(dir).unwrap().map(Result::unwrap) {
            let (path, name) = (file.path(), file.file_name());
            if path.is_dir() {
                dirs.push(path);
            } else if name.to_string_lossy().ends_with(".lock") && !found.contains(&path) {
                found.push(path);
            }
        }
    }
    assert!(
        found.len() > 1,
        "the lock of delivery is not found: {found:?}"
    );
    found
}

#[test]
fn a_lock_file_that_nobody_holds_stops_nobody() {
    let world = World::new(Policy::ByBatch { known: 409 }, Mix::none());
    let locks = left_behind(&world);
    world.deliver_now().assert_code(0);

    let mut gone = Command::new("true").spawn().unwrap();
    let dead = gone.id();
    gone.wait().unwrap();
    let foreign = Running::start(
        Command::new("sleep").arg("1000").stdout(Stdio::null()),
        &world.path("foreign.log"),
    );
    let victim = world.path("victim.json");
    fs::write(&victim, "somebody else's").unwrap();

    let record = |pid: &str| {
        format!(
            r#"{{"pid":{pid},"pod_name":"local","started_at":"2026-01-30T12:00:00Z","consumed_ids":[]}}"#
        )
    };
    let consumed = |names: &[&str], is_written: bool| {
        json!({
            "pid": dead, "pod_name": "local", "started_at": "2026-01-30T12:00:00Z",
            "consumed_ids": names, "batch_size": 7, "written": is_written,
        })
        .to_string()
    };
    let never = format!("{}.jsonl", Uuid::now_v7());
    let mut contents: Vec<Vec<u8>> = [
        String::new(),
        "\n".to_owned(),
        "garbage".to_owned(),
        "{}".to_owned(),
        r#"{"pid":"#.to_owned(),
        "\0".repeat(4096),
        "[".repeat(100_000),
        record(&dead.to_string()),
        record(&foreign.pid().to_string()),
        record(&std::process::id().to_string()),
        record("1"),
        record("0"),
        record("-1"),
        record("2147483648"),
        record("99999999999999999999"),
        record("1.5"),
        record("\"x\""),
        // A crashed owner's set: of entries that are not there, and of names that are no entries.
        consumed(&[&never], false),
        consumed(&[&never], true),
        consumed(&["../victim.json", "../../victim.json", "", ".", "/"], true),
        consumed(
            &["../victim.json", "../../victim.json", "", ".", "/"],
            false,
        ),
        json!({"pid": dead, "consumed_ids": 7, "batch_size": -3, "written": "x"}).to_string(),
        json!({"pid": dead, "consumed_ids": [&never], "batch_size": 0}).to_string(),
    ]
    .map(String::into_bytes)
    .to_vec();
    contents.push(Random::of_run(5).bytes(3000));

    let victims = world.path("data/victim.json");
    fs::write(&victims, "somebody else's").unwrap();
    for content in &contents {
        for lock in &locks {
            fs::write(lock, content).unwrap();
        }
        let shown = String::from_utf8_lossy(&content[..content.len().min(100)]).into_owned();
        world.stage_fresh(5, 0).assert_code(0);
        let outcome = world.run("consolidate");
        assert_eq!(outcome.code, Some(0), "{shown}: {outcome:#?}");
        for lock in &locks {
            fs::write(lock, content).unwrap();
        }
        let outcome = world.deliver_now();
        assert_eq!(outcome.code, Some(0), "{shown}: {outcome:#?}");
        assert_eq!(world.waiting(), 0, "{shown}: {outcome:#?}");
        for path in [&victim, &victims] {
            let kept = fs::read(path).is_ok_and(|bytes| bytes == b"somebody else's");
            assert!(kept, "{shown}: {} is gone", path.display());
        }
    }
    let what = format!(
        "{} lock files with {} contents",
        locks.len(),
        contents.len()
    );
    Reckoning::of(&what, &world).must_be_clean();
}

/// What is in the way is named, not removed, and nothing is lost meanwhile.
#[test]
fn a_directory_in_the_place_of_a_lock_file_is_named() {
    let world = World::new(Policy::ByBatch { known: 409 }, Mix::none());
    let locks = left_behind(&world);
    for lock in &locks {
        let _ = fs::remove_file(lock);
        fs::create_dir(lock).unwrap();
        fs::write(lock.join("inside"), "somebody else's").unwrap();
        world.stage_fresh(5, 0).assert_code(0);
        let outcome = world.deliver_now();
        outcome.assert_code(1);
        let name = lock.file_name().unwrap().to_string_lossy().into_owned();
        assert!(outcome.stderr.contains(&name), "{outcome:#?}");
        assert!(lock.join("inside").exists());
        fs::remove_dir_all(lock).unwrap();
        world.deliver_now().assert_code(0);
    }
    Reckoning::of("directories in the place of lock files", &world).must_be_clean();
}

/// A live deliverer is named, and the run that was skipped is no failure.
#[test]
fn a_run_that_finds_another_deliverer_is_skipped_and_says_so() {
    let world = World::new(
        Policy::ByBatch { known: 409 },
        Mix::of(&[(1, Fault::HangThenCommit)]),
    );
    world.stage_fresh(400, 0).assert_code(0);
    let deliverer = world.start_deliverer();
    until("it is in the middle", || {
        world.receiver.state().tally.requests > 0
    });
    let skipped = world.deliver_now();
    skipped.assert_code(0);
    let said = format!("{}{}", skipped.stdout, skipped.stderr);
    assert!(said.contains("skipped"), "{skipped:#?}");
    assert!(said.contains(&deliverer.pid().to_string()), "{skipped:#?}");
    world.receiver.behave();
    until("all is delivered", || world.waiting() == 0);
    deliverer.terminate();
    Reckoning::of("a second deliverer", &world).must_be_clean();
}

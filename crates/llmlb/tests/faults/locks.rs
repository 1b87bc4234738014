//! Lock files without an owner, with any content.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::json;
use uuid::Uuid;

use crate::audit::Audit;
use crate::billing::Policy;
use crate::fault::{Fault, Mix};
use crate::process::Running;
use crate::world::World;
use testkit::{random::Random, until};

/// Kills a deliverer in the middle of a delivery. Returns the lock files that it leaves.
fn stale_locks(world: &World) -> Vec<PathBuf> {
    world.receiver.state().mix = Mix::new(&[(1, Fault::HangThenCommit)]);
    world.stage_fresh(20, 0).assert_code(0);
    let deliverer = world.start_deliverer();
    until("the deliverer sends a batch", || {
        world.receiver.state().tally.requests > 0
    });
    deliverer.kill();
    world.receiver.end_faults();
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
fn stale_lock_file_with_any_content_does_not_stop_delivery() {
    let world = World::new(Policy::ByBatch { known: 409 }, Mix::none());
    let locks = stale_locks(&world);
    world.deliver_now().assert_code(0);

    let mut ended = Command::new("true").spawn().unwrap();
    let dead = ended.id();
    ended.wait().unwrap();
    let foreign = Running::start(
        Command::new("sleep").arg("1000").stdout(Stdio::null()),
        &world.path("foreign.log"),
    );
    let victim = world.path("victim.json");
    fs::write(&victim, "foreign").unwrap();

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
    let missing = format!("{}.jsonl", Uuid::now_v7());
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
        // The lock file of a crashed owner lists the entries of its snapshot: missing ones, and
        // names that are no entries. Paths to files outside of the staging directory must not be
        // consolidated or deleted.
        consumed(&[&missing], false),
        consumed(&[&missing], true),
        consumed(&["../victim.json", "../../victim.json", "", ".", "/"], true),
        consumed(
            &["../victim.json", "../../victim.json", "", ".", "/"],
            false,
        ),
        json!({"pid": dead, "consumed_ids": 7, "batch_size": -3, "written": "x"}).to_string(),
        json!({"pid": dead, "consumed_ids": [&missing], "batch_size": 0}).to_string(),
    ]
    .map(String::into_bytes)
    .to_vec();
    contents.push(Random::of_run(5).bytes(3000));

    let victim_in_data = world.path("data/victim.json");
    fs::write(&victim_in_data, "foreign").unwrap();
    for content in &contents {
        for lock in &locks {
            fs::write(lock, content).unwrap();
        }
        let excerpt = String::from_utf8_lossy(&content[..content.len().min(100)]).into_owned();
        world.stage_fresh(5, 0).assert_code(0);
        let outcome = world.run("consolidate");
        assert_eq!(outcome.code, Some(0), "{excerpt}: {outcome:#?}");
        for lock in &locks {
            fs::write(lock, content).unwrap();
        }
        let outcome = world.deliver_now();
        assert_eq!(outcome.code, Some(0), "{excerpt}: {outcome:#?}");
        assert_eq!(world.waiting(), 0, "{excerpt}: {outcome:#?}");
        for path in [&victim, &victim_in_data] {
            let kept = fs::read(path).is_ok_and(|bytes| bytes == b"foreign");
            assert!(kept, "{excerpt}: {} is gone", path.display());
        }
    }
    let title = format!(
        "{} lock files with {} contents",
        locks.len(),
        contents.len()
    );
    Audit::new(&title, &world).print_and_assert_clean();
}

/// Spool cannot lock a directory. It must name it in the error and preserve it, and no record may
/// be lost.
#[test]
fn directory_instead_of_a_lock_file_is_named_and_preserved() {
    let world = World::new(Policy::ByBatch { known: 409 }, Mix::none());
    let locks = stale_locks(&world);
    for lock in &locks {
        let _ = fs::remove_file(lock);
        fs::create_dir(lock).unwrap();
        fs::write(lock.join("inside"), "foreign").unwrap();
        world.stage_fresh(5, 0).assert_code(0);
        let outcome = world.deliver_now();
        outcome.assert_code(1);
        let name = lock.file_name().unwrap().to_string_lossy().into_owned();
        assert!(outcome.stderr.contains(&name), "{outcome:#?}");
        assert!(lock.join("inside").exists());
        fs::remove_dir_all(lock).unwrap();
        world.deliver_now().assert_code(0);
    }
    Audit::new("directories instead of lock files", &world).print_and_assert_clean();
}

/// A run that finds another deliverer is skipped. The message must name that process, and the exit
/// code must be 0, otherwise a scheduled run would count as failed.
#[test]
fn delivery_is_skipped_while_another_deliverer_runs() {
    let world = World::new(
        Policy::ByBatch { known: 409 },
        Mix::new(&[(1, Fault::HangThenCommit)]),
    );
    world.stage_fresh(400, 0).assert_code(0);
    let deliverer = world.start_deliverer();
    until("the deliverer sends a batch", || {
        world.receiver.state().tally.requests > 0
    });
    let skipped = world.deliver_now();
    skipped.assert_code(0);
    let output = format!("{}{}", skipped.stdout, skipped.stderr);
    assert!(output.contains("skipped"), "{skipped:#?}");
    assert!(
        output.contains(&deliverer.pid().to_string()),
        "{skipped:#?}"
    );
    world.receiver.end_faults();
    until("everything is delivered", || world.waiting() == 0);
    deliverer.terminate();
    Audit::new("a second deliverer", &world).print_and_assert_clean();
}

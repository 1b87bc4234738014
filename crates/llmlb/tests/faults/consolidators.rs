//! Many consolidators at once on one stale lock: each record ends in exactly one batch.

use std::collections::HashMap;
use std::fs;
use std::thread;
use std::time::Duration;

use serde::Deserialize;

use crate::audit::Audit;
use crate::billing::Policy;
use crate::fault::{Fault, Mix};
use crate::process::Running;
use crate::world::{World, from_env, is_batch, names};
use testkit::until;

fn batches_per_record(world: &World) -> HashMap<String, usize> {
    #[derive(Deserialize)]
    struct Id {
        id: String,
    }
    #[derive(Deserialize)]
    struct Batch {
        records: Vec<Id>,
    }
    let mut counts = HashMap::new();
    let spool = world.data().join("spool");
    for name in names(&spool, is_batch) {
        let text = fs::read(spool.join(name)).unwrap();
        let batch: Batch = serde_json::from_slice(&text).unwrap();
        for record in batch.records {
            *counts.entry(record.id).or_default() += 1;
        }
    }
    counts
}

#[test]
fn eight_consolidators_on_a_stale_lock_write_each_record_once() {
    let rounds = from_env("FAULT_ROUNDS").unwrap_or(20);
    let mut world = World::new(Policy::ByBatch { known: 409 }, Mix::none());
    let lock = world.staging().join(".consolidation.lock");
    let (mut stale, mut killed) = (0, 0);
    for round in 0..rounds {
        for _ in 0..2 {
            world.stage_fresh(50, 0).assert_code(0);
        }
        world.drop_files(20, 0);
        let size = 7 + round % 5;
        let arguments = format!("consolidate --batch-size {size}");
        // Kill a consolidator up to 15 ms after its lock file appears. The consolidator leaves a
        // stale lock, at a random point of its consolidation.
        let victim = Running::start(&mut world.usage(&arguments), &world.path("log"));
        let pause = Duration::from_micros(world.random.below(15_000));
        while fs::metadata(&lock).map_or(0, |file| file.len()) == 0 && !lock.exists() {
            thread::sleep(Duration::from_micros(100));
            if world.waiting() == 0 {
                break;
            }
        }
        thread::sleep(pause);
        drop(victim);
        stale += u64::from(lock.exists());
        let mut processes: Vec<_> = (0..8)
            .map(|_| Running::start(&mut world.usage(&arguments), &world.path("log")))
            .collect();
        for _ in 0..world.random.below(8) {
            let victim = world.random.below(processes.len() as u64);
            let victim = processes.swap_remove(victim.try_into().unwrap());
            thread::sleep(Duration::from_micros(world.random.below(10_000)));
            killed += u64::from(victim.ended().is_none());
            drop(victim);
        }
        for process in processes {
            let status = testkit::eventually("the process ends", || process.ended());
            assert!(
                matches!(status.code(), Some(0 | 1)),
                "{status}: {}",
                world.log()
            );
        }
    }
    // One consolidator without competitors finishes the rest.
    world.run("consolidate --batch-size 7").assert_code(0);
    let counts = batches_per_record(&world);
    let acknowledged = world.acknowledged();
    let absent = acknowledged
        .iter()
        .filter(|(id, _)| !counts.contains_key(id))
        .count();
    let doubled = counts.values().filter(|count| **count > 1).count();
    println!(
        "8 consolidators, {rounds} rounds, {stale} with a stale lock, {killed} killed: {} records, absent {absent}, in two batches {doubled}",
        counts.len()
    );
    assert_eq!((absent, doubled), (0, 0));
    assert_eq!(counts.len(), acknowledged.len());
    assert!(stale > 0 && killed > 0);
    world.kills = stale + killed;
    world.drain();
    Audit::new("consolidated batches, delivered", &world).print_and_assert_clean();
}

/// A consolidator stops in the middle of a snapshot, and its batches so far are split and delivered.
/// Then it is killed, and the next consolidator finishes the snapshot.
#[test]
fn records_delivered_before_their_snapshot_was_finished_are_not_delivered_again() {
    let mix = Mix::new(&[(1, Fault::TooLarge(5))]);
    let world = World::new(Policy::ByBatch { known: 409 }, mix);
    world.stage_fresh(4000, 0).assert_code(0);
    let spool = world.data().join("spool");
    let mut command = world.usage("consolidate --batch-size 10");
    let halted = Running::start(&mut command, &world.path("log"));
    until("some batches are written", || {
        names(&spool, is_batch).len() >= 20
    });
    halted.halt();
    let written = names(&spool, is_batch).len();
    assert!(
        written < 400,
        "the consolidator was too fast: {written} batches"
    );
    // The lock prevents consolidation, but not delivery.
    let billed = || world.receiver.state().billing.billed.len();
    until("the written batches are delivered", || {
        world.deliver_now();
        billed() == 10 * written
    });
    drop(halted);
    world.drain();
    let title = format!(
        "{} records delivered before their snapshot was finished",
        10 * written
    );
    Audit::new(&title, &world).print_and_assert_clean();
}

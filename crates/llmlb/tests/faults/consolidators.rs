//! Many consolidators at once over one stale lock: each record ends in exactly one batch.

use std::collections::HashMap;
use std::fs;
use std::thread;
use std::time::Duration;

use serde::Deserialize;

use crate::books::Policy;
use crate::fault::{Fault, Mix};
use crate::process::Running;
use crate::reckoning::Reckoning;
use crate::world::{World, from_env, is_batch, names};
use testkit::until;

/// How often each record is in a batch.
fn counted(world: &World) -> HashMap<String, usize> {
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
fn eight_consolidators_over_one_stale_lock() {
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
        let words = format!("consolidate --batch-size {size}");
        // The one whose lock is stale: it is killed as soon as its set is fixed, or soon after.
        let victim = Running::start(&mut world.usage(&words), &world.path("log"));
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
        let mut crowd: Vec<_> = (0..8)
            .map(|_| Running::start(&mut world.usage(&words), &world.path("log")))
            .collect();
        for _ in 0..world.random.below(8) {
            let victim = world.random.below(crowd.len() as u64);
            let victim = crowd.swap_remove(victim.try_into().unwrap());
            thread::sleep(Duration::from_micros(world.random.below(10_000)));
            killed += u64::from(victim.ended().is_none());
            drop(victim);
        }
        for one in crowd {
            let status = testkit::eventually("it ends", || one.ended());
            assert!(
                matches!(status.code(), Some(0 | 1)),
                "{status}: {}",
                world.log()
            );
        }
    }
    // Nobody fights any more: what is left is finished.
    world.run("consolidate --batch-size 7").assert_code(0);
    let counts = counted(&world);
    let acknowledged = world.acknowledged();
    let absent = acknowledged
        .iter()
        .filter(|(id, _)| !counts.contains_key(id))
        .count();
    let doubled = counts.values().filter(|count| **count > 1).count();
    println!(
        "8 consolidators, {rounds} rounds, {stale} over a stale lock, {killed} killed: {} records, absent {absent}, in two batches {doubled}",
        counts.len()
    );
    assert_eq!((absent, doubled), (0, 0));
    assert_eq!(counts.len(), acknowledged.len());
    assert!(stale > 0 && killed > 0);
    world.kills = stale + killed;
    world.drain();
    Reckoning::of("what they consolidated, delivered", &world).must_be_clean();
}

/// A consolidator halts in the middle of a set; what it has written so far is delivered, after
/// being split; then it is killed, and the next one finishes the set. Nothing may come out twice.
#[test]
fn what_was_delivered_before_its_set_was_finished_is_not_delivered_again() {
    let mix = Mix::of(&[(1, Fault::TooLarge(5))]);
    let world = World::new(Policy::ByBatch { known: 409 }, mix);
    world.stage_fresh(4000, 0).assert_code(0);
    let spool = world.data().join("spool");
    let mut command = world.usage("consolidate --batch-size 10");
    let halted = Running::start(&mut command, &world.path("log"));
    until("it has written some batches", || {
        names(&spool, is_batch).len() >= 20
    });
    halted.halt();
    let written = names(&spool, is_batch).len();
    assert!(written < 400, "it was too fast: {written} batches");
    // It cannot consolidate, but it can deliver.
    let billed = || world.receiver.state().books.billed.len();
    until("what is there is delivered", || {
        world.deliver_now();
        billed() == 10 * written
    });
    drop(halted);
    world.drain();
    let what = format!(
        "{} records delivered before their set was finished",
        10 * written
    );
    Reckoning::of(&what, &world).must_be_clean();
}

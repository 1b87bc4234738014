//! Staging and delivery on a full disk.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use spool::{Durability, Record, Staging};

use crate::audit::Audit;
use crate::billing::Policy;
use crate::fault::{Fault, Mix};
use crate::mount_namespace::{
    Filler, Image, run_in_mount_namespace, run_on_image, small_world, world_on_image,
};
use crate::producer;
use crate::world::{StormConfig, World, storm_time};
use testkit::{eventually, until};

#[test]
fn acknowledged_records_are_delivered_from_a_full_disk() {
    run_in_mount_namespace("full_disk::deliver_from_full_disk");
}

#[test]
#[ignore = "runs in a mount namespace that another test creates"]
fn deliver_from_full_disk() {
    let policy = Policy::ByBatch { known: 409 };
    let world = small_world(policy, Mix::new(&[(1, Fault::Unavailable)]), 8);
    let filler = Filler::new(&world);
    // The second round checks that the space reserved for delivery is reserved again after its first use.
    for _ in 0..2 {
        world.receiver.state().mix = Mix::new(&[(1, Fault::Unavailable)]);
        world.stage_fresh(3000, 0).assert_code(0);
        world.drop_files(50, 0);
        world.deliver_now().assert_code(1);
        world.stage_fresh(3000, 0).assert_code(0);
        world.drop_files(50, 0);
        filler.fill();
        stage_until_full(&world);
        // A deliverer that starts on the full disk, while the receiver is unavailable, must not use
        // up the reserve: later runs need it.
        let deliverer = world.start_deliverer();
        thread::sleep(Duration::from_millis(500));
        deliverer.kill();
        stage_until_full(&world);
        world.receiver.end_faults();
        let mut outcome = world.deliver_now();
        // A run on the full disk may only consolidate some of the staged records. Its delivered
        // batches free space for the next run.
        for _ in 0..5 {
            if world.waiting() > 0 {
                outcome = world.deliver_now();
            }
        }
        assert_eq!(world.waiting(), 0, "{outcome:#?}");
        outcome.assert_code(0);
        filler.empty();
        world.stage_fresh(10, 0).assert_code(0);
        world.deliver_now().assert_code(0);
    }
    Audit::new("full disk, drained while it stays full", &world).print_and_assert_clean();
}

#[test]
fn full_tmpfs_is_drained_while_another_program_keeps_filling_it() {
    run_in_mount_namespace("full_disk::deliver_from_full_tmpfs");
}

#[test]
#[ignore = "runs in a mount namespace that another test creates"]
fn deliver_from_full_tmpfs() {
    deliver_while_others_fill("tmpfs", |policy, mix| small_world(policy, mix, 8));
}

#[test]
fn full_ext4_is_drained_while_another_program_keeps_filling_it() {
    run_on_image(Image::Ext4, "full_disk::deliver_from_full_ext4");
}

#[test]
#[ignore = "runs in a mount namespace that another test creates"]
fn deliver_from_full_ext4() {
    deliver_while_others_fill("ext4", |policy, mix| {
        world_on_image(policy, mix, Image::Ext4)
    });
}

#[test]
fn full_xfs_is_drained_while_another_program_keeps_filling_it() {
    run_on_image(Image::Xfs, "full_disk::deliver_from_full_xfs");
}

#[test]
#[ignore = "runs in a mount namespace that another test creates"]
fn deliver_from_full_xfs() {
    deliver_while_others_fill("xfs", |policy, mix| world_on_image(policy, mix, Image::Xfs));
}

/// Delivers everything from a full disk while another program allocates every block that is freed.
fn deliver_while_others_fill(name: &str, world: impl FnOnce(Policy, Mix) -> World) {
    let down = || Mix::new(&[(1, Fault::Unavailable)]);
    let mut world = world(Policy::ByBatch { known: 409 }, down());
    let filler = Filler::new(&world);
    let staged: Vec<_> = (0..1000).map(|_| producer::fresh(0)).collect();
    world.stage(&staged).assert_code(0);
    world.deliver_now().assert_code(1);
    world.stage_fresh(1000, 0).assert_code(0);
    world.drop_files(500, 0);
    // Start a producer that is killed once the disk is full. The producer leaves an open entry,
    // which delivery must recover without free space.
    let producer = world.start_producer(0);
    until("the producer has staged records", || {
        world.acknowledged().len() > 2600
    });
    filler.fill();
    world.kill(producer);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = EndOnDrop(&is_over);
        let (others, is_over) = (filler.clone(), &is_over);
        scope.spawn(move || {
            while !is_over.load(Ordering::SeqCst) {
                others.fill();
            }
        });
        for _ in 0..3 {
            let deliverer = world.start_deliverer();
            thread::sleep(Duration::from_millis(300));
            world.kill(deliverer);
        }
        world.receiver.end_faults();
        // Kill deliverers in the middle of a delivery: each restart must work without free space.
        for _ in 0..5 {
            let before = world.receiver.state().tally.requests;
            let deliverer = world.start_deliverer();
            until("some batches were sent", || {
                world.receiver.state().tally.requests > before + 5
            });
            world.kill(deliverer);
        }
        eventually("everything is delivered", || {
            world.deliver_now();
            (world.waiting() == 0).then_some(())
        });
        world.run("verify").assert_code(0);
        // The disk is full, but the file system may free a block at any time. Staging a record
        // therefore succeeds or fails with the error of a full disk; any other error is a defect.
        let outcome = world.stage_fresh(1, 0);
        assert!(
            outcome.code == Some(0) || outcome.stderr.contains("no space left"),
            "{outcome:#?}"
        );
    });
    filler.empty();
    // Staging records again after an error must not bill them again.
    world
        .run_with("stage", &producer::lines(&staged))
        .assert_code(0);
    world.stage_fresh(10, 0).assert_code(0);
    world.deliver_now().assert_code(0);
    world.run("verify").assert_code(0);
    let title = format!("{name}, drained while others kept filling it");
    Audit::new(&title, &world).print_and_assert_clean();
}

/// Guard that sets a flag when it is dropped. The flag ends the thread that fills the disk, also if
/// the test panics; otherwise the test would wait for the thread forever.
struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Stages records until staging fails. It must fail with the error of a full disk while the space
/// reserved for delivery stays unused.
fn stage_until_full(world: &World) {
    let rejected = eventually("the disk is full", || {
        Some(world.stage_fresh(200, 0)).filter(|outcome| outcome.code != Some(0))
    });
    rejected.assert_code(1);
    assert!(rejected.stderr.contains("no space left"), "{rejected:#?}");
}

#[test]
fn staging_succeeds_again_as_soon_as_there_is_space() {
    run_in_mount_namespace("full_disk::stage_again_after_full");
}

#[test]
#[ignore = "runs in a mount namespace that another test creates"]
fn stage_again_after_full() {
    let world = small_world(Policy::ByRecord, Mix::none(), 8);
    let filler = Filler::new(&world);
    let staging = Staging::open(world.staging()).unwrap();
    let mut rejected = 0;
    for _ in 0..3 {
        filler.fill();
        let mut waiting = Vec::new();
        for _ in 0..50 {
            let sample = producer::fresh(0);
            let record = Record::parse(&sample.text()).unwrap();
            match staging.stage(&record, Durability::Power) {
                Ok(()) => world.note(&[sample]),
                Err(error) => {
                    assert!(error.is_full(), "{error}");
                    rejected += 1;
                    waiting.push((sample, record));
                }
            }
        }
        filler.empty();
        for (sample, record) in waiting {
            staging.stage(&record, Durability::Power).unwrap();
            world.note(&[sample]);
        }
    }
    assert!(rejected > 0);
    staging.close().unwrap();
    world.drain();
    Audit::new(
        &format!("full disk, {rejected} records rejected and staged again"),
        &world,
    )
    .print_and_assert_clean();
}

#[test]
fn records_are_billed_once_on_a_disk_that_is_full_at_intervals() {
    run_in_mount_namespace("full_disk::storm_on_full_disk");
}

#[test]
#[ignore = "runs in a mount namespace that another test creates"]
fn storm_on_full_disk() {
    let mut world = small_world(Policy::ByBatch { known: 409 }, Mix::all(), 8);
    let filler = Filler::new(&world);
    let data = world.data().to_owned();
    let deadline = Instant::now() + storm_time();
    let others = thread::spawn(move || {
        let mut times = 0;
        while Instant::now() < deadline {
            filler.fill();
            thread::sleep(Duration::from_millis(300));
            filler.empty();
            thread::sleep(Duration::from_millis(200));
            times += 1;
        }
        times
    });
    world.storm(StormConfig {
        may_be_full: true,
        ..StormConfig::default()
    });
    let times = others.join().unwrap();
    world.drain();
    let title = format!("kill -9 on a disk that was full {times} times");
    Audit::new(&title, &world).print_and_assert_clean();
    assert!(fs::read_dir(data).is_ok());
}

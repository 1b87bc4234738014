//! No space left.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use spool::{Durability, Record, Staging};

use crate::books::Policy;
use crate::elsewhere::{Filler, Image, run_elsewhere, run_on_image, small_world, world_on_image};
use crate::fault::{Fault, Mix};
use crate::producer;
use crate::reckoning::Reckoning;
use crate::world::{Crowd, World, storm_time};
use testkit::{eventually, until};

#[test]
fn what_was_acknowledged_is_drained_from_a_full_disk() {
    run_elsewhere("full_disk::drains");
}

#[test]
#[ignore = "another test runs it where it can mount"]
fn drains() {
    let policy = Policy::ByBatch { known: 409 };
    let world = small_world(policy, Mix::of(&[(1, Fault::Unavailable)]), 8);
    let filler = Filler::of(&world);
    // The second time the reserve has been used once.
    for _ in 0..2 {
        world.receiver.state().mix = Mix::of(&[(1, Fault::Unavailable)]);
        world.stage_fresh(3000, 0).assert_code(0);
        world.drop_files(50, 0);
        world.deliver_now().assert_code(1);
        world.stage_fresh(3000, 0).assert_code(0);
        world.drop_files(50, 0);
        filler.fill();
        stage_until_refused(&world);
        // A restart, with nowhere to write and nobody who takes anything.
        let deliverer = world.start_deliverer();
        thread::sleep(Duration::from_millis(500));
        deliverer.kill();
        stage_until_refused(&world);
        world.receiver.behave();
        let mut outcome = world.deliver_now();
        // What goes out makes room for what is still staged.
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
    Reckoning::of("full disk, drained while it stays full", &world).must_be_clean();
}

#[test]
fn full_tmpfs_is_drained_while_another_program_keeps_filling_it() {
    run_elsewhere("full_disk::drains_tmpfs");
}

#[test]
#[ignore = "another test runs it where it can mount"]
fn drains_tmpfs() {
    drains_among_others("tmpfs", |policy, mix| small_world(policy, mix, 8));
}

#[test]
fn full_ext4_is_drained_while_another_program_keeps_filling_it() {
    run_on_image(Image::Ext4, "full_disk::drains_ext4");
}

#[test]
#[ignore = "another test runs it where it can mount"]
fn drains_ext4() {
    drains_among_others("ext4", |policy, mix| {
        world_on_image(policy, mix, Image::Ext4)
    });
}

#[test]
fn full_xfs_is_drained_while_another_program_keeps_filling_it() {
    run_on_image(Image::Xfs, "full_disk::drains_xfs");
}

#[test]
#[ignore = "another test runs it where it can mount"]
fn drains_xfs() {
    drains_among_others("xfs", |policy, mix| world_on_image(policy, mix, Image::Xfs));
}

/// Issue 14, item 1: others take every block that is freed, at once and for good.
fn drains_among_others(name: &str, world: impl FnOnce(Policy, Mix) -> World) {
    let down = || Mix::of(&[(1, Fault::Unavailable)]);
    let mut world = world(Policy::ByBatch { known: 409 }, down());
    let filler = Filler::of(&world);
    let staged: Vec<_> = (0..1000).map(|_| producer::fresh(0)).collect();
    world.stage(&staged).assert_code(0);
    world.deliver_now().assert_code(1);
    world.stage_fresh(1000, 0).assert_code(0);
    world.drop_files(500, 0);
    // A producer that dies leaves an entry open.
    let producer = world.start_producer(0);
    until("it has staged", || world.acknowledged().len() > 2600);
    filler.fill();
    world.kill(producer);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _over = Over(&is_over);
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
        world.receiver.behave();
        // Killed in the middle of its work, again and again.
        for _ in 0..5 {
            let before = world.receiver.state().tally.requests;
            let deliverer = world.start_deliverer();
            until("something was sent", || {
                world.receiver.state().tally.requests > before + 5
            });
            world.kill(deliverer);
        }
        eventually("everything is delivered", || {
            world.deliver_now();
            (world.waiting() == 0).then_some(())
        });
        world.run("verify").assert_code(0);
        // The file system may free a block of its own at any time.
        let outcome = world.stage_fresh(1, 0);
        assert!(
            outcome.code == Some(0) || outcome.stderr.contains("no space left"),
            "{outcome:#?}"
        );
    });
    filler.empty();
    // None of these is billed again.
    world
        .run_with("stage", &producer::lines(&staged))
        .assert_code(0);
    world.stage_fresh(10, 0).assert_code(0);
    world.deliver_now().assert_code(0);
    world.run("verify").assert_code(0);
    let what = format!("{name}, drained while others kept filling it");
    Reckoning::of(&what, &world).must_be_clean();
}

struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Producers take what they can get; what the deliverer needs they must not get.
fn stage_until_refused(world: &World) {
    let refused = eventually("the disk is full", || {
        Some(world.stage_fresh(200, 0)).filter(|outcome| outcome.code != Some(0))
    });
    refused.assert_code(1);
    assert!(refused.stderr.contains("no space left"), "{refused:#?}");
}

#[test]
fn a_producer_that_was_refused_is_served_again_as_soon_as_there_is_space() {
    run_elsewhere("full_disk::resumes");
}

#[test]
#[ignore = "another test runs it where it can mount"]
fn resumes() {
    let world = small_world(Policy::ByRecord, Mix::none(), 8);
    let filler = Filler::of(&world);
    let staging = Staging::open(world.staging()).unwrap();
    let mut refused = 0;
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
                    refused += 1;
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
    assert!(refused > 0);
    staging.close().unwrap();
    world.drain();
    Reckoning::of(
        &format!("full disk, {refused} refused and staged again"),
        &world,
    )
    .must_be_clean();
}

#[test]
fn a_storm_on_a_disk_that_is_full_every_other_moment() {
    run_elsewhere("full_disk::storms");
}

#[test]
#[ignore = "another test runs it where it can mount"]
fn storms() {
    let mut world = small_world(Policy::ByBatch { known: 409 }, Mix::all(), 8);
    let filler = Filler::of(&world);
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
    world.storm(Crowd {
        is_refused: true,
        ..Crowd::default()
    });
    let times = others.join().unwrap();
    world.drain();
    let what = format!("kill -9 on a disk that was full {times} times");
    Reckoning::of(&what, &world).must_be_clean();
    assert!(fs::read_dir(data).is_ok());
}

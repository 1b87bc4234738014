//! Everybody is killed at random moments, while the receiver does everything wrong that it can.

use crate::books::Policy;
use crate::fault::{Fault, Mix};
use crate::reckoning::Reckoning;
use crate::world::{Crowd, World};

fn storm(what: &str, policy: Policy, mix: Mix, crowd: Crowd) -> (World, Reckoning) {
    let mut world = World::new(policy, mix);
    world.storm(crowd);
    world.drain();
    let found = Reckoning::of(what, &world);
    found.must_be_clean();
    (world, found)
}

/// What is ambiguous may be sent again where the same key is not billed again: then it is not
/// ambiguous any more.
fn resend(what: &str, world: &World) {
    world.run("resend --all").assert_code(0);
    world.drain();
    let found = Reckoning::of(&format!("{what}, resent"), world);
    found.must_be_clean();
    assert_eq!(found.ambiguous_batches, 0, "{found}");
}

#[test]
fn a_receiver_that_knows_records() {
    let what = "kill -9, deduped by record";
    let (world, _) = storm(what, Policy::ByRecord, Mix::all(), Crowd::default());
    resend(what, &world);
}

#[test]
fn a_receiver_that_knows_batches_and_says_409() {
    let what = "kill -9, deduped by batch (409)";
    let policy = Policy::ByBatch { known: 409 };
    let (world, _) = storm(what, policy, Mix::all(), Crowd::default());
    resend(what, &world);
}

#[test]
fn a_receiver_that_knows_batches_and_says_200() {
    let what = "kill -9, deduped by batch (200)";
    let policy = Policy::ByBatch { known: 200 };
    let (world, _) = storm(what, policy, Mix::all(), Crowd::default());
    resend(what, &world);
}

#[test]
fn a_receiver_that_rejects_a_batch_for_one_duplicate() {
    let what = "kill -9, rejected for a duplicate (409 for the same key)";
    let policy = Policy::RejectOnDuplicate { known: 409 };
    let (world, _) = storm(what, policy, Mix::all(), Crowd::default());
    resend(what, &world);
}

/// It says 422 for what it has itself: nobody can tell. Such batches end whole in `failed/`.
#[test]
fn a_receiver_that_rejects_even_the_same_batch() {
    let what = "kill -9, rejected for a duplicate (422 for the same key)";
    let policy = Policy::RejectOnDuplicate { known: 422 };
    let (_, found) = storm(what, policy, Mix::all(), Crowd::default());
    assert!(found.ambiguous_batches > 0, "{found}");
}

/// Nothing is ambiguous unless the receiver rejects a batch that it may have.
#[test]
fn without_rejections_nothing_is_ambiguous() {
    let mix = Mix::all().without(Fault::TooLarge(5));
    let policy = Policy::ByBatch { known: 409 };
    let what = "kill -9, no rejections";
    let (_, found) = storm(what, policy, mix, Crowd::default());
    assert_eq!(found.ambiguous_batches, 0, "{found}");
}

/// A second deliverer on the same data directory does nothing while the first lives.
#[test]
fn three_deliverers_on_one_data_directory() {
    let crowd = Crowd {
        deliverers: 3,
        ..Crowd::default()
    };
    let policy = Policy::ByBatch { known: 409 };
    storm("kill -9, three deliverers", policy, Mix::all(), crowd);
}

#[test]
fn poisoned_records_among_the_killed() {
    let crowd = Crowd {
        poison: 10,
        ..Crowd::default()
    };
    let policy = Policy::ByBatch { known: 409 };
    storm("kill -9, 1 % poisoned", policy, Mix::all(), crowd);
}

//! Producers and deliverers are killed at random moments, while the receiver has every fault.

use crate::audit::Audit;
use crate::billing::Policy;
use crate::fault::{Commit, Fault, Mix};
use crate::world::{StormConfig, World};

fn storm(title: &str, policy: Policy, mix: Mix, config: StormConfig) -> (World, Audit) {
    let mut world = World::new(policy, mix);
    world.storm(config);
    world.drain();
    let found = Audit::new(title, &world);
    found.print_and_assert_clean();
    (world, found)
}

/// Resends ambiguous batches: those that the receiver may have billed already. The receiver
/// recognises what it has billed and accepts the rest, so every batch is delivered and none stays
/// ambiguous.
fn resend(title: &str, world: &World) {
    world.run("resend --all").assert_code(0);
    world.drain();
    let found = Audit::new(&format!("{title}, resent"), world);
    found.print_and_assert_clean();
    assert_eq!(found.ambiguous_batches, 0, "{found}");
}

#[test]
fn records_are_billed_once_by_a_receiver_that_recognises_records() {
    let title = "kill -9, deduped by record";
    let (world, _) = storm(title, Policy::ByRecord, Mix::all(), StormConfig::default());
    resend(title, &world);
}

#[test]
fn records_are_billed_once_by_a_receiver_that_responds_409_to_a_known_batch() {
    let title = "kill -9, deduped by batch (409)";
    let policy = Policy::ByBatch { known: 409 };
    let (world, _) = storm(title, policy, Mix::all(), StormConfig::default());
    resend(title, &world);
}

#[test]
fn records_are_billed_once_by_a_receiver_that_responds_200_to_a_known_batch() {
    let title = "kill -9, deduped by batch (200)";
    let policy = Policy::ByBatch { known: 200 };
    let (world, _) = storm(title, policy, Mix::all(), StormConfig::default());
    resend(title, &world);
}

#[test]
fn records_are_billed_once_by_a_receiver_that_rejects_batches_with_a_duplicate() {
    let title = "kill -9, rejected for a duplicate (409 for the same key)";
    let policy = Policy::RejectOnDuplicate { known: 409 };
    let (world, _) = storm(title, policy, Mix::all(), StormConfig::default());
    resend(title, &world);
}

/// The receiver responds 422 to a batch that it has already billed. The sender cannot know that, so it moves
/// the whole batch to `failed/` instead of splitting it.
#[test]
fn repeated_batch_is_ambiguous_when_the_receiver_rejects_it() {
    let title = "kill -9, rejected for a duplicate (422 for the same key)";
    let policy = Policy::RejectOnDuplicate { known: 422 };
    // Every second batch is billed without a response, so that many are sent again.
    let mix = Mix::new(&[
        (4, Fault::None),
        (2, Fault::Close(Commit::After)),
        (2, Fault::CutHead),
    ]);
    let (_, found) = storm(title, policy, mix, StormConfig::default());
    assert!(found.ambiguous_batches > 0, "{found}");
}

/// A batch is ambiguous only if it is rejected after an attempt with an unknown result. This
/// receiver rejects no batch, so none may be reported as ambiguous.
#[test]
fn no_batch_is_ambiguous_without_rejections() {
    let mix = Mix::all().without(Fault::TooLarge(5));
    let policy = Policy::ByBatch { known: 409 };
    let title = "kill -9, no rejections";
    let (_, found) = storm(title, policy, mix, StormConfig::default());
    assert_eq!(found.ambiguous_batches, 0, "{found}");
}

/// Only one of the three deliverers works at a time. If two did, they could send the same batch in
/// different forms.
#[test]
fn records_are_billed_once_with_three_deliverers_on_one_data_directory() {
    let config = StormConfig {
        deliverers: 3,
        ..StormConfig::default()
    };
    let policy = Policy::ByBatch { known: 409 };
    storm("kill -9, three deliverers", policy, Mix::all(), config);
}

#[test]
fn records_are_billed_once_when_some_are_poisoned() {
    let config = StormConfig {
        poison: 10,
        ..StormConfig::default()
    };
    let policy = Policy::ByBatch { known: 409 };
    storm("kill -9, 1 % poisoned", policy, Mix::all(), config);
}

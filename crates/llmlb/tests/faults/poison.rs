//! A bad record does not prevent the delivery of the other records of its batch.

use crate::audit::Audit;
use crate::billing::Policy;
use crate::fault::Mix;
use crate::world::{StormConfig, World};

#[test]
fn poisoned_records_are_isolated_and_the_rest_of_their_batch_is_delivered() {
    for (title, policy) in [
        ("deduped by record", Policy::ByRecord),
        ("deduped by batch", Policy::ByBatch { known: 409 }),
        (
            "rejected for a duplicate",
            Policy::RejectOnDuplicate { known: 422 },
        ),
    ] {
        // `Mix::harmless` has only faults after which the sender knows that the batch was not
        // billed. After other faults a rejected batch is ambiguous and must not be split.
        let mut world = World::new(policy, Mix::harmless());
        world.stage_fresh(2000, 10).assert_code(0);
        world.drop_files(20, 500);
        world.storm(StormConfig {
            poison: 10,
            is_killed: false,
            ..StormConfig::default()
        });
        world.drain();
        deliver_rejected(&world);
        let found = Audit::new(&format!("1 % poisoned, {title}"), &world);
        found.print_and_assert_clean();
        assert!(found.isolated >= 10, "{found}");
        assert_eq!(found.ambiguous_batches, 0, "{found}");
    }
}

#[test]
fn batch_of_poisoned_records_ends_in_failed_and_does_not_stop_delivery() {
    let world = World::new(Policy::ByBatch { known: 409 }, Mix::none());
    world.stage_fresh(60, 1000).assert_code(0);
    world.stage_fresh(60, 0).assert_code(0);
    // The receiver has accepted no batch yet, so it may be at fault itself, and all batches stay pending.
    let outcome = world.deliver_now();
    outcome.assert_code(1);
    assert!(
        outcome.stderr.contains("no part of a batch was accepted"),
        "{outcome:#?}"
    );
    assert!(world.waiting() > 0);
    deliver_rejected(&world);
    let found = Audit::new("nothing but poison", &world);
    found.print_and_assert_clean();
    assert_eq!(
        (found.isolated, found.ambiguous_batches),
        (60, 0),
        "{found}"
    );
    world.deliver_now().assert_code(0);
}

/// Stages and delivers good records until no entry or batch waits. A batch of which no part is accepted stays
/// pending until the receiver has accepted another batch. Each acceptance resolves one rejected
/// batch. (promise S7)
fn deliver_rejected(world: &World) {
    for _ in 0..40 {
        if world.waiting() == 0 {
            return;
        }
        world.stage_fresh(1, 0).assert_code(0);
        world.deliver_now();
    }
}

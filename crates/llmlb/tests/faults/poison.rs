//! One bad record does not take its neighbours with it.

use crate::books::Policy;
use crate::fault::Mix;
use crate::reckoning::Reckoning;
use crate::world::{Crowd, World};

#[test]
fn poisoned_records_stand_alone_and_their_neighbours_are_delivered() {
    for (what, policy) in [
        ("deduped by record", Policy::ByRecord),
        ("deduped by batch", Policy::ByBatch { known: 409 }),
        (
            "rejected for a duplicate",
            Policy::RejectOnDuplicate { known: 422 },
        ),
    ] {
        // After each of these faults it is known that nothing was billed.
        let mut world = World::new(policy, Mix::harmless());
        world.stage_fresh(2000, 10).assert_code(0);
        world.drop_files(20, 500);
        world.storm(Crowd {
            poison: 10,
            is_killed: false,
            ..Crowd::default()
        });
        world.drain();
        settle_rejected(&world);
        let found = Reckoning::of(&format!("1 % poisoned, {what}"), &world);
        found.must_be_clean();
        assert!(found.isolated >= 10, "{found}");
        assert_eq!(found.ambiguous_batches, 0, "{found}");
    }
}

#[test]
fn a_batch_of_nothing_but_poison_ends_in_failed_and_blocks_nobody() {
    let world = World::new(Policy::ByBatch { known: 409 }, Mix::none());
    world.stage_fresh(60, 1000).assert_code(0);
    world.stage_fresh(60, 0).assert_code(0);
    // Nothing was accepted before it: the receiver may be at fault, and everything stays pending.
    let outcome = world.deliver_now();
    outcome.assert_code(1);
    assert!(
        outcome.stderr.contains("no part of a batch was accepted"),
        "{outcome:#?}"
    );
    assert!(world.waiting() > 0);
    settle_rejected(&world);
    let found = Reckoning::of("nothing but poison", &world);
    found.must_be_clean();
    assert_eq!(
        (found.isolated, found.ambiguous_batches),
        (60, 0),
        "{found}"
    );
    world.deliver_now().assert_code(0);
}

/// Delivers good records until nothing waits. A batch of which no part is accepted stays pending until
/// the receiver has accepted another one: each acceptance settles one such batch. (S7)
fn settle_rejected(world: &World) {
    for _ in 0..40 {
        if world.waiting() == 0 {
            return;
        }
        world.stage_fresh(1, 0).assert_code(0);
        world.deliver_now();
    }
}

//! A receiver that asks for silence gets it, even from a deliverer that was killed in between.

use std::thread;
use std::time::Duration;

use crate::books::Policy;
use crate::fault::{Fault, Mix};
use crate::reckoning::Reckoning;
use crate::world::World;
use testkit::until;

/// A deliverer that was asked for silence, and killed when it had noted that.
fn silenced(fault: Fault) -> World {
    let world = World::new(Policy::ByRecord, Mix::of(&[(1, fault)]));
    world.stage_fresh(50, 0).assert_code(0);
    let deliverer = world.start_deliverer();
    until("it asks for silence", || {
        world.receiver.state().tally.demands > 0
    });
    world.receiver.behave();
    // Time to note it; the silence lasts longer.
    thread::sleep(Duration::from_millis(800));
    deliverer.kill();
    world.receiver.killed();
    world
}

fn kept(what: &str, fault: Fault) {
    let world = silenced(fault);
    let said = world.log().len();
    let deliverer = world.start_deliverer();
    until("what waits is delivered", || {
        world.waiting() == 0 && world.log()[said..].contains("until SIGTERM")
    });
    deliverer.terminate();
    Reckoning::of(&format!("{what}, killed meanwhile"), &world).must_be_clean();

    // Nobody is in such a hurry that it may be broken.
    let world = silenced(fault);
    until("what waits is delivered", || {
        world.deliver_now();
        world.waiting() == 0
    });
    Reckoning::of(&format!("{what}, killed meanwhile, then --now"), &world).must_be_clean();
}

#[test]
fn for_so_many_seconds() {
    kept("Retry-After in seconds", Fault::WaitSeconds(2));
}

#[test]
fn until_a_date() {
    kept("Retry-After as a date", Fault::WaitDate);
}

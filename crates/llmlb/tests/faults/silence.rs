//! A receiver that asks for silence gets it, even from a deliverer that was killed in between.

use std::thread;
use std::time::Duration;

use crate::books::Policy;
use crate::fault::{Fault, Mix};
use crate::process::until;
use crate::reckoning::Reckoning;
use crate::world::World;

fn silence(what: &str, fault: Fault) {
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
    let hurried = world.deliver_now();
    let requests = world.receiver.state().tally.requests;
    if requests == 1 {
        hurried.assert_code(1);
    }
    let deliverer = world.start_deliverer();
    until("what waits is delivered", || world.waiting() == 0);
    assert!(deliverer.terminate().success());
    let found = Reckoning::of(what, &world);
    found.must_be_clean();
}

#[test]
fn for_so_many_seconds() {
    silence(
        "Retry-After in seconds, killed meanwhile",
        Fault::WaitSeconds(2),
    );
}

#[test]
fn until_a_date() {
    silence("Retry-After as a date, killed meanwhile", Fault::WaitDate);
}

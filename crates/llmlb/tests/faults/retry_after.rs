//! A deliverer obeys `Retry-After`, also after it was killed and restarted.

use std::thread;
use std::time::Duration;

use crate::audit::Audit;
use crate::billing::Policy;
use crate::fault::{Fault, Mix};
use crate::world::World;
use testkit::until;

/// Returns a world whose deliverer was killed after it had stored a requested pause.
fn world_with_pause(fault: Fault) -> World {
    let world = World::new(Policy::ByRecord, Mix::new(&[(1, fault)]));
    world.stage_fresh(50, 0).assert_code(0);
    let deliverer = world.start_deliverer();
    until("the receiver requests a pause", || {
        world.receiver.state().tally.pauses > 0
    });
    world.receiver.end_faults();
    // The deliverer stores the requested pause well within this time. The pause itself is longer,
    // so it is not over when the deliverer is killed.
    thread::sleep(Duration::from_millis(800));
    deliverer.kill();
    world.receiver.note_kill();
    world
}

fn assert_pause_is_obeyed(title: &str, fault: Fault) {
    let world = world_with_pause(fault);
    let log_length = world.log().len();
    let deliverer = world.start_deliverer();
    until("everything is delivered", || {
        world.waiting() == 0 && world.log()[log_length..].contains("until SIGTERM")
    });
    deliverer.terminate();
    Audit::new(&format!("{title}, killed meanwhile"), &world).print_and_assert_clean();

    // `usage deliver --now` ignores llmlb's own backoff, but must obey a pause that the receiver
    // requested.
    let world = world_with_pause(fault);
    until("everything is delivered", || {
        world.deliver_now();
        world.waiting() == 0
    });
    Audit::new(&format!("{title}, killed meanwhile, then --now"), &world).print_and_assert_clean();
}

#[test]
fn retry_after_in_seconds_is_obeyed_by_a_restarted_deliverer() {
    assert_pause_is_obeyed("Retry-After in seconds", Fault::WaitSeconds(2));
}

#[test]
fn retry_after_date_is_obeyed_by_a_restarted_deliverer() {
    assert_pause_is_obeyed("Retry-After as a date", Fault::WaitDate);
}

//! The clock on the wall jumps by days, forwards and backwards, while everyone works.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::books::Policy;
use crate::elsewhere::run_elsewhere;
use crate::fault::Mix;
use crate::reckoning::Reckoning;
use crate::world::{Crowd, World, storm_time};
use testkit::random::Random;

/// The library that tells a program another time.
fn faketime() -> Option<PathBuf> {
    let dirs = fs::read_dir("/usr/lib").ok()?.filter_map(Result::ok);
    let mut found = dirs.map(|dir| dir.path().join("faketime/libfaketime.so.1"));
    found.find(|path| path.exists())
}

/// Sets the clock of everyone who looks at this file; only the wall's, not the one that counts
/// on.
fn set(clock: &Path, hours: i64) {
    let half = clock.with_extension("half");
    fs::write(&half, format!("{hours:+}h\n")).unwrap();
    fs::rename(half, clock).unwrap();
}

#[test]
fn the_clock_jumps_by_days_in_both_directions() {
    if faketime().is_none() {
        return testkit::skip("libfaketime: scripts/install-test-tools").unwrap();
    }
    run_elsewhere("clock::jumps");
}

#[test]
#[ignore = "another test runs it where it can mount"]
fn jumps() {
    let library = faketime().unwrap();
    // Of each process that is killed the library leaves something there.
    let mut mount = Command::new("mount");
    let mounted = mount.args(["-t", "tmpfs", "tmpfs", "/dev/shm"]).status();
    assert!(mounted.unwrap().success());
    let mut world = World::new(Policy::ByBatch { known: 409 }, Mix::all());
    let clock = world.path("clock");
    set(&clock, 0);
    let variables = [
        ("LD_PRELOAD", library.display().to_string()),
        ("FAKETIME_TIMESTAMP_FILE", clock.display().to_string()),
        ("FAKETIME_NO_CACHE", "1".to_owned()),
        ("NO_FAKE_STAT", "1".to_owned()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ("DONT_FAKE_MONOTONIC", "1".to_owned()),
    ];
    world.env = variables
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec();
    let deadline = Instant::now() + storm_time();
    let hand = thread::spawn(move || {
        let mut random = Random::of_run(17);
        let mut jumps = 0;
        while Instant::now() < deadline {
            thread::sleep(Duration::from_millis(random.below(1200)));
            set(&clock, i64::try_from(random.below(144)).unwrap() - 72);
            jumps += 1;
        }
        // The last one is backwards: all that was noted lies in the future.
        set(&clock, -96);
        jumps + 1
    });
    world.storm(Crowd::default());
    let jumps = hand.join().unwrap();
    world.drain();
    let what = format!("kill -9, {jumps} jumps of the clock");
    Reckoning::of(&what, &world)
        .whatever_the_silences()
        .must_be_clean();
}

//! Records are billed once although the system clock jumps by days, forwards and backwards, while
//! producers and deliverers run and are killed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::audit::Audit;
use crate::billing::Policy;
use crate::fault::Mix;
use crate::mount_namespace::run_in_mount_namespace;
use crate::world::{StormConfig, World, storm_time};
use testkit::random::Random;

/// Returns the path of libfaketime, which changes the time of a program.
fn faketime() -> Option<PathBuf> {
    let dirs = fs::read_dir("/usr/lib").ok()?.filter_map(Result::ok);
    let mut found = dirs.map(|dir| dir.path().join("faketime/libfaketime.so.1"));
    found.find(|path| path.exists())
}

/// Sets the system clock of the processes that use this file. Their monotonic clock is unchanged.
fn set(clock: &Path, hours: i64) {
    let temporary = clock.with_extension("tmp");
    fs::write(&temporary, format!("{hours:+}h\n")).unwrap();
    fs::rename(temporary, clock).unwrap();
}

#[test]
fn records_are_billed_once_while_the_clock_jumps_by_days() {
    if faketime().is_none() {
        return testkit::skip("libfaketime: scripts/install-test-tools").unwrap();
    }
    run_in_mount_namespace("clock::run_with_jumps");
}

#[test]
#[ignore = "runs in a mount namespace that another test creates"]
fn run_with_jumps() {
    let library = faketime().unwrap();
    // libfaketime leaves a file in /dev/shm for each killed process. With a private tmpfs there, these files
    // disappear when the test ends.
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
    let clock_thread = thread::spawn(move || {
        let mut random = Random::of_run(17);
        let mut jumps = 0;
        while Instant::now() < deadline {
            thread::sleep(Duration::from_millis(random.below(1200)));
            set(&clock, i64::try_from(random.below(144)).unwrap() - 72);
            jumps += 1;
        }
        // The last jump is backwards, so that all stored times are in the future.
        set(&clock, -96);
        jumps + 1
    });
    world.storm(StormConfig::default());
    let jumps = clock_thread.join().unwrap();
    world.drain();
    let title = format!("kill -9, {jumps} jumps of the clock");
    Audit::new(&title, &world)
        .ignoring_pauses()
        .print_and_assert_clean();
}

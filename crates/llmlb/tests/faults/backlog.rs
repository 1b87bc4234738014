//! A long backlog, delivered by one process: how fast, and how large it grows.

use std::fs;
use std::io::{BufWriter, Write};
use std::time::Instant;

use crate::books::Policy;
use crate::fault::Mix;
use crate::process::Running;
use crate::producer;
use crate::reckoning::Reckoning;
use crate::world::{World, from_env};
use testkit::eventually;

/// What a process is allowed, in kibibytes.
const MOST_MEMORY: u64 = 100 << 10;

/// The most memory that a process had, in kibibytes.
fn peak(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Runs a process to its end; seconds, and the most memory it had.
fn measured(world: &World, words: &str) -> (f64, u64) {
    let began = Instant::now();
    let process = Running::start(&mut world.usage(words), &world.path("log"));
    let mut most = 0;
    let status = loop {
        most = most.max(peak(process.pid()).unwrap_or(0));
        if let Some(status) = process.ended() {
            break status;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    };
    assert!(status.success(), "{words}: {}", world.log());
    (began.elapsed().as_secs_f64(), most)
}

#[test]
fn a_long_backlog_is_delivered_in_bounded_memory() {
    let Some(count) = from_env("FAULT_BACKLOG") else {
        return println!("skipped: FAULT_BACKLOG says how many records");
    };
    let world = World::new(Policy::ByBatch { known: 409 }, Mix::none());
    world.receiver.state().is_brief = true;
    let file = world.path("backlog.jsonl");
    let mut lines = BufWriter::new(fs::File::create(&file).unwrap());
    let mut acks = testkit::append(&world.path("acks/backlog")).unwrap();
    for _ in 0..count / 1000 {
        let samples: Vec<_> = (0..1000).map(|_| producer::fresh(0)).collect();
        lines.write_all(&producer::lines(&samples)).unwrap();
        producer::note(&mut acks, &samples);
    }
    lines.into_inner().unwrap();
    let count = f64::from(u32::try_from(count / 1000 * 1000).unwrap());
    let mut line = vec![format!("backlog of {count}")];
    let stage = format!("stage {}", file.display());
    for (what, words) in [
        ("staged", stage.as_str()),
        ("delivered", "deliver --now --timeout 30s"),
    ] {
        let (seconds, most) = measured(&world, words);
        line.push(format!(
            "{what} in {seconds:.1} s, {:.0} records/s, at most {} KiB of memory",
            count / seconds,
            most
        ));
        assert!(most < MOST_MEMORY, "{line:?}");
    }
    println!("{}", line.join(": "));
    let found = eventually("it is reckoned", || {
        Some(Reckoning::of("the backlog", &world))
    });
    found.must_be_clean();
}

//! Speed and memory of one process that delivers a long backlog.

use std::fs;
use std::io::{BufWriter, Write};
use std::time::Instant;

use crate::audit::Audit;
use crate::billing::Policy;
use crate::fault::Mix;
use crate::process::Running;
use crate::producer;
use crate::world::{World, from_env};

/// Maximum memory in kibibytes of the process that delivers a long backlog. The memory must not
/// grow with the backlog.
const MAX_MEMORY: u64 = 100 << 10;

fn peak(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Runs a process to its end. Returns its duration in seconds and its maximum memory in kibibytes.
fn measure(world: &World, arguments: &str) -> (f64, u64) {
    let began = Instant::now();
    let process = Running::start(&mut world.usage(arguments), &world.path("log"));
    let mut max_memory = 0;
    let status = loop {
        max_memory = max_memory.max(peak(process.pid()).unwrap_or(0));
        if let Some(status) = process.ended() {
            break status;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    };
    assert!(status.success(), "{arguments}: {}", world.log());
    (began.elapsed().as_secs_f64(), max_memory)
}

#[test]
fn long_backlog_is_delivered_in_bounded_memory() {
    let Some(count) = from_env("FAULT_BACKLOG") else {
        return println!("skipped: FAULT_BACKLOG is the number of records");
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
    for (step, arguments) in [
        ("staged", stage.as_str()),
        ("delivered", "deliver --now --timeout 30s"),
    ] {
        let (seconds, max_memory) = measure(&world, arguments);
        line.push(format!(
            "{step} in {seconds:.1} s, {:.0} records/s, at max_memory {} KiB of memory",
            count / seconds,
            max_memory
        ));
        assert!(max_memory < MAX_MEMORY, "{line:?}");
    }
    println!("{}", line.join(": "));
    Audit::new("the backlog", &world).print_and_assert_clean();
}

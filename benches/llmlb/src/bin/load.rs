//! A load generator: one thread, many connections, every answer checked.
//!
//!   load --to 127.0.0.1:8080[,..]     several are asked in turn
//!        [--model burst|paced|slow] [--stream 1] [--prompt BYTES] [--connections N]
//!        [--count N] [--warm N]       closed loop: each connection asks again once it is answered
//!        [--rate PER_SECOND]          open loop: requests start on time, whatever became of others
//!        [--ramp SECONDS]             the first requests start spread over this time
//!        [--watch PID]                whose CPU time and memory to read, with its children
//!        [--timeout SECONDS]
//!
//! Prints a line of JSON for each address; what was wrong goes to stderr.

use std::io;
use std::time::{Duration, Instant};

use llmlb_bench::load::{Exchange, Load, Plan};
use llmlb_bench::{Model, number, option, poll, watch};

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "small numbers"
)]
fn main() -> io::Result<()> {
    poll::prepare()?;
    let count = |name, usual| number(name, usual) as usize;
    let to = option("--to").expect("--to ADDRESS");
    let name = option("--model").unwrap_or_else(|| "burst".into());
    let model = Model::ALL.into_iter().find(|model| model.name() == name);
    let exchange = Exchange::new(
        model.expect("a model of the mock"),
        option("--stream").is_some(),
        count("--prompt", 1024.0),
    );
    let mut load = Load::new(
        to.split(',').map(|to| to.parse().expect(to)).collect(),
        exchange,
        count("--connections", 64.0),
    )?;
    let timeout = Duration::from_secs_f64(number("--timeout", 120.0));
    let warm = Plan {
        count: count("--warm", 128.0),
        rate: None,
        ramp: Duration::ZERO,
        timeout,
    };
    let plan = Plan {
        count: count("--count", 10_000.0),
        rate: option("--rate").map(|_| number("--rate", 1.0)),
        ramp: Duration::from_secs_f64(number("--ramp", 0.0)),
        timeout,
    };
    let root = option("--watch").map(|pid| pid.parse().expect("a process id"));
    let watched = root.map_or_else(Vec::new, watch::tree);

    let warm = load.run(&warm, &[])?;
    let (began, cpu, rss) = (Instant::now(), watch::cpu(&watched), watch::rss(&watched));
    let run = load.run(&plan, &watched)?;
    let (seconds, cpu) = (began.elapsed().as_secs_f64(), watch::cpu(&watched) - cpu);
    for (seen, warm) in run.seen.into_iter().zip(&warm.seen) {
        println!(
            "{{{},\"together\":{},\"seconds\":{seconds},\"cpu\":{cpu},\
             \"rss_before\":{rss},\"rss_peak\":{},\"rss_after\":{}}}",
            seen.after(warm).json(),
            run.together,
            run.rss_peak,
            watch::rss(&watched),
        );
    }
    Ok(())
}

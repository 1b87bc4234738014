//! A load generator: one thread, many connections, every response checked.
//!
//!   load --to 127.0.0.1:8080[,..]     addresses, which take turns; the options apply to each
//!        [--model burst|paced|slow] [--stream 1] [--prompt BYTES] [--connections N]
//!        [--count N] [--warm N]       closed loop: each connection sends again after a response
//!        [--rate PER_SECOND]          open loop: requests start on time, whatever others do
//!        [--ramp SECONDS]             the first requests start spread over this time
//!        [--watch PID[,..]]           processes whose CPU time and memory are measured, with their
//!                                     children: one for each address, 0 for none
//!        [--timeout SECONDS]
//!
//! Prints a line of JSON for each address, and errors to stderr.

use std::io;
use std::time::{Duration, Instant};

use llmlb_bench::load::{Exchange, Load, Plan};
use llmlb_bench::watch::Watched;
use llmlb_bench::{Model, number, option, poll};

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "small numbers"
)]
fn main() -> io::Result<()> {
    poll::prepare()?;
    let count = |name, default| number(name, default) as usize;
    let to = option("--to").expect("--to ADDRESS");
    let name = option("--model").unwrap_or_else(|| "burst".into());
    let model = Model::ALL.into_iter().find(|model| model.name() == name);
    let exchange = Exchange::new(
        model.expect("a model of the mock"),
        option("--stream").is_some(),
        count("--prompt", 1024.0),
    );
    let addresses = to.split(',').count();
    let mut load = Load::new(
        to.split(',').map(|to| to.parse().expect(to)).collect(),
        exchange,
        count("--connections", 64.0),
    )?;
    let timeout = Duration::from_secs_f64(number("--timeout", 120.0));
    let warm = Plan {
        count: count("--warm", 128.0) * addresses,
        rate: None,
        ramp: Duration::ZERO,
        timeout,
    };
    let plan = Plan {
        count: count("--count", 10_000.0) * addresses,
        rate: option("--rate").map(|_| number("--rate", 1.0) * addresses as f64),
        ramp: Duration::from_secs_f64(number("--ramp", 0.0)),
        timeout,
    };
    let roots = option("--watch").unwrap_or_else(|| "0".into());
    let mut watched: Vec<_> = roots
        .split(',')
        .map(|pid| Watched::new(pid.parse().expect("a process id")))
        .collect();
    watched.resize_with(addresses, || Watched::new(0));

    let warm = load.run(&warm, &mut [])?;
    watched.iter_mut().for_each(Watched::begin);
    let began = Instant::now();
    let run = load.run(&plan, &mut watched)?;
    let seconds = began.elapsed().as_secs_f64();
    let used: Vec<_> = watched.iter().map(Watched::json).collect();
    for ((seen, warm), used) in run.seen.into_iter().zip(&warm.seen).zip(used) {
        println!(
            "{{{},{used},\"together\":{},\"seconds\":{seconds}}}",
            seen.after(warm).json(),
            run.together,
        );
    }
    Ok(())
}

//! Cost of `tenure run` as a process, compared with `flock(1)` and with no wrapper, interleaved in
//! one run. `TENURE` names the program as it is released, `TENURE_DYNAMIC` the same program linked
//! dynamically; scripts/bench-tenure sets both.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark stops at the first error"
)]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

const ROUNDS: usize = 500;

fn main() {
    let (Some(tenure), Some(dynamic)) = (
        std::env::var_os("TENURE"),
        std::env::var_os("TENURE_DYNAMIC"),
    ) else {
        println!("startup: TENURE and TENURE_DYNAMIC are not set; run scripts/bench-tenure");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("flock");
    let flock = ["-n", file.to_str().unwrap(), "true"];
    let run = ["run", "bench", "--", "true"];
    let mut rows: Vec<(&str, Command, Vec<f64>)> = vec![
        ("true", command("true".as_ref(), &[]), vec![]),
        ("flock", command("flock".as_ref(), &flock), vec![]),
        ("tenure", command(tenure.as_ref(), &run), vec![]),
        ("tenure-dyn", command(dynamic.as_ref(), &run), vec![]),
    ];
    for (_, command, _) in &mut rows {
        command.env("TENURE_DIR", dir.path().join("locks"));
    }
    for round in 0..ROUNDS + 20 {
        for (_, command, micros) in &mut rows {
            let began = Instant::now();
            let status = command.status().unwrap();
            let took = began.elapsed();
            assert!(status.success());
            // The first rounds fill the caches and would be slower, so they are not counted.
            if round >= 20 {
                micros.push(took.as_secs_f64() * 1e6);
            }
        }
    }
    // Ratios are taken of pairs that ran one after the other, so that other load on the machine
    // affects both.
    let ratio = |row: usize, against: usize| {
        let (row, against) = (&rows[row].2, &rows[against].2);
        let mut ratios: Vec<f64> = row.iter().zip(against).map(|(a, b)| a / b).collect();
        ratios.sort_by(f64::total_cmp);
        ratios[ROUNDS / 2]
    };
    let ratios = [
        ("tenure/flock", ratio(2, 1)),
        ("tenure-dyn/flock", ratio(3, 1)),
        ("tenure/true", ratio(2, 0)),
    ];
    println!("spawn to exit, {ROUNDS} each, interleaved");
    println!("{:<10} {:>10} {:>10}", "", "median us", "p90 us");
    for (name, _, micros) in &mut rows {
        micros.sort_by(f64::total_cmp);
        println!(
            "{name:<10} {:>10.0} {:>10.0}",
            micros[ROUNDS / 2],
            micros[ROUNDS * 9 / 10]
        );
    }
    for (name, median) in ratios {
        println!("ratio {name} median={median:.2} of {ROUNDS} pairs");
    }
}

fn command(program: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    command
}

//! Runs `torture storm CONTENDER SECONDS KILL_EVERY_MS`, `torture storm-separate ..` (each process
//! in its own network namespace) and `torture boot CONTENDER ROUNDS` with eight processes each.
//! Each of these processes runs the same program with other arguments.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the output is the report"
)]

#[cfg(unix)]
fn main() {
    if let Err(error) = unix::run(&std::env::args().skip(1).collect::<Vec<_>>()) {
        eprintln!("torture: {error}");
    }
}

#[cfg(windows)]
fn main() {
    eprintln!("torture: supported on Unix only");
}

#[cfg(unix)]
mod unix {
    use std::path::Path;
    use std::time::Duration;

    use tenure_tests::boot::{self, BootRace};
    use tenure_tests::lease_storm;
    use tenure_tests::storm::{self, Storm};

    pub(super) fn run(words: &[String]) -> Result<(), String> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let number = |text: &str| {
            text.parse::<u64>()
                .map_err(|error| format!("{text}: {error}"))
        };
        match words[..] {
            [
                verb @ ("storm" | "storm-separate"),
                contender,
                seconds,
                kill_every,
            ] => {
                let storm = Storm {
                    program,
                    contender: contender.parse()?,
                    workers: 8,
                    length: Duration::from_secs(number(seconds)?),
                    kill_every: Duration::from_millis(number(kill_every)?),
                    separate_networks: verb == "storm-separate",
                };
                let report = storm.run();
                println!(
                    "acquired={} doubles={} stuck={} errors={} lost={} killed={}",
                    report.acquired,
                    report.doubles,
                    report.stuck,
                    report.errors,
                    report.lost,
                    report.killed
                );
            }
            ["boot", contender, rounds] => {
                let rounds = number(rounds)?;
                let report = BootRace {
                    program,
                    contender: contender.parse()?,
                    starters: 8,
                    rounds,
                }
                .run();
                println!(
                    "rounds={rounds} doubles={} none={} errors={} named={} unknown={} wrong={}",
                    report.doubles,
                    report.none,
                    report.errors,
                    report.named,
                    report.unknown,
                    report.wrong
                );
            }
            ["storm-worker", contender, dir, slot, slots] => storm::worker(
                contender.parse()?,
                Path::new(dir),
                number(slot)?,
                number(slots)?,
            ),
            ["lease-worker", behaviour, store, dir, ttl, hold, resource] => lease_storm::worker(
                behaviour.parse()?,
                store,
                Path::new(dir),
                Duration::from_millis(number(ttl)?),
                Duration::from_millis(number(hold)?),
                resource.parse().map_err(|error| format!("{error}"))?,
            ),
            ["boot-starter", contender, dir, witness, slot, slots] => boot::starter(
                contender.parse()?,
                Path::new(dir),
                Path::new(witness),
                number(slot)?,
                number(slots)?,
            ),
            _ => {
                return Err(
                    "usage: storm[-separate] CONTENDER SECONDS KILL_EVERY_MS | boot CONTENDER ROUNDS"
                        .to_owned(),
                );
            }
        }
        Ok(())
    }
}

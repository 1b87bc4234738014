//! Options of `prove-stores`, and the line with measurement, limit and verdict that each check
//! prints.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use tenure_tests::lease_storm::{Behaviour, LeaseStorm, StormFindings};

use crate::target::Kind;

/// TTL of all leases in the checks: two seconds, the smallest TTL that etcd accepts, so that the
/// checks take little time.
pub(crate) const TTL: Duration = Duration::from_secs(2);

const GROUPS: [&str; 6] = [
    "hand-over",
    "storms",
    "network",
    "restarts",
    "lossy",
    "broken",
];

/// Options of a run.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Length of the longest run, in seconds. Other runs take a quarter of it, and below 60 the
    /// checks have fewer rounds.
    pub(crate) seconds: u64,
    /// Stores to check.
    pub(crate) kinds: Vec<Kind>,
    /// Groups of checks; all if empty.
    pub(crate) groups: Vec<String>,
}

impl Options {
    pub(crate) fn parse(words: &[String]) -> Result<Self, String> {
        let mut options = Self {
            seconds: 60,
            kinds: Vec::new(),
            groups: Vec::new(),
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let value = words
                .next()
                .ok_or_else(|| format!("{word} needs a value"))?;
            match word.as_str() {
                "--seconds" => {
                    let seconds = value.parse::<u64>();
                    options.seconds = seconds.map_err(|error| format!("{value}: {error}"))?;
                }
                "--group" if GROUPS.contains(&value.as_str()) => options.groups.push(value.clone()),
                "--group" => return Err(format!("{value} is not a group: {}", GROUPS.join(", "))),
                "--store" => options.kinds.push(value.parse()?),
                _ => return Err(format!("{word} is not an option")),
            }
        }
        if options.kinds.is_empty() {
            options.kinds = Kind::ALL.into();
        }
        Ok(options)
    }
}

impl Options {
    pub(crate) fn has(&self, group: &str) -> bool {
        self.groups.is_empty() || self.groups.iter().any(|chosen| chosen == group)
    }
}

/// Options of the run, and whether any check has failed so far.
#[derive(Debug)]
pub(crate) struct Proof {
    options: Options,
    failed: u32,
}

impl Proof {
    pub(crate) fn new(options: Options) -> Self {
        Self { options, failed: 0 }
    }

    pub(crate) fn long_run(&self) -> Duration {
        Duration::from_secs(self.options.seconds)
    }

    /// Duration of each check with competing processes other than the one with random kills.
    pub(crate) fn short_run(&self) -> Duration {
        self.long_run() / 4
    }

    /// Number of rounds in each check that measures handovers; fewer if `--seconds` is below 60.
    pub(crate) fn rounds(&self) -> usize {
        if self.options.seconds < 60 { 3 } else { 10 }
    }

    pub(crate) fn section(&mut self, title: &str) {
        print(&format!("== {title}"));
    }

    /// Prints one line with the measurement, the limit and the verdict of a check. A failed check
    /// makes the exit code 1.
    pub(crate) fn verdict(&mut self, name: &str, measured: &str, limit: &str, passed: bool) {
        let word = if passed { "PASS" } else { "FAIL" };
        self.failed += u32::from(!passed);
        print(&format!("{word}  {name:<58} {measured:<46} limit: {limit}"));
    }

    /// Prints the median and the maximum of measured durations. The check fails if the maximum
    /// exceeds the limit.
    pub(crate) fn durations(&mut self, name: &str, times: &mut [Duration], limit: Duration) {
        times.sort();
        let (Some(median), Some(longest)) = (times.get(times.len() / 2), times.last()) else {
            return self.verdict(name, "no measurement", "", false);
        };
        let (median, longest) = (*median, *longest);
        let measured = format!(
            "median={} max={} rounds={}",
            millis(median),
            millis(longest),
            times.len()
        );
        self.verdict(name, &measured, &millis(limit), longest <= limit);
    }

    /// Prints the verdict on a run in which the store lost no data. The check fails if the key ever
    /// had two owners, a token did not increase, a late write was accepted, or the key had no owner
    /// for longer than the limit.
    pub(crate) fn exclusive(
        &mut self,
        name: &str,
        found: &StormFindings,
        more: &str,
        longest_gap: Duration,
    ) {
        let verdict = &found.verdict;
        let gap = gap(found);
        let passed = verdict.overlaps.is_empty()
            && verdict.unordered_tokens == 0
            && found.resource.late == 0
            && verdict.intervals.len() > 1
            && gap <= longest_gap
            && found.errors.is_empty();
        let measured = format!(
            "owners={} doubles={} unordered_tokens={} late_writes={} rejected={} longest_gap={}{more}",
            verdict.intervals.len(),
            verdict.overlaps.len(),
            verdict.unordered_tokens,
            found.resource.late,
            found.resource.rejected,
            millis(gap),
        );
        let limit = format!(
            "0 doubles, unordered tokens, late writes; gap {}",
            millis(longest_gap)
        );
        self.verdict(name, &measured, &limit, passed);
        for line in found.errors.lines().take(3) {
            print(&format!("      error: {line}"));
        }
    }

    pub(crate) fn finish(self) -> ExitCode {
        if self.failed == 0 {
            print("All checks passed.");
            ExitCode::SUCCESS
        } else {
            print(&format!("{} checks failed.", self.failed));
            ExitCode::FAILURE
        }
    }
}

/// Longest time without an owner, from the first owner to the end of the run.
fn gap(found: &StormFindings) -> Duration {
    let intervals = &found.verdict.intervals;
    let starts = intervals.iter().skip(1).map(|next| next.start);
    let gaps = intervals
        .iter()
        .zip(starts.chain([found.at]))
        .map(|(interval, next)| next.saturating_sub(interval.end));
    gaps.max().unwrap_or(Duration::MAX)
}

pub(crate) fn millis(time: Duration) -> String {
    format!("{} ms", time.as_millis())
}

#[expect(clippy::print_stdout, reason = "the output is the report")]
pub(crate) fn print(line: &str) {
    println!("{line}");
}

pub(crate) fn program(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap_or_default();
    own.with_file_name(name)
}

/// Returns the parameters of processes that use this library correctly and compete for one key, one
/// process for each store location.
pub(crate) fn storm(stores: Vec<String>, hold: Duration) -> LeaseStorm {
    LeaseStorm {
        program: program("torture"),
        stores,
        ttl: TTL,
        hold,
        behaviour: Behaviour::Correct,
        clock_offset: None,
    }
}

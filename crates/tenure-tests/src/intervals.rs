//! Detects two owners at the same time from the intervals in which each owner was valid, without any
//! lock or store.
//!
//! An owner reads the boot clock, then checks that its key is not lost, and then writes the reading.
//! A lost key stays lost, so an owner that passes the check was valid from its acquisition up to the
//! reading. Two such intervals that overlap prove two owners. The last interval of a killed or
//! suspended process ends with its last reading, so there are no false alarms.
//!
//! Each process writes a file of its own, with one entry for each acquisition: token, start and end.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

/// Size in bytes of one entry of the file: token, start and end, eight bytes each. A smaller rest
/// at the end was left by a killed process.
const ENTRY: u64 = 24;

/// File in which one process notes the intervals of its acquisitions.
#[derive(Debug)]
pub struct IntervalLog {
    file: File,
    next: u64,
}

/// One acquisition in an [`IntervalLog`].
#[derive(Debug)]
pub struct OpenInterval {
    offset: u64,
    start: Duration,
}

/// Time in which one owner was valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// Fencing token of the acquisition.
    pub token: u64,
    /// First point in time on the boot clock at which the owner was valid.
    pub start: Duration,
    /// Last point in time on the boot clock at which the owner was valid.
    pub end: Duration,
}

/// Findings of [`judge`].
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// All intervals, by start.
    pub intervals: Vec<Interval>,
    /// Lengths of the overlaps between two intervals.
    pub overlaps: Vec<Duration>,
    /// Number of acquisitions whose token is not larger than that of the acquisition before.
    pub unordered_tokens: usize,
}

impl IntervalLog {
    /// Creates the log of this process in a directory that all processes of a run share.
    pub fn create(dir: &Path) -> Self {
        let name = format!(
            "{}-{}.intervals",
            std::process::id(),
            tenure::boot_time().as_nanos()
        );
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(dir.join(name))
            .expect("the interval log is created");
        Self { file, next: 0 }
    }

    /// Starts the interval of an acquisition, if the owner is valid. `is_valid` must check that the
    /// key is not lost.
    pub fn begin(&mut self, token: u64, is_valid: impl FnOnce() -> bool) -> Option<OpenInterval> {
        let now = tenure::boot_time();
        if !is_valid() {
            return None;
        }
        let interval = OpenInterval {
            offset: self.next,
            start: now,
        };
        self.next += ENTRY;
        let mut entry = [0; 24];
        entry[..8].copy_from_slice(&token.to_le_bytes());
        entry[8..16].copy_from_slice(&nanos(now).to_le_bytes());
        entry[16..].copy_from_slice(&nanos(now).to_le_bytes());
        self.file
            .write_all_at(&entry, interval.offset)
            .expect("the interval log is written");
        Some(interval)
    }

    /// Extends the interval to the present if the owner is still valid. Returns false if it is not.
    pub fn extend(&self, interval: &OpenInterval, is_valid: impl FnOnce() -> bool) -> bool {
        let now = tenure::boot_time().max(interval.start);
        if !is_valid() {
            return false;
        }
        self.file
            .write_all_at(&nanos(now).to_le_bytes(), interval.offset + 16)
            .expect("the interval log is written");
        true
    }
}

/// Reads the logs of all processes of a run and finds overlaps and tokens out of order.
pub fn judge(dir: &Path) -> Verdict {
    let mut intervals = Vec::new();
    for entry in std::fs::read_dir(dir).expect("the directory of the logs is readable") {
        let path = entry.expect("the directory of the logs is readable").path();
        if path.extension().is_none_or(|end| end != "intervals") {
            continue;
        }
        let bytes = std::fs::read(&path).expect("the interval log is readable");
        // A killed process may have left a partial entry, which is ignored.
        intervals.extend(bytes.chunks_exact(24).map(parse));
    }
    compare(intervals)
}

fn parse(entry: &[u8]) -> Interval {
    let number = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&entry[at..at + 8]);
        u64::from_le_bytes(bytes)
    };
    Interval {
        token: number(0),
        start: Duration::from_nanos(number(8)),
        end: Duration::from_nanos(number(16)),
    }
}

fn compare(mut intervals: Vec<Interval>) -> Verdict {
    intervals.sort_by_key(|interval| (interval.start, interval.token));
    let mut overlaps = Vec::new();
    for (index, earlier) in intervals.iter().enumerate() {
        let later = intervals[index + 1..]
            .iter()
            .take_while(|later| later.start < earlier.end);
        overlaps.extend(later.map(|later| later.end.min(earlier.end).saturating_sub(later.start)));
    }
    let unordered_tokens = intervals
        .windows(2)
        .filter(|pair| pair[1].token <= pair[0].token)
        .count();
    Verdict {
        intervals,
        overlaps,
        unordered_tokens,
    }
}

impl Verdict {
    /// Start of the first interval that began after this time.
    pub fn first_start_after(&self, time: Duration) -> Option<Duration> {
        let starts = self.intervals.iter().map(|interval| interval.start);
        starts.filter(|start| *start > time).min()
    }

    /// Length of the longest overlap.
    pub fn longest_overlap(&self) -> Duration {
        self.overlaps.iter().max().copied().unwrap_or_default()
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(token: u64, start: u64, end: u64) -> Interval {
        Interval {
            token,
            start: Duration::from_secs(start),
            end: Duration::from_secs(end),
        }
    }

    #[test]
    fn overlapping_intervals_and_unordered_tokens_are_found() {
        let fine = compare(vec![interval(2, 5, 9), interval(1, 1, 5)]);
        assert!(fine.overlaps.is_empty());
        assert_eq!(fine.unordered_tokens, 0);

        let two = compare(vec![
            interval(1, 1, 9),
            interval(2, 5, 7),
            interval(2, 10, 11),
        ]);
        assert_eq!(two.overlaps, [Duration::from_secs(2)]);
        assert_eq!(two.unordered_tokens, 1);
        assert_eq!(
            two.first_start_after(Duration::from_secs(5)),
            Some(Duration::from_secs(10))
        );
    }

    #[test]
    fn owner_that_is_not_valid_writes_no_interval() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = IntervalLog::create(dir.path());
        assert!(log.begin(1, || false).is_none());
        let open = log.begin(2, || true).unwrap();
        assert!(log.extend(&open, || true));
        let before = judge(dir.path());
        assert!(!log.extend(&open, || false));
        assert_eq!(judge(dir.path()).intervals, before.intervals);
        assert_eq!(before.intervals.len(), 1);
    }
}

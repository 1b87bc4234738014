//! Totals of consolidated records: the files of the days, and of the hours for days that are only
//! in part in the span.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use uuid::Uuid;

use super::hour_span::HourSpan;
use crate::data_dir::DataDir;
use crate::error::Error;
use crate::files::{for_each_file, read_bounded};
use crate::time::DAY;
use crate::totals::{self, Grouping, Groups, PeriodTotals};

/// Totals of the consolidated records of a span of time, read from the files of totals.
#[derive(Default)]
pub(super) struct ConsolidatedTotals {
    /// Sums of the groups, by day or by hour.
    rows: BTreeMap<String, Groups>,
    /// Checksum of every totals file that was read, by file name; `None` if the file cannot be
    /// read. A later comparison finds files that consolidation changed during the tally.
    files: BTreeMap<String, Option<u32>>,
    /// Id of the last snapshot that was added to the totals of each period (a day or an hour).
    /// Staged records of this snapshot are skipped, because the totals include them already.
    snapshots: BTreeMap<String, Uuid>,
    /// Number of records in the file of each day, which is compared with the journal to find totals
    /// that lack records.
    records: BTreeMap<String, u64>,
    /// Days that are reported in full although only a part of them is in the span, because their
    /// totals by hour are incomplete or deleted.
    whole: BTreeSet<String>,
    pub(super) problems: Vec<Error>,
}

impl ConsolidatedTotals {
    pub(super) fn read(
        data: &DataDir,
        grouping: &Grouping,
        span: &HourSpan,
    ) -> Result<Self, Error> {
        let mut totals = Self::default();
        let mut periods = BTreeMap::new();
        for name in names(data, span)? {
            let path = data.usage.join(&name);
            let bytes = match read_bounded(&*data.disk, &path) {
                Ok(bytes) => bytes.unwrap_or_default(),
                // Skip a file that was deleted after the listing: consolidation deletes the files
                // of old hours, whose records are in the file of their day.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => {
                    totals.problems.push(Error::read(&path, error));
                    totals.files.insert(name, None);
                    continue;
                }
            };
            let checksum = crc32fast::hash(&bytes);
            totals.files.insert(name.clone(), Some(checksum));
            match totals::check(&name, &bytes) {
                Ok(period) => {
                    periods.extend(totals::period_of(&name).map(|of| (of.to_owned(), period)));
                }
                Err(why) => totals.problems.push(Error::damage(&path, why)),
            }
        }
        let days: Vec<String> = (periods.keys())
            .filter(|period| !totals::is_hour(period))
            .cloned()
            .collect();
        for day in days {
            totals.add_day(&day, &mut periods, grouping, span);
        }
        Ok(totals)
    }

    fn add_day(
        &mut self,
        day: &str,
        periods: &mut BTreeMap<String, PeriodTotals>,
        grouping: &Grouping,
        span: &HourSpan,
    ) {
        let Some(whole) = periods.remove(day) else {
            return;
        };
        self.records.insert(day.to_owned(), whole.records());
        let is_hour_of = |period: &str| period.starts_with(day);
        let hours: Vec<String> = (periods.keys())
            .filter(|period| is_hour_of(period))
            .cloned()
            .collect();
        let mut hours: Vec<(String, PeriodTotals)> = (hours.into_iter())
            .filter_map(|hour| periods.remove_entry(&hour))
            .collect();
        let records: u64 = hours.iter().map(|(_, hour)| hour.records()).sum();
        let are_hours_complete = records == whole.records();
        if span.is_by_day(day) || !are_hours_complete {
            if !span.is_by_day(day) {
                self.whole.insert(day.to_owned());
            }
            hours = vec![(day.to_owned(), whole)];
        }
        for (period, totals) in hours {
            self.snapshots.insert(period.clone(), totals.snapshot);
            if !totals::is_hour(&period) || span.has_hour(&period) {
                let key = if span.by_hour { &period } else { day };
                let rows = self.rows.entry(key.to_owned()).or_default();
                rows.add_all(grouping, &totals.into_groups(grouping));
            }
        }
    }

    /// Returns an error if the totals of a day have fewer records than expected.
    pub(super) fn gap(&self, data: &DataDir, day: &str, expected: u64) -> Option<Error> {
        let found = self.records.get(day).copied().unwrap_or_default();
        let path = data.usage.join(format!("{day}.json"));
        totals::gap(found, expected).map(|gap| Error::damage(&path, gap))
    }

    /// Removes and returns the sums of all groups, by day or by hour.
    pub(super) fn take_rows(&mut self) -> BTreeMap<String, Groups> {
        std::mem::take(&mut self.rows)
    }

    /// True if the tally counts records of this hour: the hour is in the span, or its day is
    /// counted in full.
    pub(super) fn is_reported(&self, span: &HourSpan, hour: &str) -> bool {
        span.has_hour(hour) || day_of(hour).is_some_and(|day| self.whole.contains(day))
    }

    /// Returns the period to which a staged record of this hour is added.
    pub(super) fn period_of_hour<'a>(&self, span: &HourSpan, hour: &'a str) -> &'a str {
        let day = day_of(hour).unwrap_or(hour);
        if span.by_hour && !self.whole.contains(day) {
            hour
        } else {
            day
        }
    }

    /// True if the totals of an hour include the records of this snapshot. Such records must not be
    /// counted again when their entry, which is still staged, is read.
    pub(super) fn has(&self, span: &HourSpan, hour: &str, snapshot: Uuid) -> bool {
        let Some(day) = day_of(hour) else {
            return false;
        };
        let by_day = span.is_by_day(day) || self.whole.contains(day);
        let period = if by_day { day } else { hour };
        self.snapshots.get(period) == Some(&snapshot)
    }

    /// Returns the span of the report: the requested one, extended to whole days where the totals
    /// by hour are incomplete or deleted.
    pub(super) fn reported_span(&self, requested: &HourSpan) -> HourSpan {
        let mut span = requested.clone();
        let is_whole = |hour: String| day_of(&hour).is_some_and(|day| self.whole.contains(day));
        span.from = span.from.map(|from| {
            if is_whole(from.hour()) {
                from.floor(DAY)
            } else {
                from
            }
        });
        span.until = span.until.map(|until| {
            let start = until.floor(DAY);
            if start != until && is_whole(until.hour()) {
                start.after(DAY)
            } else {
                until
            }
        });
        span
    }

    /// True if no file has changed since it was read.
    pub(super) fn are_current(&self, data: &DataDir, span: &HourSpan) -> Result<bool, Error> {
        let mut files = BTreeMap::new();
        for name in names(data, span)? {
            let path = data.usage.join(&name);
            match read_bounded(&*data.disk, &path) {
                Ok(bytes) => {
                    let checksum = crc32fast::hash(&bytes.unwrap_or_default());
                    files.insert(name, Some(checksum))
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(_) => files.insert(name, None),
            };
        }
        Ok(files == self.files)
    }
}

fn day_of(hour: &str) -> Option<&str> {
    hour.get(..10)
}

/// Returns the names of the files to read: days with any hour in the span, and the hours of days
/// that are only in part in the span.
fn names(data: &DataDir, span: &HourSpan) -> Result<Vec<String>, Error> {
    let mut names = Vec::new();
    for_each_file(&*data.disk, &data.usage, |name| {
        let Some(period) = totals::period_of(name) else {
            return;
        };
        let Some(day) = day_of(period) else {
            return;
        };
        let is_needed = !totals::is_hour(period) || !span.is_by_day(day);
        if is_needed && span.has_some_of(day) {
            names.push(name.to_owned());
        }
    })?;
    Ok(names)
}

//! What was consolidated: the files of the days, and at the ends of the span those of the hours.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use uuid::Uuid;

use super::span::Span;
use crate::data_dir::DataDir;
use crate::error::Error;
use crate::files::{for_each_file, read_bounded};
use crate::time::DAY;
use crate::totals::sum::{self, Groups};
use crate::totals::{self, Period};

/// The totals of a span.
#[derive(Default)]
pub(super) struct Folded {
    rows: BTreeMap<String, Groups>,
    /// A checksum of every file. `None`: it cannot be read.
    files: BTreeMap<String, Option<u32>>,
    /// The last snapshot that is in each period that was used.
    snapshots: BTreeMap<String, Uuid>,
    /// How many records the files of the days have.
    records: BTreeMap<String, u64>,
    /// Days of which a part was asked for, and only the whole is known.
    whole: BTreeSet<String>,
    pub(super) problems: Vec<Error>,
}

impl Folded {
    pub(super) fn read(data: &DataDir, span: &Span) -> Result<Self, Error> {
        let mut folded = Self::default();
        let mut periods = BTreeMap::new();
        for name in names(data, span)? {
            let path = data.usage.join(&name);
            let bytes = match read_bounded(&*data.disk, &path) {
                Ok(bytes) => bytes.unwrap_or_default(),
                // Hours go when they are old.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                // The others are reported all the same.
                Err(error) => {
                    folded.problems.push(Error::read(&path, error));
                    folded.files.insert(name, None);
                    continue;
                }
            };
            let checksum = crc32fast::hash(&bytes);
            folded.files.insert(name.clone(), Some(checksum));
            match totals::check(&name, &bytes) {
                Ok(period) => {
                    periods.extend(totals::period_of(&name).map(|of| (of.to_owned(), period)));
                }
                Err(why) => folded.problems.push(Error::damage(&path, why)),
            }
        }
        let days: Vec<String> = (periods.keys())
            .filter(|period| !totals::is_hour(period))
            .cloned()
            .collect();
        for day in days {
            folded.add_day(&day, &mut periods, span);
        }
        Ok(folded)
    }

    fn add_day(&mut self, day: &str, periods: &mut BTreeMap<String, Period>, span: &Span) {
        let Some(whole) = periods.remove(day) else {
            return;
        };
        self.records.insert(day.to_owned(), whole.records());
        let is_hour_of = |period: &str| period.starts_with(day);
        let hours: Vec<String> = (periods.keys())
            .filter(|period| is_hour_of(period))
            .cloned()
            .collect();
        let mut hours: Vec<(String, Period)> = (hours.into_iter())
            .filter_map(|hour| periods.remove_entry(&hour))
            .collect();
        let records: u64 = hours.iter().map(|(_, hour)| hour.records()).sum();
        let is_known = records == whole.records();
        if span.has_all_of(day) || !is_known {
            if !span.has_all_of(day) {
                self.whole.insert(day.to_owned());
            }
            hours = vec![(day.to_owned(), whole)];
        }
        let rows = self.rows.entry(day.to_owned()).or_default();
        for (period, totals) in hours {
            self.snapshots.insert(period.clone(), totals.snapshot);
            if !totals::is_hour(&period) || span.has_hour(&period) {
                for (group, more) in totals.into_groups() {
                    sum::add(rows, group, &more);
                }
            }
        }
    }

    /// Returns what is wrong with the totals of a day that must have so many records.
    pub(super) fn gap(&self, data: &DataDir, day: &str, expected: u64) -> Option<Error> {
        let found = self.records.get(day).copied().unwrap_or_default();
        let path = data.usage.join(format!("{day}.json"));
        totals::gap(found, expected).map(|gap| Error::damage(&path, gap))
    }

    /// What they add up to, by day.
    pub(super) fn take_rows(&mut self) -> BTreeMap<String, Groups> {
        std::mem::take(&mut self.rows)
    }

    /// Whether a record of this hour belongs to what is reported.
    pub(super) fn wants(&self, span: &Span, hour: &str) -> bool {
        span.has_hour(hour) || day_of(hour).is_some_and(|day| self.whole.contains(day))
    }

    /// Whether the records of an hour that a set has are in the totals.
    pub(super) fn has(&self, span: &Span, hour: &str, set: Uuid) -> bool {
        let Some(day) = day_of(hour) else {
            return false;
        };
        let by_day = span.has_all_of(day) || self.whole.contains(day);
        let period = if by_day { day } else { hour };
        self.snapshots.get(period) == Some(&set)
    }

    /// What is reported: whole days where nothing else is known.
    pub(super) fn span(&self, asked: &Span) -> Span {
        let mut span = asked.clone();
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

    /// Nothing was folded since.
    pub(super) fn is_current(&self, data: &DataDir, span: &Span) -> Result<bool, Error> {
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

/// The day of an hour.
fn day_of(hour: &str) -> Option<&str> {
    hour.get(..10)
}

/// The files that matter: days that are part of the span, and the hours of those that are so in part.
fn names(data: &DataDir, span: &Span) -> Result<Vec<String>, Error> {
    let mut names = Vec::new();
    for_each_file(&*data.disk, &data.usage, |name| {
        let Some(period) = totals::period_of(name) else {
            return;
        };
        let Some(day) = day_of(period) else {
            return;
        };
        let matters = !totals::is_hour(period) || !span.has_all_of(day);
        if matters && span.has_some_of(day) {
            names.push(name.to_owned());
        }
    })?;
    Ok(names)
}

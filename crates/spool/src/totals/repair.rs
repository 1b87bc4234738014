//! Daily totals that are missing, damaged or lack records: found, and rebuilt from the hours.

use std::collections::BTreeSet;

use uuid::Uuid;

use super::HOURS_KEPT;
use super::files::{TotalsFiles, if_readable};
use super::grouping::Grouping;
use super::period::{is_hour, period_of};
use crate::data_dir::DataDir;
use crate::disk::Disk;
use crate::entry_journal::RecordsPerDay;
use crate::error::Error;
use crate::files::for_each_file;
use crate::time::Moment;

/// Days whose files [`repair`] checks, and the number of records that it expects in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DayCheck {
    /// Days that the journal names and that have no file of totals.
    Missing,
    /// All days that the journal names: the file of a day must have at least as many records as the
    /// journal counts for that day.
    Journal,
    /// All days: the file of a day must have at least as many records as the files of its hours
    /// together. Used after a file of totals could not be read, because the journal may lack
    /// records while the disk is full. Must not be used while a snapshot is unfinished.
    Hours,
}

/// Rebuilds the files of days that are missing, damaged or lack records from the files of their
/// hours. A rebuilt file names `snapshot` as the last one that was added. If that snapshot has
/// records, [`Totals::fold`](super::Totals::fold) must have added them to the files of the hours
/// beforehand. Returns the error of a file that cannot be read now, if there is one.
pub(crate) fn repair(
    disk: &dyn Disk,
    data: &DataDir,
    grouping: &Grouping,
    days: &RecordsPerDay,
    snapshot: Uuid,
    check: DayCheck,
) -> Result<Option<Error>, Error> {
    let mut files = TotalsFiles::new(disk, data, grouping, snapshot)?;
    let oldest = Moment::from_id(snapshot).before(HOURS_KEPT).day();
    let mut found = BTreeSet::new();
    for_each_file(disk, &data.usage, |name| {
        found.extend(period_of(name).filter(|of| !is_hour(of)).map(str::to_owned));
    })?;
    let (mut is_changed, mut unreadable) = (false, None);
    let mut all = days.clone();
    if check == DayCheck::Hours {
        files.fold_waiting(&mut unreadable)?;
        files.snapshot = snapshot;
        for records in all.values_mut() {
            *records = u64::MAX;
        }
        all.extend(found.iter().map(|day| (day.clone(), u64::MAX)));
    }
    for (day, expected) in all.iter().filter(|(day, _)| **day >= oldest) {
        if check != DayCheck::Missing || !found.contains(day) {
            let repaired = files.repair_day(day, *expected);
            is_changed |= if_readable(repaired, &mut unreadable)?;
        }
    }
    if is_changed {
        files.sync()?;
    }
    Ok(unreadable)
}

impl TotalsFiles<'_> {
    /// Rebuilds the file of a day from the files of its hours, if the day's file has fewer records
    /// than expected and fewer than the files of the hours together. Returns true if the file was
    /// rebuilt.
    fn repair_day(&self, day: &str, expected: u64) -> Result<bool, Error> {
        let found = self.read(day)?.map_or(0, |file| file.records());
        if found >= expected {
            return Ok(false);
        }
        let groups = self.sum_of_hours(day)?;
        if groups.records() <= found {
            return Ok(false);
        }
        tracing::warn!(day, "daily totals lacked records: rebuilt from the hours");
        self.write(day, groups)?;
        Ok(true)
    }
}

/// Returns the message for daily totals that have fewer records than were consolidated on that day.
pub(crate) fn gap(found: u64, expected: u64) -> Option<String> {
    let missing = expected.checked_sub(found).filter(|missing| *missing > 0)?;
    Some(format!(
        "the totals of the day lack {missing} of at least {expected} records"
    ))
}

//! Totals by day, and for 40 days by hour: `usage/{day}.json` and `usage/{day}T{hour}.json`.
//!
//! ```text
//! {"version":1,"day":"2026-11-16","snapshot":"<uuid>","totals":[{"customer":"acme","region":null,
//!  "records":12,"total":999,"sums":{"bytes":999},"counts":{"status":{"ok":12}}}],"crc":"xxxxxxxx"}
//! ```
//!
//! The caller's [`Grouping`] defines which fields of a record distinguish groups, which fields are
//! summed and which are counted. Every snapshot is added to each file once: a file names the last
//! snapshot that was added to it, and no snapshot is begun before the last one is finished.
//!
//! With [`Grouping::exact`] a file also has `"exact"`: sums by few fields that stay exact when the maximum
//! number of groups is reached.

mod exact;
mod files;
mod group;
mod grouping;
mod incomplete;
mod period;
mod repair;
mod row;
mod sum;

use std::collections::BTreeMap;
use std::time::Duration;

use uuid::Uuid;

pub(crate) use exact::ExactSum;
pub(crate) use group::Groups;
pub use grouping::Grouping;
pub(crate) use incomplete::{are_incomplete, note_complete};
pub(crate) use period::{PeriodTotals, check, is_hour, period_of};
pub(crate) use repair::{DayCheck, gap, repair};

use crate::data_dir::DataDir;
use crate::disk::Disk;
use crate::error::Error;
use crate::record::{BadRecord, Record};
use crate::time::{HOUR, Moment};
use files::{TotalsFiles, if_readable};

/// Age at which the totals of an hour are deleted. The totals of a day are not deleted.
const HOURS_KEPT: Duration = Duration::from_secs(40 * 24 * 3600);
/// Maximum age of a record, by the time in its id, when it is consolidated. Older records count in
/// the first hour of 1970, so that wrong ids do not create files for arbitrary hours.
const MAX_AGE: Duration = Duration::from_secs(3653 * 24 * 3600);
/// Maximum time by which the time in a record's id may be in the future, because clocks of machines
/// differ. Records that are further in the future count in the first hour of 1970.
const MAX_CLOCK_SKEW: Duration = Duration::from_secs(24 * 3600);

/// The totals of one snapshot by hour, until they are added to the files.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    grouping: Grouping,
    /// Time in the id of the snapshot. Decides which times of records are plausible, and which
    /// hours are too old for a file.
    at: Moment,
    hours: BTreeMap<Moment, Groups>,
}

/// Returns the hour in which a record counts: the hour of the time in its id. Producers choose ids,
/// so the time is compared with `at`, the time at which the record is consolidated. A record with
/// an implausible time counts in the first hour of 1970, which bounds the number of files. The
/// clock is not read here, so that a repetition after a crash returns the same hour.
pub(crate) fn hour_of(id: Uuid, at: Moment) -> Moment {
    let time = Moment::from_id(id);
    if at.since(time) <= MAX_AGE && time.since(at) <= MAX_CLOCK_SKEW {
        time.floor(HOUR)
    } else {
        Moment::default()
    }
}

impl Totals {
    pub(crate) fn new(snapshot: Uuid, grouping: &Grouping) -> Self {
        Self {
            grouping: grouping.clone(),
            at: Moment::from_id(snapshot),
            hours: BTreeMap::new(),
        }
    }

    /// Adds a record. Fails if its JSON is invalid: the records of a trusted writer are not parsed
    /// before they are consolidated.
    pub(crate) fn add(&mut self, record: &Record) -> Result<(), BadRecord> {
        let fields = self.grouping.read(record)?;
        let hour = hour_of(record.id(), self.at);
        let groups = self.hours.entry(hour).or_default();
        groups.add_record(&self.grouping, &fields);
        Ok(())
    }

    /// Adds this snapshot to the files that do not have it. A file that cannot be read is left as
    /// it is, and its error is returned: [`repair`] adds the missing records later.
    pub(crate) fn fold(
        self,
        disk: &dyn Disk,
        data: &DataDir,
        snapshot: Uuid,
    ) -> Result<Option<Error>, Error> {
        let oldest = self.at.before(HOURS_KEPT).floor(HOUR);
        let mut days = BTreeMap::<String, Vec<(Moment, Groups)>>::new();
        for (hour, groups) in self.hours {
            days.entry(hour.day()).or_default().push((hour, groups));
        }
        let mut files = TotalsFiles::new(disk, data, &self.grouping, snapshot)?;
        let (mut is_new, mut unreadable) = (false, None);
        for (day, hours) in days {
            // The files of hours are written first, because a missing file of a day is rebuilt from
            // them.
            for (hour, groups) in hours.iter().filter(|(hour, _)| *hour >= oldest) {
                is_new |= files.fold_hour(&hour.hour(), groups, &mut unreadable)?;
            }
            let folded = files.fold_day(&day, &hours, oldest);
            // Fail if the file of the day cannot be read and the snapshot has records that are too
            // old for a file by hour: they exist only in the day's file. Otherwise the day is
            // rebuilt later from its hours, which have this snapshot.
            let is_too_old = hours.iter().any(|(hour, _)| *hour < oldest);
            is_new |= if is_too_old {
                folded?
            } else {
                if_readable(folded, &mut unreadable)?
            };
        }
        if let Some(error) = &unreadable {
            files.note_incomplete(error)?;
        }
        if is_new {
            files.remove_hours_before(&oldest.hour())?;
        }
        files.sync()?;
        Ok(unreadable)
    }
}

#[cfg(test)]
mod tests;

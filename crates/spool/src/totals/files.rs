//! The files of totals, and adding one snapshot to them.

use std::collections::BTreeSet;
use std::io;

use uuid::Uuid;

use super::group::Groups;
use super::grouping::Grouping;
use super::incomplete::{are_incomplete, note_incomplete};
use super::period::{PeriodTotals, is_hour, period_of, read};
use crate::data_dir::DataDir;
use crate::disk::Disk;
use crate::error::Error;
use crate::files::{self, for_each_file, write_atomically};
use crate::time::Moment;

/// The files of totals, and the snapshot that is added to them.
pub(super) struct TotalsFiles<'a> {
    disk: &'a dyn Disk,
    data: &'a DataDir,
    grouping: &'a Grouping,
    pub(super) snapshot: Uuid,
    /// Totals that could not be added to the file of their hour, because that file is unreadable:
    /// the hour, and the id of the snapshot whose records they count. Each is stored in
    /// `{hour}+{snapshot}.json`, and added once the file of the hour can be read.
    waiting: BTreeSet<(String, Uuid)>,
}

impl<'a> TotalsFiles<'a> {
    pub(super) fn new(
        disk: &'a dyn Disk,
        data: &'a DataDir,
        grouping: &'a Grouping,
        snapshot: Uuid,
    ) -> Result<Self, Error> {
        let mut waiting = BTreeSet::new();
        if are_incomplete(disk, data)? {
            for_each_file(disk, &data.usage, |name| {
                let period = name.strip_suffix(".json");
                let parts = period.and_then(|period| period.split_once('+'));
                if let Some((hour, snapshot)) = parts
                    && let Ok(snapshot) = Uuid::try_parse(snapshot)
                {
                    waiting.insert((hour.to_owned(), snapshot));
                }
            })?;
        }
        Ok(Self {
            disk,
            data,
            grouping,
            snapshot,
            waiting,
        })
    }

    /// Adds groups of the snapshot to the file of an hour, unless the file has the snapshot.
    /// Returns true if the file is new. If the file of the hour cannot be read, the groups are
    /// stored in `{hour}+{snapshot}.json` until it can be read.
    pub(super) fn fold_hour(
        &mut self,
        hour: &str,
        groups: &Groups,
        unreadable: &mut Option<Error>,
    ) -> Result<bool, Error> {
        let is_waiting = self.waiting.iter().any(|(other, _)| other == hour);
        let file = if is_waiting {
            None
        } else {
            match self.read(hour) {
                Err(error) if error.is_unreadable() => {
                    self.note_incomplete(&error)?;
                    unreadable.get_or_insert(error);
                    None
                }
                file => Some(file?),
            }
        };
        let Some(file) = file else {
            self.waiting.insert((hour.to_owned(), self.snapshot));
            self.write(&format!("{hour}+{}", self.snapshot), groups.clone())?;
            return Ok(false);
        };
        let is_new = file.is_none();
        let mut all = match file {
            Some(file) if file.snapshot == self.snapshot => return Ok(false),
            Some(file) => file.into_groups(self.grouping),
            None => Groups::default(),
        };
        all.add_all(self.grouping, groups);
        self.write(hour, all)?;
        Ok(is_new)
    }

    /// Adds each snapshot that has a file of its own, `{hour}+{snapshot}.json`, to the file of the
    /// hour, as far as that file can be read now. Must not be called while a snapshot is
    /// unfinished, because the file of an hour names only the last snapshot that was added to it.
    pub(super) fn fold_waiting(&mut self, unreadable: &mut Option<Error>) -> Result<(), Error> {
        let mut blocked = BTreeSet::new();
        for (hour, snapshot) in self.waiting.clone() {
            let period = format!("{hour}+{snapshot}");
            let file = self.read(&hour);
            let both = file.and_then(|file| Ok((file, self.read(&period)?)));
            let (file, waiting) = match both {
                _ if blocked.contains(&hour) => continue,
                Err(error) if error.is_unreadable() => {
                    unreadable.get_or_insert(error);
                    blocked.insert(hour);
                    continue;
                }
                both => both?,
            };
            let is_added = file.as_ref().is_some_and(|file| file.snapshot == snapshot);
            if let Some(waiting) = waiting.filter(|_| !is_added) {
                let file = file.map(|file| file.into_groups(self.grouping));
                let mut all = file.unwrap_or_default();
                all.add_all(self.grouping, &waiting.into_groups(self.grouping));
                self.snapshot = snapshot;
                self.write(&hour, all)?;
                self.sync()?;
            }
            // Sync the deletion before the next snapshot is added. Otherwise a power failure could
            // restore this file after the next snapshot has replaced its id in the file of the
            // hour, and the records in this file would be added a second time.
            let path = self.data.usage.join(format!("{period}.json"));
            match files::remove(self.disk, &path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(Error::new("delete", &path, error));
                }
                _ => self.sync()?,
            }
            self.waiting.remove(&(hour, snapshot));
        }
        Ok(())
    }

    /// Adds the snapshot's groups of a day to the file of the day, unless the file has the
    /// snapshot. Returns true if the file is new. A new file begins with the sum of the files of
    /// the day's hours, which have the snapshot already. So only the groups of hours before
    /// `oldest`, which have no files, are added to a new file.
    pub(super) fn fold_day(
        &self,
        day: &str,
        hours: &[(Moment, Groups)],
        oldest: Moment,
    ) -> Result<bool, Error> {
        let file = self.read(day)?;
        let is_new = file.is_none();
        let mut all = match file {
            Some(file) if file.snapshot == self.snapshot => return Ok(false),
            Some(file) => file.into_groups(self.grouping),
            None => self.sum_of_hours(day)?,
        };
        for (hour, groups) in hours {
            if !is_new || *hour < oldest {
                all.add_all(self.grouping, groups);
            }
        }
        self.write(day, all)?;
        Ok(is_new)
    }

    /// Adds up the files of a day's hours. Snapshots that could not be added to the file of an
    /// hour, because it was unreadable, are in files of their own and are added as well.
    pub(super) fn sum_of_hours(&self, day: &str) -> Result<Groups, Error> {
        let mut all = Groups::default();
        for hour in 0..24 {
            let hour = format!("{day}T{hour:02}");
            let file = self.read(&hour)?;
            let last = file.as_ref().map(|file| file.snapshot);
            if let Some(file) = file {
                all.add_all(self.grouping, &file.into_groups(self.grouping));
            }
            let waiting = self.waiting.iter().filter(|(of, _)| *of == hour);
            for (_, snapshot) in waiting.filter(|(_, snapshot)| Some(*snapshot) != last) {
                if let Some(file) = self.read(&format!("{hour}+{snapshot}"))? {
                    all.add_all(self.grouping, &file.into_groups(self.grouping));
                }
            }
        }
        Ok(all)
    }

    /// Deletes the files of hours before `oldest`. Their records are in the files of the days.
    pub(super) fn remove_hours_before(&self, oldest: &str) -> Result<(), Error> {
        let mut old = Vec::new();
        for_each_file(self.disk, &self.data.usage, |name| {
            let hour = period_of(name).filter(|period| is_hour(period));
            old.extend(hour.filter(|hour| *hour < oldest).map(|_| name.to_owned()));
        })?;
        for name in old {
            if let Err(error) = files::remove(self.disk, &self.data.usage.join(&name))
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(name, %error, "cannot delete old totals of an hour");
            }
        }
        Ok(())
    }

    /// Marks the totals as incomplete, because they lack records. The mark is on disk when this
    /// returns.
    pub(super) fn note_incomplete(&self, error: &Error) -> Result<(), Error> {
        note_incomplete(self.disk, self.data, error)?;
        self.sync()
    }

    pub(super) fn read(&self, period: &str) -> Result<Option<PeriodTotals>, Error> {
        read(self.disk, self.data, &format!("{period}.json"))
    }

    pub(super) fn write(&self, period: &str, groups: Groups) -> Result<(), Error> {
        let file = PeriodTotals::new(period, self.snapshot, groups);
        let name = format!("{period}.json");
        write_atomically(self.disk, &self.data.usage, &name, &file.encode())
    }

    pub(super) fn sync(&self) -> Result<(), Error> {
        let dir = &self.data.usage;
        self.disk
            .sync_dir(dir)
            .map_err(|error| Error::new("sync", dir, error))
    }
}

/// Moves the error of a totals file that cannot be read to `unreadable`, so that the other files
/// are still processed. The unreadable file was not changed.
pub(super) fn if_readable(
    done: Result<bool, Error>,
    unreadable: &mut Option<Error>,
) -> Result<bool, Error> {
    match done {
        Err(error) if error.is_unreadable() => {
            unreadable.get_or_insert(error);
            Ok(false)
        }
        done => done,
    }
}

//! Totals by day, and for some time by hour: `usage/{day}.json`, `usage/{day}T{hour}.json`, folded
//! once for every batch.
//!
//! ```text
//! {"version":1,"day":"2026-11-16","snapshot":"<uuid>","totals":[{"model":"llama3","key":null,
//!  "backend":"gpu-1","records":12,"total":999,"sums":{"prompt_tokens":345},
//!  "counts":{"outcome":{"complete":12}}}],"crc":"xxxxxxxx"}
//! ```
//!
//! What is summed up: every field of a record that is called `tokens` or ends in `_tokens`.

pub(crate) mod sum;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::data_dir::DataDir;
use crate::disk::Disk;
use crate::entry_journal::RecordsPerDay;
use crate::error::Error;
use crate::fields::Fields;
use crate::files::{self, for_each_file, read_bounded, write_atomically};
use crate::journal::{decode, decode_version, encode};
use crate::quarantine::set_aside;
use crate::time::{HOUR, Moment};
use sum::{Group, Groups, Sum};

const VERSION: u32 = 1;
/// Exists while the totals lack records, since a file of them could not be read.
const INCOMPLETE: &str = ".incomplete";
/// For how long there are totals by hour; those by day are kept.
const HOURS_KEPT: Duration = Duration::from_secs(40 * 24 * 3600);
/// A record counts on the day of its id if that is at most so long ago ...
const OLDEST: Duration = Duration::from_secs(3653 * 24 * 3600);
/// ... or in the future, by clocks that differ.
const NEWEST: Duration = Duration::from_secs(24 * 3600);

#[derive(Serialize, Deserialize)]
struct Row {
    #[serde(flatten)]
    group: Group,
    #[serde(flatten)]
    sum: Sum,
}

/// The file of a day, or of an hour.
#[derive(Serialize, Deserialize)]
pub(crate) struct Period {
    version: u32,
    /// `2026-11-16` or `2026-11-16T13`
    day: String,
    /// The last snapshot that is in it.
    pub(crate) snapshot: Uuid,
    totals: Vec<Row>,
}

/// What every version of such a file has.
#[derive(Deserialize)]
struct Version {
    version: u32,
}

/// The totals of one snapshot by hour, until they are added to the files.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    /// When the snapshot was taken.
    at: Moment,
    hours: BTreeMap<Moment, Groups>,
}

/// Returns the hour in which a record counts that is consolidated at this time. The writer of a
/// record decides on the time of its id. One that cannot be right counts as the first hour of 1970,
/// so that the number of files is bounded. After a crash the same snapshot gives the same hours.
pub(crate) fn hour_of(id: Uuid, at: Moment) -> Moment {
    let time = Moment::from_id(id);
    if at.since(time) <= OLDEST && time.since(at) <= NEWEST {
        time.floor(HOUR)
    } else {
        Moment::default()
    }
}

impl Totals {
    pub(crate) fn new(snapshot: Uuid) -> Self {
        Self {
            at: Moment::from_id(snapshot),
            hours: BTreeMap::new(),
        }
    }

    /// Adds the record with this id, by its fields.
    pub(crate) fn add(&mut self, id: Uuid, fields: &Fields<'_>) {
        let hour = hour_of(id, self.at);
        sum::add_record(self.hours.entry(hour).or_default(), fields);
    }

    /// Adds this snapshot to the files, each unless it is in there already. A file that cannot be read
    /// is left as it is, and is returned: [`repair`] makes up for it.
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
        let mut files = Files::new(disk, data, snapshot)?;
        let (mut is_new, mut unreadable) = (false, None);
        for (day, hours) in days {
            // Hours come first: a day whose file is missing is made of them.
            for (hour, groups) in hours.iter().filter(|(hour, _)| *hour >= oldest) {
                is_new |= files.fold_hour(&hour.hour(), groups, &mut unreadable)?;
            }
            let folded = files.fold_day(&day, &hours, oldest);
            // Its hours have this snapshot: it is made of them when it can be read.
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
            remove_old_hours(disk, data, &oldest.hour())?;
        }
        files.sync()?;
        Ok(unreadable)
    }
}

/// The files of the totals, and the snapshot that is folded into them.
struct Files<'a> {
    disk: &'a dyn Disk,
    data: &'a DataDir,
    snapshot: Uuid,
    /// Hours whose file could not be read, and snapshots that wait for it in a file of their own:
    /// `{hour}+{snapshot}.json`.
    later: BTreeSet<(String, Uuid)>,
}

impl<'a> Files<'a> {
    fn new(disk: &'a dyn Disk, data: &'a DataDir, snapshot: Uuid) -> Result<Self, Error> {
        let mut later = BTreeSet::new();
        if are_incomplete(disk, data)? {
            for_each_file(disk, &data.usage, |name| {
                let period = name.strip_suffix(".json");
                let parts = period.and_then(|period| period.split_once('+'));
                if let Some((hour, set)) = parts
                    && let Ok(set) = Uuid::try_parse(set)
                {
                    later.insert((hour.to_owned(), set));
                }
            })?;
        }
        Ok(Self {
            disk,
            data,
            snapshot,
            later,
        })
    }

    /// `true`: there was no such file. If it cannot be read, the snapshot waits for it, and so do those
    /// that follow.
    fn fold_hour(
        &mut self,
        hour: &str,
        groups: &Groups,
        unreadable: &mut Option<Error>,
    ) -> Result<bool, Error> {
        let is_waiting = self.later.iter().any(|(other, _)| other == hour);
        let file = if is_waiting {
            None
        } else {
            match read(self.disk, self.data, &format!("{hour}.json")) {
                Err(error) if error.is_unreadable() => {
                    self.note_incomplete(&error)?;
                    unreadable.get_or_insert(error);
                    None
                }
                file => Some(file?),
            }
        };
        let Some(file) = file else {
            self.later.insert((hour.to_owned(), self.snapshot));
            self.write(&format!("{hour}+{}", self.snapshot), groups.clone())?;
            return Ok(false);
        };
        let is_new = file.is_none();
        let mut all = match file {
            Some(file) if file.snapshot == self.snapshot => return Ok(false),
            Some(file) => file.into_groups(),
            None => Groups::new(),
        };
        add_all(&mut all, groups);
        self.write(hour, all)?;
        Ok(is_new)
    }

    /// Adds the snapshots that wait to the files of their hours, as far as those can be read. No set
    /// may be unfinished: the file says only which snapshot it has last.
    fn fold_later(&mut self, unreadable: &mut Option<Error>) -> Result<(), Error> {
        let mut blocked = BTreeSet::new();
        for (hour, set) in self.later.clone() {
            let name = format!("{hour}+{set}.json");
            let file = read(self.disk, self.data, &format!("{hour}.json"));
            let both = file.and_then(|file| Ok((file, read(self.disk, self.data, &name)?)));
            let (file, later) = match both {
                _ if blocked.contains(&hour) => continue,
                Err(error) if error.is_unreadable() => {
                    unreadable.get_or_insert(error);
                    blocked.insert(hour);
                    continue;
                }
                both => both?,
            };
            let is_in = file.as_ref().is_some_and(|file| file.snapshot == set);
            if let Some(later) = later.filter(|_| !is_in) {
                let mut all = file.map(Period::into_groups).unwrap_or_default();
                add_all(&mut all, &later.into_groups());
                self.snapshot = set;
                self.write(&hour, all)?;
                self.sync()?;
            }
            // On the disk before the next one is added: otherwise this one would be added again.
            let path = self.data.usage.join(&name);
            match files::remove(self.disk, &path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(Error::new("delete", &path, error));
                }
                _ => self.sync()?,
            }
            self.later.remove(&(hour, set));
        }
        Ok(())
    }

    /// Notes that the totals lack records. On the disk when this returns.
    fn note_incomplete(&self, error: &Error) -> Result<(), Error> {
        let text = format!("{error}\n");
        write_atomically(self.disk, &self.data.usage, INCOMPLETE, text.as_bytes())?;
        self.sync()
    }

    /// The same for a day. One whose file is missing is made of its hours, which have this snapshot
    /// already, and of what is too old for an hour's file.
    fn fold_day(
        &self,
        day: &str,
        hours: &[(Moment, Groups)],
        oldest: Moment,
    ) -> Result<bool, Error> {
        let file = read(self.disk, self.data, &format!("{day}.json"))?;
        let is_new = file.is_none();
        let mut all = match file {
            Some(file) if file.snapshot == self.snapshot => return Ok(false),
            Some(file) => file.into_groups(),
            None => self.sum_of_hours(day)?,
        };
        for (hour, groups) in hours {
            if !is_new || *hour < oldest {
                add_all(&mut all, groups);
            }
        }
        self.write(day, all)?;
        Ok(is_new)
    }

    /// Makes the file of a day anew if it has fewer records than it must have, and its hours have more.
    /// `true`: it was made.
    fn repair_day(&self, day: &str, expected: u64) -> Result<bool, Error> {
        let file = read(self.disk, self.data, &format!("{day}.json"))?;
        let found = file.map_or(0, |file| file.records());
        if found >= expected {
            return Ok(false);
        }
        let groups = self.sum_of_hours(day)?;
        let in_hours: u64 = groups.values().map(|sum| sum.records).sum();
        if in_hours <= found {
            return Ok(false);
        }
        tracing::warn!(
            day,
            "the totals of a day lacked records: made anew from its hours"
        );
        self.write(day, groups)?;
        Ok(true)
    }

    fn sum_of_hours(&self, day: &str) -> Result<Groups, Error> {
        let mut all = Groups::new();
        for hour in 0..24 {
            let hour = format!("{day}T{hour:02}");
            let file = read(self.disk, self.data, &format!("{hour}.json"))?;
            let last = file.as_ref().map(|file| file.snapshot);
            if let Some(file) = file {
                add_all(&mut all, &file.into_groups());
            }
            let later = self.later.iter().filter(|(of, _)| *of == hour);
            for (_, set) in later.filter(|(_, set)| Some(*set) != last) {
                if let Some(file) = read(self.disk, self.data, &format!("{hour}+{set}.json"))? {
                    add_all(&mut all, &file.into_groups());
                }
            }
        }
        Ok(all)
    }

    fn write(&self, period: &str, groups: Groups) -> Result<(), Error> {
        let rows = groups.into_iter().map(|(group, sum)| Row { group, sum });
        let file = Period {
            version: VERSION,
            day: period.to_owned(),
            snapshot: self.snapshot,
            totals: rows.collect(),
        };
        let name = format!("{period}.json");
        write_atomically(self.disk, &self.data.usage, &name, &encode(&file))
    }

    fn sync(&self) -> Result<(), Error> {
        let dir = &self.data.usage;
        self.disk
            .sync_dir(dir)
            .map_err(|error| Error::new("sync", dir, error))
    }
}

fn add_all(all: &mut Groups, groups: &Groups) {
    for (group, sum) in groups {
        sum::add(all, group.clone(), sum);
    }
}

/// Days whose files are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    /// Those whose file is missing.
    Missing,
    /// All, by the number of their records in the journal.
    Known,
    /// All, by the files of their hours, since a file could not be read. The journal may not have every
    /// record on a full disk. No set may be unfinished.
    Hours,
}

/// Makes the files of days anew from those of their hours: of days that are missing, damaged or lack
/// records. Comes after a fold: the hours have its snapshot. Returns a file that cannot be read now, if
/// there is one.
pub(crate) fn repair(
    disk: &dyn Disk,
    data: &DataDir,
    days: &RecordsPerDay,
    snapshot: Uuid,
    check: Check,
) -> Result<Option<Error>, Error> {
    let mut files = Files::new(disk, data, snapshot)?;
    let oldest = Moment::from_id(snapshot).before(HOURS_KEPT).day();
    let mut found = BTreeSet::new();
    for_each_file(disk, &data.usage, |name| {
        found.extend(period_of(name).filter(|of| !is_hour(of)).map(str::to_owned));
    })?;
    let (mut is_changed, mut unreadable) = (false, None);
    let mut all = days.clone();
    if check == Check::Hours {
        files.fold_later(&mut unreadable)?;
        files.snapshot = snapshot;
        for records in all.values_mut() {
            *records = u64::MAX;
        }
        all.extend(found.iter().map(|day| (day.clone(), u64::MAX)));
    }
    for (day, expected) in all.iter().filter(|(day, _)| **day >= oldest) {
        if check != Check::Missing || !found.contains(day) {
            let repaired = files.repair_day(day, *expected);
            is_changed |= if_readable(repaired, &mut unreadable)?;
        }
    }
    if is_changed {
        files.sync()?;
    }
    Ok(unreadable)
}

/// True if the totals lack records, since a file of them could not be read.
pub(crate) fn are_incomplete(disk: &dyn Disk, data: &DataDir) -> Result<bool, Error> {
    let path = data.usage.join(INCOMPLETE);
    files::exists(disk, &path).map_err(|error| Error::new("find", &path, error))
}

/// Notes that the totals are complete.
pub(crate) fn note_complete(disk: &dyn Disk, data: &DataDir) -> Result<(), Error> {
    let path = data.usage.join(INCOMPLETE);
    match files::remove(disk, &path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::new("delete", &path, error))
        }
        _ => Ok(()),
    }
}

/// A file that cannot be read holds up nothing else: it is noted, and was not changed.
fn if_readable(done: Result<bool, Error>, unreadable: &mut Option<Error>) -> Result<bool, Error> {
    match done {
        Err(error) if error.is_unreadable() => {
            unreadable.get_or_insert(error);
            Ok(false)
        }
        done => done,
    }
}

/// Returns what is wrong with the totals of a day that has fewer records than were consolidated.
pub(crate) fn gap(found: u64, expected: u64) -> Option<String> {
    let missing = expected.checked_sub(found).filter(|missing| *missing > 0)?;
    Some(format!(
        "its totals lack {missing} of at least {expected} records"
    ))
}

impl Period {
    pub(crate) fn records(&self) -> u64 {
        self.totals.iter().map(|row| row.sum.records).sum()
    }

    pub(crate) fn into_groups(self) -> Groups {
        let rows = self.totals.into_iter();
        rows.map(|row| (row.group, row.sum.completed())).collect()
    }
}

/// What they add up to is in the files of the days.
fn remove_old_hours(disk: &dyn Disk, data: &DataDir, oldest: &str) -> Result<(), Error> {
    let mut old = Vec::new();
    for_each_file(disk, &data.usage, |name| {
        let hour = period_of(name).filter(|period| is_hour(period));
        old.extend(hour.filter(|hour| *hour < oldest).map(|_| name.to_owned()));
    })?;
    for name in old {
        if let Err(error) = files::remove(disk, &data.usage.join(&name))
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(name, %error, "old totals that cannot be removed");
        }
    }
    Ok(())
}

/// The day or hour that a file has the totals of, by its name.
pub(crate) fn period_of(name: &str) -> Option<&str> {
    let period = name.strip_suffix(".json")?;
    let pattern = b"0000-00-00T00";
    let fits = |(byte, wanted): (u8, &u8)| match wanted {
        b'0' => byte.is_ascii_digit(),
        other => byte == *other,
    };
    let is_period = matches!(period.len(), 10 | 13) && period.bytes().zip(pattern).all(fits);
    is_period.then_some(period)
}

pub(crate) fn is_hour(period: &str) -> bool {
    period.len() == 13
}

/// The file of a period. One that is damaged is set aside, and begun anew.
fn read(disk: &dyn Disk, data: &DataDir, name: &str) -> Result<Option<Period>, Error> {
    let path = data.usage.join(name);
    let bytes = match read_bounded(disk, &path) {
        Ok(bytes) => bytes.unwrap_or_default(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::read(&path, error)),
    };
    match decode_version::<IgnoredAny>(&path, &bytes, VERSION) {
        Err(error) if error.is_version() => return Err(error),
        _ => {}
    }
    match check(name, &bytes) {
        Ok(period) => Ok(Some(period)),
        // A later release wrote it: not ours to replace.
        Err(why) if decode::<Version>(&bytes).is_ok_and(|file| file.version > VERSION) => {
            Err(Error::damage(&path, why))
        }
        Err(why) => {
            set_aside(disk, &data.failed, &format!("usage-{name}"), &bytes, &why)?;
            Ok(None)
        }
    }
}

/// Reads the file of a period and checks all that can be checked of it.
pub(crate) fn check(name: &str, bytes: &[u8]) -> Result<Period, String> {
    let period: Period = decode(bytes)?;
    if period.version != VERSION {
        return Err(format!("its version is {}, not {VERSION}", period.version));
    }
    if format!("{}.json", period.day) != name {
        return Err("it is not of the day in its name".to_owned());
    }
    Ok(period)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::RealDisk;
    use crate::record::Record;

    fn place() -> (tempfile::TempDir, DataDir) {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::new(dir.path());
        data.make(&RealDisk).unwrap();
        (dir, data)
    }

    fn fold(data: &DataDir, texts: &[&str], snapshot: Uuid) {
        let mut totals = Totals::new(snapshot);
        for text in texts {
            let record = Record::parse(text).unwrap();
            totals.add(record.id(), &sum::fields(&record).unwrap());
        }
        totals.fold(&RealDisk, data, snapshot).unwrap();
    }

    fn groups(data: &DataDir, name: &str) -> Groups {
        let bytes = std::fs::read(data.usage.join(name)).unwrap();
        check(name, &bytes).unwrap().into_groups()
    }

    #[test]
    fn totals_are_by_model_key_and_backend_and_of_tokens_alone() {
        let (_dir, data) = place();
        let now = Uuid::now_v7();
        let id = format!(r#""id":"{now}""#);
        let named = r#""model":"a","key":"k","backend":"b""#;
        let big = format!(r#"{{{id},{named},"prompt_tokens":18446744073709551615}}"#);
        let first = format!(r#"{{{id},{named},"prompt_tokens":7,"status":200}}"#);
        let odd = format!(r#"{{{id},"model":7,"tokens":-1,"x_tokens":1.5,"y_tokens":"9"}}"#);
        let (one, two) = (Uuid::now_v7(), Uuid::now_v7());
        fold(&data, &[&first, &odd], one);
        fold(&data, &[&first, &odd], one); // As after a crash.
        fold(&data, &[&big], two);
        let now = Moment::from_id(now);
        for period in [now.day(), now.hour()] {
            let groups = groups(&data, &format!("{period}.json"));
            let [nobody, known]: [_; 2] = Vec::from_iter(groups).try_into().unwrap();
            assert_eq!((nobody.0, nobody.1.records), (Group::default(), 1));
            assert!(nobody.1.sums.is_empty());
            assert_eq!(known.0.model.as_deref(), Some("a"));
            assert_eq!(known.1.records, 2);
            // It does not turn over.
            assert_eq!(known.1.sums["prompt_tokens"], u64::MAX);
        }
    }

    #[test]
    fn a_file_from_before_there_were_totals_is_read() {
        let (_dir, data) = place();
        let old = serde_json::json!({
            "version": 1, "day": "2023-06-30", "snapshot": Uuid::now_v7(), "totals": [
                { "model": null, "key": null, "backend": null, "records": 2, "sums": { "tokens": 5 } },
            ],
        });
        std::fs::write(data.usage.join("2023-06-30.json"), encode(&old)).unwrap();
        let id = "01890a5d-ac96-774b-bcce-b302099a8057";
        fold(
            &data,
            &[&format!(r#"{{"id":"{id}","tokens":4}}"#)],
            Uuid::now_v7(),
        );
        let groups = groups(&data, "2023-06-30.json");
        let sum = &groups[&Group::default()];
        assert_eq!((sum.records, sum.total, sum.sums["tokens"]), (3, 9, 9));
    }

    #[test]
    fn old_hours_go_and_days_stay() {
        let (_dir, data) = place();
        let old = r#"{"id":"01890a5d-ac96-774b-bcce-b302099a8057"}"#;
        std::fs::write(data.usage.join("2023-06-30T02.json"), "").unwrap();
        fold(&data, &[old, "{}"], Uuid::now_v7());
        assert!(data.usage.join("2023-06-30.json").exists());
        let names: Vec<_> = std::fs::read_dir(&data.usage).unwrap().collect();
        assert_eq!(names.len(), 3, "{names:?}");
    }

    #[test]
    fn times_that_cannot_be_right_share_one_day() {
        let (_dir, data) = place();
        let (now, mut totals) = (Uuid::now_v7(), Totals::new(Uuid::now_v7()));
        // A year apart each, from 1970 far into the future.
        for year in 0..5000_u128 {
            let millis = year * 366 * 24 * 3600 * 1000;
            let id = Uuid::from_u128(millis << 80 | 0x7000_8000_0000_0000_0000);
            let record = Record::parse(&format!(r#"{{"id":"{id}"}}"#)).unwrap();
            totals.add(record.id(), &sum::fields(&record).unwrap());
        }
        totals.fold(&RealDisk, &data, now).unwrap();
        let files = std::fs::read_dir(&data.usage).unwrap().count();
        assert!(files <= 12, "{files}");
        let groups = groups(&data, "1970-01-01.json");
        let records: u64 = groups.values().map(|sum| sum.records).sum();
        assert!(records > 4980, "{records}");
    }

    #[test]
    fn a_file_of_a_later_version_is_refused_and_kept() {
        let (_dir, data) = place();
        let now = Uuid::now_v7();
        let path = data
            .usage
            .join(format!("{}.json", Moment::from_id(now).day()));
        let later = encode(&serde_json::json!({ "version": 2, "days": [] }));
        std::fs::write(&path, &later).unwrap();
        let mut totals = Totals::new(now);
        let record = Record::parse("{}").unwrap();
        totals.add(record.id(), &sum::fields(&record).unwrap());
        assert!(totals.fold(&RealDisk, &data, now).is_err());
        assert_eq!(std::fs::read(path).unwrap(), later);
    }

    #[test]
    fn other_files_are_of_no_period() {
        for name in ["2026-11-16.json", "2026-11-16T13.json"] {
            assert_eq!(period_of(name), name.strip_suffix(".json"));
        }
        for name in [
            "2026-11-16",
            "2026-11-16.jsonl",
            "2026-11-1x.json",
            "2026-11-16T1.json",
            "2026-11-16 13.json",
            ".2026-11-16.json.tmp",
            "taken-00000001.jsonl",
        ] {
            assert_eq!(period_of(name), None, "{name}");
        }
    }
}

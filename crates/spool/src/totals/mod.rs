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

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::book::{decode, encode};
use crate::data_dir::{DataDir, for_each_file, place, read_bounded};
use crate::disk::Disk;
use crate::error::Error;
use crate::fields::Fields;
use crate::quarantine::set_aside;
use crate::time::{HOUR, Moment};
use sum::{Group, Groups, Sum};

const VERSION: u32 = 1;
/// For how long there are totals by hour; those by day are kept.
const HOURS_KEPT: Duration = Duration::from_secs(40 * 24 * 3600);

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

/// The totals of one snapshot by hour, until they are added to the files.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    hours: BTreeMap<Moment, Groups>,
}

impl Totals {
    /// Adds the record with this id, by its fields.
    pub(crate) fn add(&mut self, id: Uuid, fields: &Fields<'_>) {
        let hour = Moment::of(id).floor(HOUR);
        sum::add_record(self.hours.entry(hour).or_default(), fields);
    }

    /// By the names of days and of hours.
    fn periods(self) -> BTreeMap<String, Groups> {
        let mut periods = BTreeMap::<_, Groups>::new();
        for (hour, groups) in self.hours {
            let day = periods.entry(hour.day()).or_default();
            for (group, sum) in &groups {
                sum::add(day, group.clone(), sum);
            }
            periods.insert(hour.hour(), groups);
        }
        periods
    }

    /// Adds this snapshot to the files, each unless it is in there already.
    pub(crate) fn fold(self, disk: &dyn Disk, data: &DataDir, snapshot: Uuid) -> Result<(), Error> {
        let (mut is_new, oldest) = (false, oldest_hour());
        for (day, groups) in self.periods() {
            if is_hour(&day) && day < oldest {
                continue;
            }
            let name = format!("{day}.json");
            let mut all = match read(disk, data, &name)? {
                Some(file) if file.snapshot == snapshot => continue,
                Some(file) => file.into_groups(),
                None => {
                    is_new = true;
                    Groups::new()
                }
            };
            for (group, sum) in groups {
                sum::add(&mut all, group, &sum);
            }
            let rows = all.into_iter().map(|(group, sum)| Row { group, sum });
            let file = Period {
                version: VERSION,
                day,
                snapshot,
                totals: rows.collect(),
            };
            place(disk, &data.usage, &name, &encode(&file))?;
        }
        let dir = &data.usage;
        if is_new {
            remove_old_hours(disk, data, &oldest)?;
        }
        disk.sync_dir(dir)
            .map_err(|error| Error::new("sync", dir, error))
    }
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

/// The first one that is kept, if the clock is right.
fn oldest_hour() -> String {
    let oldest = SystemTime::now().checked_sub(HOURS_KEPT);
    Moment::from(oldest.unwrap_or(SystemTime::UNIX_EPOCH)).hour()
}

/// What they add up to is in the files of the days.
fn remove_old_hours(disk: &dyn Disk, data: &DataDir, oldest: &str) -> Result<(), Error> {
    let mut old = Vec::new();
    for_each_file(disk, &data.usage, |name| {
        let hour = period_of(name).filter(|period| is_hour(period));
        old.extend(hour.filter(|hour| *hour < oldest).map(|_| name.to_owned()));
    })?;
    for name in old {
        if let Err(error) = disk.remove(&data.usage.join(&name))
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
    match check(name, &bytes) {
        Ok(period) => Ok(Some(period)),
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
        let mut totals = Totals::default();
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
        let now = Moment::of(now);
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

//! Totals by day: `usage/{day}.json`, folded once for every batch.
//!
//! ```text
//! {"version":1,"day":"2026-11-16","snapshot":"<uuid>","totals":[{"model":"llama3","key":null,
//!  "backend":"gpu-1","records":12,"sums":{"prompt_tokens":345}}],"crc":"xxxxxxxx"}
//! ```
//!
//! What is summed up: every field of a record that is called `tokens` or ends in `_tokens`.

use std::collections::BTreeMap;
use std::io;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::book::{decode, encode};
use crate::data_dir::{DataDir, place};
use crate::disk::Disk;
use crate::error::Error;
use crate::quarantine::set_aside;
use crate::record::Record;
use crate::time::day_of;

const VERSION: u32 = 1;
/// Beyond so many groups a day, records are summed up without saying whose they are: a producer
/// that makes names up must not fill the memory.
const MOST_GROUPS: usize = 4096;
const LONGEST_NAME: usize = 200;

/// By what records are told apart.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Group {
    model: Option<String>,
    key: Option<String>,
    backend: Option<String>,
}

/// What the records of a group add up to.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Sum {
    records: u64,
    sums: BTreeMap<String, u64>,
}

#[derive(Serialize, Deserialize)]
struct Row {
    #[serde(flatten)]
    group: Group,
    #[serde(flatten)]
    sum: Sum,
}

/// The file of a day.
#[derive(Serialize, Deserialize)]
pub(crate) struct Day {
    version: u32,
    #[serde(rename = "day")]
    date: String,
    /// The last snapshot that is in it.
    snapshot: Uuid,
    totals: Vec<Row>,
}

/// The totals of one snapshot, until they are added to the files.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    days: BTreeMap<String, BTreeMap<Group, Sum>>,
}

impl Totals {
    pub(crate) fn add(&mut self, record: &Record) {
        let groups = self.days.entry(day_of(record.id())).or_default();
        let fields = record.fields();
        let name = |field: &str| {
            let text: String = serde_json::from_str(fields.get(field)?.get()).ok()?;
            Some(text.chars().take(LONGEST_NAME).collect())
        };
        let group = Group {
            model: name("model"),
            key: name("key"),
            backend: name("backend"),
        };
        let sum = place_in(groups, group);
        sum.records += 1;
        for (name, value) in &fields {
            let is_summed = name == "tokens" || name.ends_with("_tokens");
            let number = is_summed.then(|| value.get().parse::<u64>().ok()).flatten();
            if let Some(number) = number {
                let sum = sum.sums.entry(name.to_string()).or_default();
                *sum = sum.saturating_add(number);
            }
        }
    }

    /// Adds this snapshot to the files, each unless it is in there already.
    pub(crate) fn fold(self, disk: &dyn Disk, data: &DataDir, snapshot: Uuid) -> Result<(), Error> {
        for (day, groups) in self.days {
            let name = format!("{day}.json");
            let mut all = match read(disk, data, &name)? {
                Some(file) if file.snapshot == snapshot => continue,
                Some(file) => (file.totals.into_iter())
                    .map(|row| (row.group, row.sum))
                    .collect(),
                None => BTreeMap::new(),
            };
            for (group, sum) in groups {
                place_in(&mut all, group).add(&sum);
            }
            let rows = all.into_iter().map(|(group, sum)| Row { group, sum });
            let file = Day {
                version: VERSION,
                date: day,
                snapshot,
                totals: rows.collect(),
            };
            place(disk, &data.usage, &name, &encode(&file))?;
        }
        let dir = &data.usage;
        disk.sync_dir(dir)
            .map_err(|error| Error::new("sync", dir, error))
    }
}

impl Sum {
    fn add(&mut self, other: &Self) {
        self.records += other.records;
        for (name, number) in &other.sums {
            let sum = self.sums.entry(name.clone()).or_default();
            *sum = sum.saturating_add(*number);
        }
    }
}

fn place_in(groups: &mut BTreeMap<Group, Sum>, group: Group) -> &mut Sum {
    let is_full = groups.len() >= MOST_GROUPS && !groups.contains_key(&group);
    groups
        .entry(if is_full { Group::default() } else { group })
        .or_default()
}

/// The file of a day. One that is damaged is set aside, and begun anew.
fn read(disk: &dyn Disk, data: &DataDir, name: &str) -> Result<Option<Day>, Error> {
    let path = data.usage.join(name);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::read(&path, error)),
    };
    match check(name, &bytes) {
        Ok(day) => Ok(Some(day)),
        Err(why) => {
            set_aside(disk, &data.failed, &format!("usage-{name}"), &bytes, &why)?;
            Ok(None)
        }
    }
}

/// Reads the file of a day and checks all that can be checked of it.
pub(crate) fn check(name: &str, bytes: &[u8]) -> Result<Day, String> {
    let day: Day = decode(bytes)?;
    if day.version != VERSION {
        return Err(format!("its version is {}, not {VERSION}", day.version));
    }
    if format!("{}.json", day.date) != name {
        return Err("it is not of the day in its name".to_owned());
    }
    Ok(day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::RealDisk;

    #[test]
    fn totals_are_by_model_key_and_backend_and_of_tokens_alone() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::new(dir.path());
        data.make(&RealDisk).unwrap();
        let fold = |texts: &[&str], snapshot| {
            let mut totals = Totals::default();
            for text in texts {
                totals.add(&Record::parse(text).unwrap());
            }
            totals.fold(&RealDisk, &data, snapshot).unwrap();
        };
        let (one, two) = (Uuid::now_v7(), Uuid::now_v7());
        let big = r#"{"model":"a","key":"k","backend":"b","prompt_tokens":18446744073709551615}"#;
        let first = r#"{"model":"a","key":"k","backend":"b","prompt_tokens":7,"status":200}"#;
        let odd = r#"{"model":7,"tokens":-1,"x_tokens":1.5,"y_tokens":"9"}"#;
        fold(&[first, odd], one);
        fold(&[first, odd], one); // As after a crash.
        fold(&[big], two);
        let names: Vec<_> = std::fs::read_dir(&data.usage).unwrap().collect();
        let path = names[0].as_ref().unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let day = check(name, &std::fs::read(&path).unwrap()).unwrap();
        let [nobody, known] = &*day.totals else {
            unreachable!("two groups");
        };
        assert_eq!((&nobody.group, nobody.sum.records), (&Group::default(), 1));
        assert!(nobody.sum.sums.is_empty());
        assert_eq!(known.group.model.as_deref(), Some("a"));
        assert_eq!(known.sum.records, 2);
        // It does not turn over.
        assert_eq!(known.sum.sums["prompt_tokens"], u64::MAX);
    }
}

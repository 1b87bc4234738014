//! Usage of the last 24 hours by model and key, from the totals by hour and the staged records.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::time::{Duration, SystemTime};

use spool::TallyRow;

use super::format::{Usage, UsageHour, UsageSum};
use crate::lock::rfc3339;
use crate::{meter, text};

const HOUR: Duration = Duration::from_secs(3600);
/// Number of hours, with the current one.
const HOURS: u32 = 24;
/// Maximum number of names of models, and of keys. The rest is summed up as [`OTHER`].
pub(super) const MAX_NAMES: usize = 12;
/// Maximum number of characters of a name.
const MAX_NAME: usize = 128;
/// Name of the sum of all models or keys that are not listed.
const OTHER: &str = "other";
/// Name of records without a model or a key.
const NONE: &str = "(none)";

/// Adds up the usage of the last 24 hours in a data directory.
pub(super) fn read(data: &Path, now: SystemTime) -> Result<Usage, spool::Error> {
    let from = first_hour(now);
    let tally = spool::tally_by_hour(data, &meter::grouping(), Some(from), None)?;
    Ok(Usage {
        hours: hours(&tally.rows, from),
        as_of: Some(rfc3339(now)),
    })
}

/// Start of the first of the hours that are shown.
fn first_hour(now: SystemTime) -> SystemTime {
    let since = now
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let start = Duration::from_secs(since.as_secs() / HOUR.as_secs() * HOUR.as_secs());
    SystemTime::UNIX_EPOCH + start.saturating_sub(HOUR * (HOURS - 1))
}

/// Returns every hour from `from`, also those without usage. Rows of whole days, whose totals by hour do
/// not exist, are left out.
fn hours(rows: &[TallyRow], from: SystemTime) -> Vec<UsageHour> {
    let shown = ["model", "key"].map(|field| largest(rows, field));
    let index = |row: &TallyRow| {
        let after = row.start?.duration_since(from).ok()?;
        u32::try_from(after.as_secs() / HOUR.as_secs()).ok()
    };
    let mut by_hour: HashMap<u32, Vec<&TallyRow>> = HashMap::new();
    for row in rows {
        if let Some(index) = index(row) {
            by_hour.entry(index).or_default().push(row);
        }
    }
    let hour = |index| {
        let rows = by_hour.get(&index).map_or(&[][..], Vec::as_slice);
        UsageHour {
            start: rfc3339(from + HOUR * index),
            model: sums(rows, "model", &shown[0]),
            key: sums(rows, "key", &shown[1]),
        }
    };
    (0..HOURS).map(hour).collect()
}

/// Returns the names with the most tokens in all hours.
fn largest(rows: &[TallyRow], field: &str) -> HashSet<String> {
    let mut totals: HashMap<String, u64> = HashMap::new();
    for row in rows {
        let total = totals.entry(name(row, field)).or_default();
        *total = total.saturating_add(row.total).saturating_add(1);
    }
    let mut names: Vec<_> = totals.into_iter().collect();
    names.sort_unstable_by(|one, other| (other.1, &one.0).cmp(&(one.1, &other.0)));
    names.truncate(MAX_NAMES);
    names.into_iter().map(|(name, _)| name).collect()
}

fn sums(rows: &[&TallyRow], field: &str, shown: &HashSet<String>) -> BTreeMap<String, UsageSum> {
    let mut sums: BTreeMap<String, UsageSum> = BTreeMap::new();
    for row in rows {
        let mut name = name(row, field);
        if !shown.contains(&name) {
            OTHER.clone_into(&mut name);
        }
        sums.entry(name).or_default().add(sum(row));
    }
    sums
}

fn name(row: &TallyRow, field: &str) -> String {
    let name = row.value(field).unwrap_or(NONE);
    text::plain(&text::shortened(name, MAX_NAME)).into_owned()
}

fn sum(row: &TallyRow) -> UsageSum {
    let get = |field: &str| row.sums.get(field).copied().unwrap_or_default();
    UsageSum {
        prompt: get("prompt_tokens"),
        completion: get("completion_tokens"),
        requests: row.records,
    }
}

#[cfg(test)]
mod tests {
    use spool::{Durability, Record, Staging};

    use super::*;

    /// Stages a record of now.
    fn stage(data: &Path, records: &[String]) {
        let staging = Staging::open(data.join("_staging")).unwrap();
        for record in records {
            let record = Record::parse(record).unwrap();
            staging.stage(&record, Durability::Process).unwrap();
        }
        staging.close().unwrap();
    }

    #[test]
    fn usage_has_24_hours_and_the_largest_names() {
        let dir = tempfile::tempdir().unwrap();
        let record = |model: usize| {
            format!(
                r#"{{"model":"m{model:02}","key":null,"backend":"b","prompt_tokens":{model},"completion_tokens":1,"tokens":{}}}"#,
                model + 1
            )
        };
        let records: Vec<_> = (0..MAX_NAMES + 3).map(record).collect();
        stage(dir.path(), &records);
        let usage = read(dir.path(), SystemTime::now()).unwrap();
        assert_eq!(usage.hours.len(), 24);
        // The hour may change between staging and reading.
        let used = usage.hours.iter().rev().find(|hour| !hour.model.is_empty());
        let used = used.unwrap();
        assert_eq!(used.model.len(), MAX_NAMES + 1);
        assert_eq!(used.model["m14"].prompt, 14);
        let other = used.model[OTHER];
        assert_eq!((other.prompt, other.completion, other.requests), (3, 3, 3));
        assert_eq!(used.key[NONE].requests, 15);
    }

    #[test]
    fn first_hour_is_23_hours_in_front_of_the_current_one() {
        let now: SystemTime = "2026-11-16T13:37:11Z"
            .parse::<jiff::Timestamp>()
            .unwrap()
            .into();
        assert_eq!(rfc3339(first_hour(now)), "2026-11-15T14:00:00Z");
        assert_eq!(first_hour(SystemTime::UNIX_EPOCH), SystemTime::UNIX_EPOCH);
    }
}

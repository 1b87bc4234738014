//! Files of totals: their names, their content and their checks.

use std::io;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::exact::ExactSums;
use super::group::Groups;
use super::grouping::Grouping;
use super::row::TotalsRow;
use crate::data_dir::DataDir;
use crate::disk::Disk;
use crate::error::Error;
use crate::files::read_bounded;
use crate::journal::{decode, decode_version, encode};
use crate::quarantine::set_aside;

const VERSION: u32 = 1;

/// Content of a file of totals, which is the file of a day or of an hour.
#[derive(Serialize, Deserialize)]
pub(crate) struct PeriodTotals {
    version: u32,
    /// The period: `2026-11-16` or `2026-11-16T13`.
    day: String,
    /// Id of the last snapshot that was added to the file. After a crash, it shows that this
    /// snapshot must not be added again.
    pub(crate) snapshot: Uuid,
    totals: Vec<TotalsRow>,
    /// Sums that do not depend on the maximum number of groups; absent in files of other programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    exact: Option<ExactSums>,
}

/// Version of a file of totals. All versions have this field, so that a file of a newer version can
/// be recognized.
#[derive(Deserialize)]
struct VersionField {
    version: u32,
}

impl PeriodTotals {
    pub(super) fn new(period: &str, snapshot: Uuid, groups: Groups) -> Self {
        let row = |(group, sum)| TotalsRow {
            group,
            sum,
            has_total: true,
        };
        Self {
            version: VERSION,
            day: period.to_owned(),
            snapshot,
            exact: Some(groups.exact().clone()).filter(|exact| !exact.is_empty()),
            totals: groups.into_iter().map(row).collect(),
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    pub(crate) fn records(&self) -> u64 {
        self.totals.iter().map(|row| row.sum.records).sum()
    }

    pub(crate) fn into_groups(self, grouping: &Grouping) -> Groups {
        let mut groups = Groups::default();
        for TotalsRow {
            group,
            mut sum,
            has_total,
        } in self.totals
        {
            if !has_total {
                sum.total = grouping.total(|field| sum.sums.get(field).copied());
            }
            groups.add_row(grouping, group, sum);
        }
        groups.set_exact(grouping, self.exact);
        groups
    }
}

/// Returns the day or the hour of a file of totals by its name. Returns `None` for other files.
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

/// True if a period is an hour, and not a day.
pub(crate) fn is_hour(period: &str) -> bool {
    period.len() == 13
}

/// Reads the file of a period. A damaged file is moved to `failed/` and counts as missing.
pub(super) fn read(
    disk: &dyn Disk,
    data: &DataDir,
    name: &str,
) -> Result<Option<PeriodTotals>, Error> {
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
        // A newer release wrote the file, so that this release must neither move nor replace the
        // file.
        Err(why) if decode::<VersionField>(&bytes).is_ok_and(|file| file.version > VERSION) => {
            Err(Error::damage(&path, why))
        }
        Err(why) => {
            set_aside(disk, &data.failed, &format!("usage-{name}"), &bytes, &why)?;
            Ok(None)
        }
    }
}

/// Decodes the file of a period, and checks its version and its name.
pub(crate) fn check(name: &str, bytes: &[u8]) -> Result<PeriodTotals, String> {
    let period: PeriodTotals = decode(bytes)?;
    if period.version != VERSION {
        return Err(format!(
            "the file has version {}, not {VERSION}",
            period.version
        ));
    }
    if format!("{}.json", period.day) != name {
        return Err(
            "the day or hour in the file of totals differs from that in the name of the file"
                .to_owned(),
        );
    }
    Ok(period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_other_files_have_no_period() {
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

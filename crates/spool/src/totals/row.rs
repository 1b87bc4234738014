//! A row of a file of totals: a group and its sums, in one JSON object.
//!
//! ```text
//! {"customer":"acme","region":null,"records":12,"total":999,"sums":{"bytes":999},
//!  "counts":{"status":{"ok":12}}}
//! ```
//!
//! A row names its own group fields, so that it is read whatever grouping wrote it. A group field
//! with the name of another field of the row is written with a prefix.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Error, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::group::Group;
use super::sum::Sum;

const RECORDS: &str = "records";
const TOTAL: &str = "total";
const SUMS: &str = "sums";
const COUNTS: &str = "counts";
/// Prefix of group fields that have the name of another field of the row, such as `total`.
const PREFIX: &str = "group:";

pub(super) struct TotalsRow {
    pub(super) group: Group,
    pub(super) sum: Sum,
    /// False in rows of the first format, which had no `total`. Their total is computed from their
    /// sums.
    pub(super) has_total: bool,
}

fn to_name(field: &str) -> Cow<'_, str> {
    if [RECORDS, TOTAL, SUMS, COUNTS].contains(&field) || field.starts_with(PREFIX) {
        format!("{PREFIX}{field}").into()
    } else {
        field.into()
    }
}

impl Serialize for TotalsRow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut row = serializer.serialize_map(None)?;
        for (field, value) in self.group.iter() {
            row.serialize_entry(&to_name(field), &value)?;
        }
        row.serialize_entry(RECORDS, &self.sum.records)?;
        row.serialize_entry(TOTAL, &self.sum.total)?;
        row.serialize_entry(SUMS, &self.sum.sums)?;
        if !self.sum.counts.is_empty() {
            row.serialize_entry(COUNTS, &self.sum.counts)?;
        }
        row.end()
    }
}

impl<'de> Deserialize<'de> for TotalsRow {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(RowVisitor)
    }
}

struct RowVisitor;

impl<'de> Visitor<'de> for RowVisitor {
    type Value = TotalsRow;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a row of totals")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<TotalsRow, A::Error> {
        let (mut fields, mut values) = (Vec::new(), Vec::new());
        let (mut records, mut total, mut sums) = (None, None, None);
        let mut counts = None;
        while let Some(name) = map.next_key::<Cow<'_, str>>()? {
            match &*name {
                RECORDS => records = Some(map.next_value()?),
                TOTAL => total = Some(map.next_value()?),
                SUMS => sums = Some(map.next_value()?),
                COUNTS => counts = Some(map.next_value()?),
                _ => {
                    let value = match map.next_value()? {
                        Value::Null => None,
                        Value::String(text) => Some(text),
                        // Group fields are texts. Ignore a field of another type, so that the rest
                        // of the row is read.
                        _ => continue,
                    };
                    let field = name.strip_prefix(PREFIX).unwrap_or(&name);
                    fields.push(field.to_owned());
                    values.push(value);
                }
            }
        }
        Ok(TotalsRow {
            group: Group::new(fields, values),
            has_total: total.is_some(),
            sum: Sum {
                records: records.ok_or_else(|| A::Error::missing_field(RECORDS))?,
                total: total.unwrap_or_default(),
                sums: sums.ok_or_else(|| A::Error::missing_field(SUMS))?,
                counts: counts.unwrap_or_default(),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(json: &str) -> String {
        let row: TotalsRow = serde_json::from_str(json).unwrap();
        serde_json::to_string(&row).unwrap()
    }

    #[test]
    fn row_of_any_grouping_is_read_and_written_unchanged() {
        for json in [
            r#"{"records":1,"total":0,"sums":{}}"#,
            r#"{"b":"x","a":null,"records":2,"total":9,"sums":{"n":9},"counts":{"c":{"v":2}}}"#,
            r#"{"group:records":"x","group:group:y":null,"records":3,"total":0,"sums":{}}"#,
        ] {
            assert_eq!(rewritten(json), json);
        }
    }

    #[test]
    fn group_fields_may_have_the_names_of_other_fields() {
        let names = ["records", "total", "sums", "counts", "group:x", "plain"];
        let row = TotalsRow {
            group: Group::new(
                names.map(str::to_owned).to_vec(),
                names.map(|name| Some(name.to_owned())).to_vec(),
            ),
            sum: Sum::default(),
            has_total: true,
        };
        let json = serde_json::to_string(&row).unwrap();
        let read: TotalsRow = serde_json::from_str(&json).unwrap();
        assert_eq!(read.group, row.group, "{json}");
    }

    #[test]
    fn row_without_records_or_sums_is_damaged() {
        for json in [r#"{"total":0,"sums":{}}"#, r#"{"records":1,"total":0}"#] {
            assert!(serde_json::from_str::<TotalsRow>(json).is_err(), "{json}");
        }
        // A row without `total` must stay readable, because the first format had none.
        let row: TotalsRow = serde_json::from_str(r#"{"records":1,"sums":{}}"#).unwrap();
        assert!(!row.has_total);
    }
}

//! Fields of records that the totals group, sum and count.

use std::sync::Arc;

use crate::fields::Fields;
use crate::record::{BadRecord, Record};

/// Fields of records by which totals are grouped, summed and counted.
///
/// The default has no fields: totals are then numbers of records alone.
///
/// A data directory may be consolidated with one grouping and later with another. Rows that were
/// written with other fields are kept as they are: a row never loses a field, and two rows are
/// added up only if they have the same fields with the same values.
///
/// ```
/// use spool::{Durability, Grouping, Options, Record, Staging, consolidate, tally};
///
/// let grouping = Grouping::by(["customer", "region"])
///     .sum(["bytes"])
///     .total_from(["bytes"])
///     .count(["status"]);
///
/// let data = tempfile::tempdir()?;
/// let staging = Staging::open(data.path().join("_staging"))?;
/// for bytes in [100, 200] {
///     let json = format!(r#"{{"customer":"acme","bytes":{bytes},"status":"ok"}}"#);
///     staging.stage(&Record::parse(&json)?, Durability::Power)?;
/// }
/// staging.close()?;
/// let mut options = Options::default();
/// options.grouping = grouping.clone();
/// consolidate(data.path(), &options)?;
///
/// let tally = tally(data.path(), &grouping, None, None)?;
/// let row = &tally.rows[0];
/// assert_eq!((row.value("customer"), row.value("region")), (Some("acme"), None));
/// assert_eq!((row.records, row.total, row.sums["bytes"]), (2, 300, 300));
/// assert_eq!(row.counts["status"]["ok"], 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grouping {
    /// Group fields, in the order in which rows are written and sorted.
    fields: Arc<[String]>,
    summed: Vec<String>,
    summed_suffixes: Vec<String>,
    counted: Vec<String>,
    /// Alternatives for the total of a record, each a list of fields to add up. The first
    /// alternative with a number in at least one of its fields gives the total.
    totals: Vec<Vec<String>>,
    trusted: Option<String>,
    exact: Arc<[String]>,
}

impl Grouping {
    /// Groups records by the texts of these fields. The rows of a period are sorted by the first
    /// field, then by the second, and so on.
    pub fn by<T: Into<String>>(fields: impl IntoIterator<Item = T>) -> Self {
        let mut unique = Vec::new();
        for field in names(fields) {
            if !unique.contains(&field) {
                unique.push(field);
            }
        }
        Self {
            fields: unique.into(),
            ..Self::default()
        }
    }

    /// Sums the numbers in these fields. Only integers from 0 to 2^64 - 1 count.
    #[must_use]
    pub fn sum<T: Into<String>>(mut self, fields: impl IntoIterator<Item = T>) -> Self {
        self.summed.extend(names(fields));
        self
    }

    /// Sums the numbers in every field whose name ends with this suffix, each field by itself.
    #[must_use]
    pub fn sum_suffix(mut self, suffix: impl Into<String>) -> Self {
        self.summed_suffixes.push(suffix.into());
        self
    }

    /// Counts records by the values of these fields. Each row of the totals counts at most 16
    /// values of a field, and further values as `other`, because clients may invent values.
    #[must_use]
    pub fn count<T: Into<String>>(mut self, fields: impl IntoIterator<Item = T>) -> Self {
        self.counted.extend(names(fields));
        self
    }

    /// Adds an alternative for the total of a record: the sum of these fields. A record's total
    /// comes from the first alternative with a number in at least one of its fields; fields without
    /// a number count as 0.
    #[must_use]
    pub fn total_from<T: Into<String>>(mut self, fields: impl IntoIterator<Item = T>) -> Self {
        self.totals.push(names(fields).collect());
        self
    }

    /// Reserves half of the groups of a period for records that have this group field. Use a field
    /// that clients cannot choose. Otherwise a client that invents values fills all groups, and the
    /// records of other clients are summed without their values.
    #[must_use]
    pub fn trust(mut self, field: impl Into<String>) -> Self {
        self.trusted = Some(field.into());
        self
    }

    /// Also sums the totals of records by the texts of these fields, apart from the groups. These
    /// sums ([`Tally::exact`](crate::Tally::exact)) stay exact when the maximum number of groups is
    /// reached. Records without a text in the first field have no exact sum. A period has at most
    /// 16,384 of them, so use fields with few values.
    #[must_use]
    pub fn exact<T: Into<String>>(mut self, fields: impl IntoIterator<Item = T>) -> Self {
        self.exact = names(fields).collect();
        self
    }

    pub(super) fn exact_fields(&self) -> &Arc<[String]> {
        &self.exact
    }

    pub(super) fn fields(&self) -> &Arc<[String]> {
        &self.fields
    }

    pub(super) fn counted(&self) -> impl Iterator<Item = &str> {
        self.counted.iter().map(String::as_str)
    }

    pub(super) fn trusted(&self) -> Option<&str> {
        self.trusted.as_deref()
    }

    pub(super) fn is_summed(&self, name: &str) -> bool {
        let has_suffix = |suffix: &String| name.ends_with(suffix);
        has(&self.summed, name) || self.summed_suffixes.iter().any(has_suffix)
    }

    /// Reads the fields of a record that the totals need.
    pub(crate) fn read<'a>(&self, record: &'a Record) -> Result<Fields<'a>, BadRecord> {
        record.fields(|name| {
            self.is_summed(name)
                || has(&self.fields, name)
                || has(&self.counted, name)
                || has(&self.exact, name)
                || self.totals.iter().any(|fields| has(fields, name))
        })
    }

    /// Returns the total of a record or of a row, as defined by [`Self::total_from`]. `number`
    /// returns the number in a field of the record or row.
    pub(super) fn total(&self, number: impl Fn(&str) -> Option<u64>) -> u64 {
        let sum = |fields: &Vec<String>| {
            let numbers = fields.iter().filter_map(|field| number(field));
            numbers.reduce(u64::saturating_add)
        };
        self.totals.iter().find_map(sum).unwrap_or_default()
    }
}

fn names<T: Into<String>>(fields: impl IntoIterator<Item = T>) -> impl Iterator<Item = String> {
    fields.into_iter().map(Into::into)
}

fn has(fields: &[String], name: &str) -> bool {
    fields.iter().any(|field| field == name)
}

//! Sums and counts of a group of records.

use std::collections::BTreeMap;

use super::grouping::Grouping;
use crate::fields::Fields;

/// Maximum number of characters of a value by which records are grouped or counted. Longer values
/// are truncated, so that clients cannot make rows arbitrarily long.
const MAX_VALUE_CHARS: usize = 200;
/// Maximum number of values of a field that are counted apart. Further values are counted as
/// `other`, because clients may invent values.
const MAX_COUNTED_VALUES: usize = 16;
/// Name under which values beyond [`MAX_COUNTED_VALUES`] are counted.
const OTHER: &str = "other";

/// Sums and counts of the records of one group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    pub(crate) records: u64,
    /// Sum of the totals of the records, which [`Grouping::total_from`] defines.
    pub(crate) total: u64,
    /// Sum of each field that the grouping sums, by the field's name.
    pub(crate) sums: BTreeMap<String, u64>,
    /// Number of records by counted field and value.
    pub(crate) counts: BTreeMap<String, BTreeMap<String, u64>>,
}

impl Sum {
    /// Adds a record. Returns its total.
    pub(super) fn add_record(&mut self, grouping: &Grouping, fields: &Fields<'_>) -> u64 {
        add_to(&mut self.records, 1);
        let total = grouping.total(|name| fields.get(name)?.parse().ok());
        add_to(&mut self.total, total);
        for (name, value) in fields.iter().filter(|(name, _)| grouping.is_summed(name)) {
            if let Ok(number) = value.parse() {
                add_to_named(&mut self.sums, name, number);
            }
        }
        for field in grouping.counted() {
            if let Some(value) = fields.text(field) {
                self.count(field, shortened(&value), 1);
            }
        }
        total
    }

    pub(super) fn add(&mut self, other: &Self) {
        add_to(&mut self.records, other.records);
        add_to(&mut self.total, other.total);
        for (name, number) in &other.sums {
            add_to_named(&mut self.sums, name, *number);
        }
        for (field, values) in &other.counts {
            for (value, number) in values {
                self.count(field, value, *number);
            }
        }
    }

    fn count(&mut self, field: &str, value: &str, number: u64) {
        let counts = match self.counts.get_mut(field) {
            Some(counts) => counts,
            None => self.counts.entry(field.to_owned()).or_default(),
        };
        let is_full = counts.len() >= MAX_COUNTED_VALUES && !counts.contains_key(value);
        let value = if is_full { OTHER } else { value };
        add_to_named(counts, value, number);
    }
}

/// Truncates a value that a client chose, so that rows stay short.
pub(super) fn shortened(value: &str) -> &str {
    let end = value.char_indices().nth(MAX_VALUE_CHARS);
    end.map_or(value, |(end, _)| &value[..end])
}

/// Adds a number, up to the maximum of the type instead of an overflow: records may contain any
/// number.
fn add_to(sum: &mut u64, number: u64) {
    *sum = sum.saturating_add(number);
}

/// Adds a number to the sum with this name. Copies the name only if `sums` does not have it yet.
fn add_to_named(sums: &mut BTreeMap<String, u64>, name: &str, number: u64) {
    match sums.get_mut(name) {
        Some(sum) => add_to(sum, number),
        None => {
            sums.insert(name.to_owned(), number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;

    fn grouping() -> Grouping {
        Grouping::default()
            .sum(["bytes"])
            .sum_suffix("_bytes")
            .count(["status", "source"])
            .total_from(["bytes"])
            .total_from(["total_bytes"])
            .total_from(["sent_bytes", "received_bytes"])
    }

    fn sum(json: &str) -> Sum {
        let (grouping, mut sum) = (grouping(), Sum::default());
        let record = Record::parse(json).unwrap();
        sum.add_record(&grouping, &grouping.read(&record).unwrap());
        sum
    }

    #[test]
    fn total_is_the_first_alternative_that_the_record_has() {
        for (json, total) in [
            (r#"{"bytes":9,"sent_bytes":1,"received_bytes":2}"#, 9),
            (r#"{"total_bytes":8,"sent_bytes":1}"#, 8),
            (r#"{"sent_bytes":1,"received_bytes":2,"cached_bytes":1}"#, 3),
            (r#"{"received_bytes":2}"#, 2),
            (
                r#"{"sent_bytes":18446744073709551615,"received_bytes":2}"#,
                u64::MAX,
            ),
            (r#"{"bytes":null}"#, 0),
            ("{}", 0),
        ] {
            assert_eq!(sum(json).total, total, "{json}");
        }
    }

    #[test]
    fn fields_are_summed_by_name_or_suffix() {
        let sum = sum(r#"{"bytes":1,"sent_bytes":2,"_bytes":3,"kilobytes":4,"x_bytes":1.5}"#);
        let expected = [("bytes", 1), ("sent_bytes", 2), ("_bytes", 3)];
        assert_eq!(sum.sums, expected.map(|(n, v)| (n.to_owned(), v)).into());
    }

    #[test]
    fn invented_values_are_counted_as_other() {
        let mut all = Sum::default();
        for number in 0..100 {
            all.add(&sum(&format!(
                r#"{{"status":"s{number}","source":"none"}}"#
            )));
        }
        assert_eq!(all.counts["source"]["none"], 100);
        let statuses = &all.counts["status"];
        assert_eq!((statuses.len(), statuses["other"]), (17, 84));
    }
}

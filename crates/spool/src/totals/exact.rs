//! Exact sums: sums of a period by a few fields, apart from its groups.
//!
//! The number of groups of a period is limited, and records of further groups lose their values. The
//! caller can name fields ([`Grouping::exact`]) whose sums must not depend on values that other
//! fields have, such as the customer who pays. These sums are a section of their own in the file of
//! the period, so that they are replaced together with the groups.
//!
//! A program that does not know the section of exact sums drops it, or adds records to the groups
//! alone. The section has the number of records of the period, so that this is detected; the
//! missing part is then taken from the groups.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::grouping::Grouping;
use super::sum::shortened;
use crate::fields::Fields;

/// Maximum number of sums of a period. Records with further values have no exact sum, so that a
/// producer that invents values fills neither the memory nor the disk.
const MAX_SUMS: usize = 16_384;

/// Number of records with the same values, and the sum of their totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExactSum {
    pub(crate) records: u64,
    pub(crate) total: u64,
}

impl ExactSum {
    fn add(&mut self, other: Self) {
        self.records = self.records.saturating_add(other.records);
        self.total = self.total.saturating_add(other.total);
    }
}

/// Exact sums of a period, by the values of the exact fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Section", into = "Section")]
pub(crate) struct ExactSums {
    /// The exact fields; empty if the grouping has none.
    fields: Arc<[String]>,
    /// Number of records of the period, with and without a value in the first field.
    records: u64,
    sums: BTreeMap<Vec<Option<String>>, ExactSum>,
}

/// Exact sums in the form in which a file of totals stores them.
#[derive(Serialize, Deserialize)]
struct Section {
    fields: Vec<String>,
    records: u64,
    sums: Vec<Row>,
}

#[derive(Serialize, Deserialize)]
struct Row {
    values: Vec<Option<String>>,
    records: u64,
    total: u64,
}

impl From<Section> for ExactSums {
    fn from(section: Section) -> Self {
        let mut sums = Self {
            fields: section.fields.into(),
            records: section.records,
            sums: BTreeMap::new(),
        };
        for Row {
            values,
            records,
            total,
        } in section.sums
        {
            let sum = sums.sums.entry(values).or_default();
            sum.add(ExactSum { records, total });
        }
        sums
    }
}

impl From<ExactSums> for Section {
    fn from(sums: ExactSums) -> Self {
        let row = |(values, sum): (_, ExactSum)| Row {
            values,
            records: sum.records,
            total: sum.total,
        };
        Self {
            fields: sums.fields.to_vec(),
            records: sums.records,
            sums: sums.sums.into_iter().map(row).collect(),
        }
    }
}

impl ExactSums {
    /// Returns empty sums, which are grouped by the values of `fields`.
    pub(super) fn by(fields: &Arc<[String]>) -> Self {
        Self {
            fields: Arc::clone(fields),
            ..Self::default()
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    pub(super) fn fields(&self) -> &Arc<[String]> {
        &self.fields
    }

    /// Returns the values of the exact fields, each in the order of the grouping, with their sums.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[Option<String>], ExactSum)> {
        self.sums.iter().map(|(values, sum)| (&**values, *sum))
    }

    /// Adds a record. A record without a text in the first field has no exact sum.
    pub(super) fn add_record(&mut self, grouping: &Grouping, fields: &Fields<'_>, total: u64) {
        if self.is_empty() {
            self.fields = Arc::clone(grouping.exact_fields());
        }
        self.records = self.records.saturating_add(1);
        let value = |field: &String| fields.text(field).map(|text| shortened(&text).to_owned());
        let values: Vec<_> = self.fields.iter().map(value).collect();
        self.add_sum(&values, ExactSum { records: 1, total });
    }

    /// Adds other exact sums if they have the same fields. Otherwise they are left out: the number
    /// of records then differs from that of the groups, and [`Self::completed`] takes the missing
    /// part from the groups.
    pub(super) fn add(&mut self, other: &Self) {
        if self.is_empty() {
            self.fields = Arc::clone(&other.fields);
        }
        if self.fields == other.fields {
            self.records = self.records.saturating_add(other.records);
            for (values, sum) in &other.sums {
                self.add_sum(values, *sum);
            }
        }
    }

    fn add_sum(&mut self, values: &[Option<String>], added: ExactSum) {
        if values.first().is_none_or(Option::is_none) {
            return;
        }
        if let Some(sum) = self.sums.get_mut(values) {
            sum.add(added);
        } else if self.sums.len() < MAX_SUMS {
            self.sums.insert(values.to_vec(), added);
        }
    }

    /// Completes exact sums that lack records of the period, because another program added records
    /// to the groups alone. `records` is the number of records in the groups. `groups` yields the
    /// value of the first exact field and the sum of each group. The missing part is added to sums
    /// that have a value in the first field alone.
    pub(super) fn completed<'a>(
        mut self,
        records: u64,
        groups: impl Iterator<Item = (Option<&'a str>, ExactSum)>,
    ) -> Self {
        if self.records == records {
            return self;
        }
        let mut missing = BTreeMap::<&str, ExactSum>::new();
        for (value, sum) in groups {
            if let Some(value) = value {
                missing.entry(value).or_default().add(sum);
            }
        }
        for (values, sum) in &self.sums {
            let first = values.first().and_then(Option::as_deref);
            if let Some(missing) = first.and_then(|first| missing.get_mut(first)) {
                missing.records = missing.records.saturating_sub(sum.records);
                missing.total = missing.total.saturating_sub(sum.total);
            }
        }
        for (value, sum) in missing {
            if sum != ExactSum::default() {
                let mut values = vec![None; self.fields.len()];
                if let Some(first) = values.first_mut() {
                    *first = Some(value.to_owned());
                }
                self.add_sum(&values, sum);
            }
        }
        self.records = records;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;
    use crate::totals::group::Groups;

    fn grouping() -> Grouping {
        Grouping::by(["model", "customer"])
            .total_from(["bytes"])
            .exact(["customer", "server"])
    }

    fn groups(records: &[String]) -> Groups {
        let (grouping, mut groups) = (grouping(), Groups::default());
        for json in records {
            let record = Record::parse(json).unwrap();
            groups.add_record(&grouping, &grouping.read(&record).unwrap());
        }
        groups
    }

    fn sums(groups: &Groups) -> Vec<(Vec<Option<&str>>, u64, u64)> {
        let row = |(values, sum): (_, ExactSum)| (texts(values), sum.records, sum.total);
        groups.exact().iter().map(row).collect()
    }

    fn texts(values: &[Option<String>]) -> Vec<Option<&str>> {
        values.iter().map(Option::as_deref).collect()
    }

    #[test]
    fn exact_sums_do_not_depend_on_the_maximum_of_groups() {
        let records: Vec<String> = (0..10_000)
            .map(|number| {
                format!(r#"{{"model":"invented-{number}","customer":"a","server":"s","bytes":2}}"#)
            })
            .collect();
        let groups = groups(&records);
        assert_eq!(
            sums(&groups),
            [(vec![Some("a"), Some("s")], 10_000, 20_000)]
        );
    }

    #[test]
    fn records_without_the_first_field_are_counted_but_not_summed() {
        let records = [
            r#"{"server":"s","bytes":2}"#,
            r#"{"customer":"a","bytes":3}"#,
        ];
        let groups = groups(&records.map(str::to_owned));
        assert_eq!(sums(&groups), [(vec![Some("a"), None], 1, 3)]);
        assert_eq!(groups.exact().records, 2);
    }

    #[test]
    fn number_of_exact_sums_is_bounded() {
        let mut all = ExactSums::by(grouping().exact_fields());
        for number in 0..MAX_SUMS + 100 {
            let values = [Some(format!("c{number}")), None];
            all.add_sum(
                &values,
                ExactSum {
                    records: 1,
                    total: 1,
                },
            );
        }
        assert_eq!(all.sums.len(), MAX_SUMS);
    }

    #[test]
    fn part_that_the_section_lacks_is_taken_from_the_groups() {
        let mut section = ExactSums::by(grouping().exact_fields());
        let values = [Some("a".to_owned()), Some("s".to_owned())];
        section.records = 2;
        section.add_sum(
            &values,
            ExactSum {
                records: 2,
                total: 20,
            },
        );
        let sum = |records, total| ExactSum { records, total };
        let groups = [
            (Some("a"), sum(2, 20)),
            (Some("a"), sum(1, 5)),
            (Some("b"), sum(4, 40)),
            (None, sum(1, 1)),
        ];
        let done = section.clone().completed(8, groups.into_iter());
        let found: Vec<_> = done.iter().collect();
        let (a, b) = (Some("a".to_owned()), Some("b".to_owned()));
        let expected: [(&[Option<String>], ExactSum); 3] = [
            (&[a.clone(), None], sum(1, 5)),
            (&[a, Some("s".to_owned())], sum(2, 20)),
            (&[b, None], sum(4, 40)),
        ];
        assert_eq!(found, expected);
        // A section that has all records of the period stays as it is.
        assert_eq!(section.clone().completed(2, groups.into_iter()), section);
    }
}

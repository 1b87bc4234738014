//! Groups of records, and the limit on their number.

use std::collections::BTreeMap;
use std::collections::btree_map::{self, Entry};
use std::sync::Arc;

use super::exact::{ExactSum, ExactSums};
use super::grouping::Grouping;
use super::sum::{Sum, shortened};
use crate::fields::Fields;

/// Maximum number of groups of a period. Records of further groups are added to one group whose
/// fields have no values, so that a producer that invents values fills neither the memory nor the
/// disk.
const MAX_GROUPS: usize = 4096;

/// Values of the group fields that records have in common.
///
/// Two groups are equal only if they have the same fields with the same values. A missing field
/// differs from a field without a value: a group that was written without the field does not tell
/// which values its records had.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Group {
    /// Values, one for each of `fields`. The derived comparison begins with this field, so that the
    /// groups of one grouping sort by their values.
    values: Vec<Option<String>>,
    fields: Arc<[String]>,
}

impl Group {
    pub(super) fn new(fields: Vec<String>, values: Vec<Option<String>>) -> Self {
        Self {
            values,
            fields: fields.into(),
        }
    }

    fn from_record(grouping: &Grouping, fields: &Fields<'_>) -> Self {
        let value = |field: &String| fields.text(field).map(|text| shortened(&text).to_owned());
        Self {
            values: grouping.fields().iter().map(value).collect(),
            fields: Arc::clone(grouping.fields()),
        }
    }

    /// Returns each group field of this group with its value; `None` if the records have no text
    /// there.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        let values = self.values.iter().map(Option::as_deref);
        self.fields.iter().map(String::as_str).zip(values)
    }

    fn value(&self, name: &str) -> Option<&str> {
        self.iter()
            .find(|(field, _)| *field == name)
            .and_then(|(_, value)| value)
    }

    /// Puts the fields of this group into the order of the grouping, if the group has exactly the
    /// fields of the grouping. Otherwise the same group, read from a file with another order, would
    /// get a second row.
    fn arranged(self, grouping: &Grouping) -> Self {
        let fields = grouping.fields();
        let is_same = fields.len() == self.fields.len()
            && fields.iter().all(|field| self.fields.contains(field));
        if !is_same {
            return self;
        }
        let value = |field: &String| self.value(field).map(str::to_owned);
        Self {
            values: fields.iter().map(value).collect(),
            fields: Arc::clone(fields),
        }
    }

    /// Returns the group with the same fields and no values. Records are added to it once a period
    /// has the maximum number of groups.
    fn without_values(&self) -> Self {
        Self {
            values: vec![None; self.values.len()],
            fields: Arc::clone(&self.fields),
        }
    }
}

/// Sums of a period by group, and its exact sums.
#[derive(Clone, Debug, Default)]
pub(crate) struct Groups {
    rows: BTreeMap<Group, Sum>,
    exact: ExactSums,
}

impl Groups {
    pub(crate) fn add_record(&mut self, grouping: &Grouping, fields: &Fields<'_>) {
        let group = Group::from_record(grouping, fields);
        let total = self.sum_mut(grouping, group).add_record(grouping, fields);
        if !grouping.exact_fields().is_empty() {
            self.exact.add_record(grouping, fields, total);
        }
    }

    /// Adds each sum of `others` to the sum of the same group in this set.
    pub(crate) fn add_all(&mut self, grouping: &Grouping, others: &Self) {
        for (group, sum) in &others.rows {
            self.sum_mut(grouping, group.clone()).add(sum);
        }
        self.exact.add(&others.exact);
    }

    pub(crate) fn exact(&self) -> &ExactSums {
        &self.exact
    }

    /// Sets the exact sums that a file has, after all of its rows were added. Sums that the file
    /// lacks are taken from the rows.
    pub(super) fn set_exact(&mut self, grouping: &Grouping, section: Option<ExactSums>) {
        let wanted = grouping.exact_fields();
        if wanted.is_empty() {
            // This grouping has no exact fields. Keep the exact sums that another grouping wrote,
            // although they lack the records that are added now: a later run with that grouping
            // completes them.
            self.exact = section.unwrap_or_default();
            return;
        }
        let section = section.filter(|section| section.fields() == wanted);
        let section = section.unwrap_or_else(|| ExactSums::by(wanted));
        let rows = self.rows.iter().map(|(group, sum)| {
            let first = wanted.first().and_then(|field| group.value(field));
            let (records, total) = (sum.records, sum.total);
            (first, ExactSum { records, total })
        });
        self.exact = section.completed(self.records(), rows);
    }

    /// Adds a row of a file. The maximum of groups does not apply, so that reading merges no rows.
    pub(super) fn add_row(&mut self, grouping: &Grouping, group: Group, sum: Sum) {
        match self.rows.entry(group.arranged(grouping)) {
            Entry::Occupied(mut found) => found.get_mut().add(&sum),
            Entry::Vacant(free) => {
                free.insert(sum);
            }
        }
    }

    /// Returns the sum of a group. If the group is new and the maximum number of groups is reached,
    /// returns the sum of the group without values.
    fn sum_mut(&mut self, grouping: &Grouping, group: Group) -> &mut Sum {
        let is_trusted = grouping
            .trusted()
            .is_none_or(|field| group.value(field).is_some());
        let max_groups = MAX_GROUPS / if is_trusted { 1 } else { 2 };
        let is_full = self.rows.len() >= max_groups && !self.rows.contains_key(&group);
        let group = if is_full {
            group.without_values()
        } else {
            group
        };
        self.rows.entry(group).or_default()
    }

    pub(super) fn records(&self) -> u64 {
        self.rows.values().map(|sum| sum.records).sum()
    }
}

impl IntoIterator for Groups {
    type Item = (Group, Sum);
    type IntoIter = btree_map::IntoIter<Group, Sum>;

    fn into_iter(self) -> Self::IntoIter {
        self.rows.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;

    fn group(fields: &[(&str, Option<&str>)]) -> Group {
        let (fields, values) = fields
            .iter()
            .map(|(field, value)| ((*field).to_owned(), value.map(str::to_owned)))
            .unzip();
        Group::new(fields, values)
    }

    fn records(number: u64) -> Sum {
        Sum {
            records: number,
            ..Sum::default()
        }
    }

    #[test]
    fn records_beyond_the_maximum_of_groups_are_summed_without_values() {
        let grouping = Grouping::by(["customer", "region"]).trust("region");
        let mut groups = Groups::default();
        let mut add = |json: &str| {
            let record = Record::parse(json).unwrap();
            groups.add_record(&grouping, &grouping.read(&record).unwrap());
        };
        for number in 0..MAX_GROUPS {
            add(&format!(r#"{{"customer":"invented-{number}"}}"#));
        }
        for number in 0..MAX_GROUPS {
            add(&format!(r#"{{"customer":"c{number}","region":"r"}}"#));
        }
        assert_eq!(groups.rows.len(), MAX_GROUPS);
        let trusted = groups
            .rows
            .keys()
            .filter(|group| group.value("region").is_some());
        assert_eq!(trusted.count(), MAX_GROUPS / 2 - 1);
        let rest = &groups.rows[&group(&[("customer", None), ("region", None)])];
        assert_eq!(rest.records, MAX_GROUPS as u64 + 1);
    }

    #[test]
    fn no_group_is_reserved_without_a_trusted_field() {
        let grouping = Grouping::by(["customer"]);
        let mut groups = Groups::default();
        for number in 0..MAX_GROUPS {
            let json = format!(r#"{{"customer":"c{number}"}}"#);
            let record = Record::parse(&json).unwrap();
            groups.add_record(&grouping, &grouping.read(&record).unwrap());
        }
        assert_eq!(groups.rows.len(), MAX_GROUPS);
    }

    #[test]
    fn groups_are_the_same_only_with_the_same_fields_and_values() {
        let grouping = Grouping::by(["customer", "region"]);
        let mut groups = Groups::default();
        for (fields, number) in [
            (&[("customer", Some("a")), ("region", None)][..], 1),
            // This row has the fields of the row above in another order, so both rows are one
            // group.
            (&[("region", None), ("customer", Some("a"))][..], 2),
            (&[("customer", Some("a"))][..], 4),
            (&[("customer", Some("a")), ("plan", None)][..], 8),
            (&[][..], 16),
        ] {
            groups.add_row(&grouping, group(fields), records(number));
        }
        let mut found: Vec<u64> = groups.rows.values().map(|sum| sum.records).collect();
        found.sort_unstable();
        assert_eq!(found, [3, 4, 8, 16]);
    }
}

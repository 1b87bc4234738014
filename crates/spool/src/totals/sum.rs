//! What records add up to, and by what they are told apart.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::fields::Fields;
use crate::record::{BadRecord, Record};

/// Beyond so many groups in a file, records are summed up without saying whose they are: a producer
/// that makes names up must not fill the memory.
const MOST_GROUPS: usize = 4096;
const LONGEST_NAME: usize = 200;
/// Fields of which it is counted how often they have each value ...
const COUNTED: [&str; 2] = ["outcome", "tokens_from"];
/// ... unless there are too many.
const MOST_VALUES: usize = 16;
const OTHER: &str = "other";

/// By what records are told apart.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Group {
    pub(crate) model: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) backend: Option<String>,
}

/// What the records of a group add up to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sum {
    pub(crate) records: u64,
    /// The tokens of each in all.
    #[serde(default)]
    pub(crate) total: u64,
    pub(crate) sums: BTreeMap<String, u64>,
    /// By field and value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) counts: BTreeMap<String, BTreeMap<String, u64>>,
}

/// The groups of one period.
pub(crate) type Groups = BTreeMap<Group, Sum>;

/// The fields of a record that go into the sums.
pub(crate) fn fields(record: &Record) -> Result<Fields<'_>, BadRecord> {
    record.fields(|name| {
        is_summed(name) || matches!(name, "model" | "key" | "backend") || COUNTED.contains(&name)
    })
}

fn is_summed(name: &str) -> bool {
    name == "tokens" || name.ends_with("_tokens")
}

impl Group {
    fn from_fields(fields: &Fields<'_>) -> Self {
        let name = |field| fields.text(field).map(|text| shortened(&text).to_owned());
        Self {
            model: name("model"),
            key: name("key"),
            backend: name("backend"),
        }
    }
}

fn shortened(name: &str) -> &str {
    let end = name.char_indices().nth(LONGEST_NAME);
    end.map_or(name, |(end, _)| &name[..end])
}

/// Adds a record by its fields.
pub(crate) fn add_record(groups: &mut Groups, fields: &Fields<'_>) {
    sum_mut(groups, Group::from_fields(fields)).add_record(fields);
}

/// Adds to a group, or to those that are not told apart.
pub(crate) fn add(groups: &mut Groups, group: Group, sum: &Sum) {
    sum_mut(groups, group).add(sum);
}

fn sum_mut(groups: &mut Groups, group: Group) -> &mut Sum {
    // Half the room is for what a backend has served: whoever asks can make up the rest.
    let most = MOST_GROUPS / if group.backend.is_some() { 1 } else { 2 };
    let is_full = groups.len() >= most && !groups.contains_key(&group);
    let group = if is_full { Group::default() } else { group };
    groups.entry(group).or_default()
}

impl Sum {
    fn add_record(&mut self, fields: &Fields<'_>) {
        more(&mut self.records, 1);
        let (mut tokens, mut total, mut parts) = (None, None, 0);
        for (name, value) in fields.iter().filter(|(name, _)| is_summed(name)) {
            let Ok(number) = value.parse() else {
                continue;
            };
            match name {
                "tokens" => tokens = Some(number),
                "total_tokens" => total = Some(number),
                "prompt_tokens" | "completion_tokens" => more(&mut parts, number),
                _ => {}
            }
            more_of(&mut self.sums, name, number);
        }
        more(&mut self.total, tokens.or(total).unwrap_or(parts));
        for field in COUNTED {
            if let Some(value) = fields.text(field) {
                self.count(field, shortened(&value), 1);
            }
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        more(&mut self.records, other.records);
        more(&mut self.total, other.total);
        for (name, number) in &other.sums {
            more_of(&mut self.sums, name, *number);
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
        let is_full = counts.len() >= MOST_VALUES && !counts.contains_key(value);
        let value = if is_full { OTHER } else { value };
        more_of(counts, value, number);
    }

    /// As a file says it that was written before there was a total.
    pub(super) fn completed(mut self) -> Self {
        if self.total == 0 {
            self.total = self.sums.get("tokens").copied().unwrap_or(0);
        }
        self
    }
}

/// It does not turn over, however much there is.
fn more(sum: &mut u64, number: u64) {
    *sum = sum.saturating_add(number);
}

/// Adds to what a map has under a name, which is copied only if it is new.
fn more_of(sums: &mut BTreeMap<String, u64>, name: &str, number: u64) {
    match sums.get_mut(name) {
        Some(sum) => more(sum, number),
        None => {
            sums.insert(name.to_owned(), number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(json: &str) -> Sum {
        let mut sum = Sum::default();
        sum.add_record(&fields(&Record::parse(json).unwrap()).unwrap());
        sum
    }

    #[test]
    fn the_total_is_what_the_record_says_or_its_parts() {
        for (json, total) in [
            (r#"{"tokens":9,"prompt_tokens":1,"completion_tokens":2}"#, 9),
            (r#"{"total_tokens":8,"prompt_tokens":1}"#, 8),
            (
                r#"{"prompt_tokens":1,"completion_tokens":2,"cached_tokens":1}"#,
                3,
            ),
            (r#"{"completion_tokens":2}"#, 2),
            (
                r#"{"prompt_tokens":18446744073709551615,"completion_tokens":2}"#,
                u64::MAX,
            ),
            (r#"{"tokens":null}"#, 0),
            ("{}", 0),
        ] {
            assert_eq!(sum(json).total, total, "{json}");
        }
    }

    #[test]
    fn outcomes_are_counted_and_made_up_ones_are_not_told_apart() {
        let mut all = Sum::default();
        for number in 0..100 {
            all.add(&sum(&format!(
                r#"{{"outcome":"o{number}","tokens_from":"none"}}"#
            )));
        }
        assert_eq!(all.counts["tokens_from"]["none"], 100);
        let outcomes = &all.counts["outcome"];
        assert_eq!((outcomes.len(), outcomes["other"]), (17, 84));
    }

    #[test]
    fn groups_that_are_too_many_are_not_told_apart() {
        let mut groups = Groups::new();
        let mut add = |json: &str| {
            let record = Record::parse(json).unwrap();
            add_record(&mut groups, &fields(&record).unwrap());
        };
        for number in 0..MOST_GROUPS {
            add(&format!(r#"{{"model":"made-up-{number}"}}"#));
        }
        for number in 0..MOST_GROUPS {
            add(&format!(r#"{{"model":"m{number}","backend":"b"}}"#));
        }
        assert_eq!(groups.len(), MOST_GROUPS);
        let served = groups.keys().filter(|group| group.backend.is_some());
        assert_eq!(served.count(), MOST_GROUPS / 2 - 1);
        let rest = groups[&Group::default()].records;
        assert_eq!(rest, MOST_GROUPS as u64 + 1);
    }
}

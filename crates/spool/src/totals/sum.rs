//! What records add up to, and by what they are told apart.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::record::Record;

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

/// One record, as it goes into the sums.
pub(crate) fn of(record: &Record) -> (Group, Sum) {
    let fields = record.fields();
    let text = |field: &str| {
        let text: String = serde_json::from_str(fields.get(field)?.get()).ok()?;
        Some(text.chars().take(LONGEST_NAME).collect::<String>())
    };
    let group = Group {
        model: text("model"),
        key: text("key"),
        backend: text("backend"),
    };
    let mut sum = Sum {
        records: 1,
        ..Sum::default()
    };
    for (name, value) in &fields {
        let is_summed = name == "tokens" || name.ends_with("_tokens");
        let number = is_summed.then(|| value.get().parse::<u64>().ok()).flatten();
        sum.sums
            .extend(number.map(|number| (name.to_string(), number)));
    }
    let part = |name: &str| sum.sums.get(name).copied();
    let parts = || {
        let [prompt, completion] = ["prompt_tokens", "completion_tokens"].map(part);
        prompt.unwrap_or(0).saturating_add(completion.unwrap_or(0))
    };
    sum.total = (part("tokens").or_else(|| part("total_tokens"))).unwrap_or_else(parts);
    for name in COUNTED {
        if let Some(value) = text(name) {
            sum.counts
                .insert(name.to_owned(), BTreeMap::from([(value, 1)]));
        }
    }
    (group, sum)
}

/// Adds to a group, or to those that are not told apart.
pub(crate) fn add(groups: &mut Groups, group: Group, sum: &Sum) {
    let is_full = groups.len() >= MOST_GROUPS && !groups.contains_key(&group);
    let group = if is_full { Group::default() } else { group };
    groups.entry(group).or_default().add(sum);
}

impl Sum {
    /// It does not turn over, however much there is.
    pub(crate) fn add(&mut self, other: &Self) {
        let more = |sum: &mut u64, number: u64| *sum = sum.saturating_add(number);
        more(&mut self.records, other.records);
        more(&mut self.total, other.total);
        for (name, number) in &other.sums {
            more(self.sums.entry(name.clone()).or_default(), *number);
        }
        for (field, values) in &other.counts {
            let counts = self.counts.entry(field.clone()).or_default();
            for (value, number) in values {
                let is_full = counts.len() >= MOST_VALUES && !counts.contains_key(value);
                let value = if is_full { OTHER } else { value };
                more(counts.entry(value.to_owned()).or_default(), *number);
            }
        }
    }

    /// As a file says it that was written before there was a total.
    pub(super) fn completed(mut self) -> Self {
        if self.total == 0 {
            self.total = self.sums.get("tokens").copied().unwrap_or(0);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(json: &str) -> Sum {
        of(&Record::parse(json).unwrap()).1
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
        for number in 0..MOST_GROUPS + 10 {
            let record = Record::parse(&format!(r#"{{"model":"m{number}"}}"#)).unwrap();
            let (group, sum) = of(&record);
            add(&mut groups, group, &sum);
        }
        assert_eq!(groups.len(), MOST_GROUPS + 1);
        assert_eq!(groups[&Group::default()].records, 10);
    }
}

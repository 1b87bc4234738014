//! Grouping of usage by the fields of `--by`, and the sums of each group.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;
use spool::TallyRow;

use super::zone::Zone;

/// Field of `--by` by which the report groups requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli::usage) enum By {
    Day,
    Hour,
    Team,
    Key,
    Model,
    /// The model that served the request. If the requested name is an alias, it differs from that
    /// name.
    ServedModel,
    Backend,
}

/// Sums over requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Sums {
    pub(super) requests: u64,
    pub(super) prompt_tokens: u64,
    pub(super) completion_tokens: u64,
    /// Number of prompt tokens that a backend took from its prefix cache. They are included in
    /// `prompt_tokens`.
    pub(super) cached_tokens: u64,
    pub(super) tokens: u64,
    /// Number of requests whose token counts are estimates, because the backend reported none.
    pub(super) estimated: u64,
    /// Number of requests that have no token counts.
    pub(super) without_tokens: u64,
    pub(super) outcomes: BTreeMap<String, u64>,
}

/// A row of the report: the sums of all requests with the same values in the fields of `--by`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// Value of each field of `--by`; `None` if the records lack the field.
    pub(super) names: Vec<Option<String>>,
    pub(super) sums: Sums,
}

impl By {
    pub(super) const ALL: [Self; 7] = [
        Self::Day,
        Self::Hour,
        Self::Team,
        Self::Key,
        Self::Model,
        Self::ServedModel,
        Self::Backend,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Hour => "hour",
            Self::Team => "team",
            Self::Key => "key",
            Self::Model => "model",
            Self::ServedModel => "served_model",
            Self::Backend => "backend",
        }
    }

    pub(in crate::cli::usage) fn parse(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|by| by.name() == text);
        found.ok_or_else(|| format!("allowed: {}", Self::ALL.map(Self::name).join(", ")))
    }

    pub(super) fn is_time(self) -> bool {
        matches!(self, Self::Day | Self::Hour)
    }

    fn value_in(self, row: &TallyRow, zone: &Zone) -> Option<String> {
        let start = row.start.and_then(|start| Timestamp::try_from(start).ok());
        let field = |name: &str| row.value(name).map(str::to_owned);
        match self {
            Self::Day => Some(start.map_or_else(|| row.day.clone(), |start| zone.day(start))),
            Self::Hour => start.map(|start| zone.hour(start)),
            // Use the requested model if a record has no `served_model`: both are then the same.
            Self::ServedModel => field("served_model").or_else(|| field("model")),
            other => field(other.name()),
        }
    }
}

impl Sums {
    /// Returns the sums in the order of the report's columns.
    pub(super) fn numbers(&self) -> [u64; 7] {
        [
            self.requests,
            self.prompt_tokens,
            self.completion_tokens,
            self.cached_tokens,
            self.tokens,
            self.estimated,
            self.without_tokens,
        ]
    }

    fn from_row(row: &TallyRow) -> Self {
        let sum = |name: &str| row.sums.get(name).copied().unwrap_or_default();
        let counts = |field: &str| row.counts.get(field);
        let from = |value: &str| counts("tokens_from").and_then(|counts| counts.get(value));
        Self {
            requests: row.records,
            prompt_tokens: sum("prompt_tokens"),
            completion_tokens: sum("completion_tokens"),
            cached_tokens: sum("cached_tokens"),
            tokens: row.total,
            estimated: from("estimated").copied().unwrap_or_default(),
            without_tokens: from("none").copied().unwrap_or_default(),
            outcomes: counts("outcome").cloned().unwrap_or_default(),
        }
    }

    fn add(&mut self, other: &Self) {
        for (sum, more) in [
            (&mut self.requests, other.requests),
            (&mut self.prompt_tokens, other.prompt_tokens),
            (&mut self.completion_tokens, other.completion_tokens),
            (&mut self.cached_tokens, other.cached_tokens),
            (&mut self.tokens, other.tokens),
            (&mut self.estimated, other.estimated),
            (&mut self.without_tokens, other.without_tokens),
        ] {
            *sum = sum.saturating_add(more);
        }
        for (outcome, count) in &other.outcomes {
            *self.outcomes.entry(outcome.clone()).or_default() += count;
        }
    }

    pub(super) fn total(rows: &[Row]) -> Self {
        let mut total = Self::default();
        for row in rows {
            total.add(&row.sums);
        }
        total
    }
}

/// Groups requests into the rows of the report, sorted by day and hour, then by tokens in
/// descending order.
pub(super) fn grouped(found: &[TallyRow], by: &[By], zone: &Zone) -> Vec<Row> {
    let mut groups: BTreeMap<Vec<Option<String>>, Sums> = BTreeMap::new();
    for row in found {
        let names = by.iter().map(|by| by.value_in(row, zone)).collect();
        groups.entry(names).or_default().add(&Sums::from_row(row));
    }
    let mut rows: Vec<Row> = (groups.into_iter())
        .map(|(names, sums)| Row { names, sums })
        .collect();
    rows.sort_by_cached_key(|row| {
        let named = by.iter().zip(&row.names);
        let times = named.filter(|(by, _)| by.is_time());
        // Sort by the longer of the texts of day and hour. The text of an hour begins with that of
        // its day, so rows with both are sorted by the day and then by the hour.
        let time = times
            .filter_map(|(_, name)| name.clone())
            .max_by_key(String::len);
        (time, Reverse(row.sums.tokens), Reverse(row.sums.requests))
    });
    rows
}

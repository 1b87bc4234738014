//! Values of labels. Their number is bounded: every value is a series of each metric with the label, which the
//! server and Prometheus keep in memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::text;

/// Maximum number of characters of a value.
const MAX_CHARS: usize = 100;
/// Value for everything beyond the bound, and for models that no backend lists.
const OTHER_NAME: &str = "other";
/// Value of requests that have none, such as requests without a model.
const NONE_NAME: &str = "none";

/// Number of a value of a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct LabelId(u16);

impl LabelId {
    pub(super) const OTHER: Self = Self(0);
    pub(super) const NONE: Self = Self(1);

    pub(super) fn number(self) -> u64 {
        u64::from(self.0)
    }
}

/// Values of one label, in the order in which they were used first. A value is never removed: a counter that
/// vanishes and returns is an error of arithmetic for Prometheus.
#[derive(Debug)]
pub(super) struct LabelSet {
    max: usize,
    values: Mutex<Values>,
}

#[derive(Debug)]
struct Values {
    ids: HashMap<Arc<str>, LabelId>,
    names: Vec<Arc<str>>,
}

impl LabelSet {
    /// Returns a set that holds `max` values, and `other` and `none`.
    pub(super) fn new(max: u16) -> Self {
        let names: Vec<Arc<str>> = vec![OTHER_NAME.into(), NONE_NAME.into()];
        let ids = names.iter().zip([LabelId::OTHER, LabelId::NONE]);
        Self {
            max: usize::from(max) + names.len(),
            values: Mutex::new(Values {
                ids: ids.map(|(name, id)| (Arc::clone(name), id)).collect(),
                names,
            }),
        }
    }

    /// Returns the number of a value. Values beyond the bound have the number of `other`.
    pub(super) fn id(&self, value: &str) -> LabelId {
        let value = sanitized(value);
        let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(id) = values.ids.get(value.as_str()) {
            return *id;
        }
        let Ok(number) = u16::try_from(values.names.len()) else {
            return LabelId::OTHER;
        };
        if values.names.len() >= self.max {
            return LabelId::OTHER;
        }
        let (name, id) = (Arc::<str>::from(value), LabelId(number));
        values.names.push(Arc::clone(&name));
        values.ids.insert(name, id);
        id
    }

    /// Returns all values. The number of a value is its index.
    pub(super) fn names(&self) -> Names {
        let values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        Names(values.names.clone())
    }
}

/// Values of one label at some time.
#[derive(Debug)]
pub(super) struct Names(Vec<Arc<str>>);

impl Names {
    pub(super) fn get(&self, id: LabelId) -> &str {
        self.0
            .get(usize::from(id.0))
            .map_or(OTHER_NAME, |name| name)
    }
}

/// Returns a value without characters that could disturb a terminal, and not too long.
pub(crate) fn sanitized(value: &str) -> String {
    text::shortened(&text::plain(value), MAX_CHARS).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_beyond_the_bound_are_other() {
        let set = LabelSet::new(2);
        let [a, b] = ["a", "b"].map(|name| set.id(name));
        assert_eq!(set.id("c"), LabelId::OTHER);
        assert_eq!((set.id("a"), set.id("b")), (a, b));
        assert_ne!(a, b);
        assert_eq!(set.names().0.len(), 4);
        assert_eq!(set.names().get(b), "b");
    }

    #[test]
    fn reserved_values_have_their_own_numbers() {
        let set = LabelSet::new(2);
        assert_eq!(set.id("other"), LabelId::OTHER);
        assert_eq!(set.id("none"), LabelId::NONE);
    }

    #[test]
    fn value_is_sanitized_and_shortened() {
        let set = LabelSet::new(2);
        let id = set.id("a\u{1b}[2J\n\u{202e}");
        assert_eq!(set.names().get(id), "a?[2J??");
        let long = set.id(&"ä".repeat(5000));
        assert_eq!(set.names().get(long).chars().count(), MAX_CHARS + 1);
    }
}

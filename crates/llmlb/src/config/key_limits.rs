//! Limits of an API key.

/// Limits of one API key. A limit that is `None` does not apply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeyLimits {
    /// Maximum number of requests that are admitted in any 60 seconds.
    pub(crate) requests_per_minute: Option<u32>,
    /// Maximum number of tokens, prompt and completion, that are used in any 60 seconds.
    pub(crate) tokens_per_minute: Option<u64>,
    /// Maximum number of the key's requests that are in flight at the same time.
    pub(crate) concurrency: Option<u32>,
    pub(crate) budget: Option<Budget>,
}

/// Maximum number of tokens that a key may use in each period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Budget {
    pub(crate) tokens: u64,
    pub(crate) per: Period,
}

/// Period of a budget, which begins at midnight UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Period {
    Day,
    /// Calendar month.
    Month,
}

impl Period {
    /// Words for the periods of a budget, as in the configuration, on the command line and in
    /// `keys.json`.
    pub(crate) const WORDS: [(&'static str, Self); 2] =
        [("day", Self::Day), ("month", Self::Month)];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Month => "month",
        }
    }
}

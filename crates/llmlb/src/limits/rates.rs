//! Rest of a key's limits per minute, as the header fields of responses report it.

use std::io::Write;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::exceeded::Wait;
use crate::endpoint::Dialect;

/// Limits per minute of a key, and what is left of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rates {
    pub(crate) requests: Option<Rate>,
    pub(crate) tokens: Option<Rate>,
}

/// A limit per minute, and how much of it is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate {
    pub(crate) limit: u64,
    pub(crate) remaining: u64,
    /// Milliseconds until the whole limit is available again.
    pub(crate) reset_ms: u64,
}

impl Rate {
    pub(super) fn new(limit: u64, used: u64, reset_ms: u64) -> Self {
        Self {
            limit,
            remaining: limit.saturating_sub(used),
            reset_ms,
        }
    }
}

/// Names of the header fields that report one limit: its maximum, the rest, and the time of the
/// reset.
type Names = [HeaderName; 3];

static OPENAI_REQUESTS: Names = [
    HeaderName::from_static("x-ratelimit-limit-requests"),
    HeaderName::from_static("x-ratelimit-remaining-requests"),
    HeaderName::from_static("x-ratelimit-reset-requests"),
];
static OPENAI_TOKENS: Names = [
    HeaderName::from_static("x-ratelimit-limit-tokens"),
    HeaderName::from_static("x-ratelimit-remaining-tokens"),
    HeaderName::from_static("x-ratelimit-reset-tokens"),
];
static ANTHROPIC_REQUESTS: Names = [
    HeaderName::from_static("anthropic-ratelimit-requests-limit"),
    HeaderName::from_static("anthropic-ratelimit-requests-remaining"),
    HeaderName::from_static("anthropic-ratelimit-requests-reset"),
];
static ANTHROPIC_TOKENS: Names = [
    HeaderName::from_static("anthropic-ratelimit-tokens-limit"),
    HeaderName::from_static("anthropic-ratelimit-tokens-remaining"),
    HeaderName::from_static("anthropic-ratelimit-tokens-reset"),
];
/// Number of bytes of the six field values together, so that they need one allocation.
const CAPACITY: usize = 160;

impl Rates {
    /// Adds the header fields about the limits to a response, in the format of the client's API.
    /// `wall_ms` is the current time: Anthropic's clients expect the time of the reset, OpenAI's
    /// clients the time until then.
    pub(crate) fn add_to(&self, headers: &mut HeaderMap, dialect: Dialect, wall_ms: u64) {
        if self.requests.is_none() && self.tokens.is_none() {
            return;
        }
        let is_anthropic = dialect == Dialect::Anthropic;
        let (requests, tokens) = if is_anthropic {
            (&ANTHROPIC_REQUESTS, &ANTHROPIC_TOKENS)
        } else {
            (&OPENAI_REQUESTS, &OPENAI_TOKENS)
        };
        let mut text = Vec::with_capacity(CAPACITY);
        let mut values: [(Option<&HeaderName>, usize); 6] = Default::default();
        let mut used = 0;
        for (rate, [limit, remaining, reset]) in [(self.requests, requests), (self.tokens, tokens)]
        {
            let Some(rate) = rate else {
                continue;
            };
            let mut digits = itoa::Buffer::new();
            text.extend_from_slice(digits.format(rate.limit).as_bytes());
            values[used] = (Some(limit), text.len());
            text.extend_from_slice(digits.format(rate.remaining).as_bytes());
            values[used + 1] = (Some(remaining), text.len());
            if is_anthropic {
                let at = i64::try_from(wall_ms.saturating_add(rate.reset_ms).div_ceil(1000));
                let at = at.ok().and_then(|at| jiff::Timestamp::from_second(at).ok());
                let _ = write!(text, "{}", at.unwrap_or_default());
            } else {
                Wait(rate.reset_ms).append_to(&mut text);
            }
            values[used + 2] = (Some(reset), text.len());
            used += 3;
        }
        let text = Bytes::from(text);
        headers.reserve(used);
        let mut start = 0;
        for (name, end) in values {
            let Some(name) = name else {
                break;
            };
            if let Ok(value) = HeaderValue::from_maybe_shared(text.slice(start..end)) {
                headers.insert(name.clone(), value);
            }
            start = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_the_formats_of_both_vendors() {
        let rates = Rates {
            requests: Some(Rate::new(60, 1, 1000)),
            tokens: Some(Rate::new(150_000, 16_000, 360_000)),
        };
        let text = |dialect| {
            let mut headers = HeaderMap::new();
            rates.add_to(&mut headers, dialect, 1_794_830_400_000);
            let text = |(name, value): (&HeaderName, &HeaderValue)| {
                format!("{name}: {}", value.to_str().unwrap())
            };
            let mut lines: Vec<String> = headers.iter().map(text).collect();
            lines.sort();
            lines
        };
        assert_eq!(
            text(Dialect::OpenAi),
            [
                "x-ratelimit-limit-requests: 60",
                "x-ratelimit-limit-tokens: 150000",
                "x-ratelimit-remaining-requests: 59",
                "x-ratelimit-remaining-tokens: 134000",
                "x-ratelimit-reset-requests: 1s",
                "x-ratelimit-reset-tokens: 6m0s",
            ]
        );
        assert_eq!(
            text(Dialect::Anthropic),
            [
                "anthropic-ratelimit-requests-limit: 60",
                "anthropic-ratelimit-requests-remaining: 59",
                "anthropic-ratelimit-requests-reset: 2026-11-16T12:00:01Z",
                "anthropic-ratelimit-tokens-limit: 150000",
                "anthropic-ratelimit-tokens-remaining: 134000",
                "anthropic-ratelimit-tokens-reset: 2026-11-16T12:06:00Z",
            ]
        );
    }

    #[test]
    fn key_without_limits_per_minute_has_no_fields() {
        let mut headers = HeaderMap::new();
        Rates::default().add_to(&mut headers, Dialect::OpenAi, 0);
        assert!(headers.is_empty());
    }
}

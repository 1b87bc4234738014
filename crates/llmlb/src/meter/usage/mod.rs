//! Token counts of a request, read from the formats in which backends report them.
//!
//! | | prompt | completion | part of the prompt that was cached |
//! |---|---|---|---|
//! | OpenAI | `prompt_tokens` | `completion_tokens` | `prompt_tokens_details.cached_tokens` |
//! | its Responses | `input_tokens` | `output_tokens` | `input_tokens_details.cached_tokens` |
//! | its Realtime API | `input_tokens` | `output_tokens` | `input_token_details.cached_tokens` |
//! | Anthropic | `input_tokens` + `cache_read_input_tokens` + `cache_creation_input_tokens` | `output_tokens` | `cache_read_input_tokens` |
//! | Ollama | `prompt_eval_count` | `eval_count` | |
//!
//! In every format, `prompt` includes all tokens that the model read, cached or not. Anthropic's
//! `input_tokens` excludes tokens that were read from or written to the cache, so these are added.
//!
//! A [`UsageReport`] counts as reported if it is complete and valid. Otherwise its valid numbers are kept,
//! the others are estimated, and the usage is marked as estimated.

#[cfg(test)]
mod tests;

use crate::endpoint::Api;
use crate::json;

/// Maximum count of tokens that is believed. A larger number in a backend's report is an error and
/// is ignored.
pub(super) const MAX_TOKENS: u64 = 1_000_000_000;

/// Origin of the numbers of a [`TokenUsage`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum UsageSource {
    /// The backend reported all numbers.
    Reported,
    /// At least one number was not reported and is estimated: see [`estimate`](super::estimate).
    Estimated,
    /// No model read or generated tokens.
    #[default]
    None,
}

impl UsageSource {
    /// Returns the value of `tokens_from` in a usage record.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Reported => "reported",
            Self::Estimated => "estimated",
            Self::None => "none",
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TokenUsage {
    pub(crate) prompt: u64,
    pub(crate) completion: u64,
    /// The part of `prompt` that was read from a cache.
    pub(crate) cached: u64,
    /// Reasoning tokens, as far as the backend reports them. Most backends include them in `completion`.
    pub(crate) reasoning: u64,
    /// Total tokens: at least `prompt + completion`, more if the backend reported a larger total.
    pub(crate) total: u64,
    pub(crate) source: UsageSource,
}

impl TokenUsage {
    /// Returns the usage of a request that was sent to a backend but got no response: the estimated
    /// prompt, because the model may have read it.
    pub(crate) fn prompt_only(prompt: u64) -> Self {
        if prompt == 0 {
            return Self::default();
        }
        Self {
            prompt,
            total: prompt,
            source: UsageSource::Estimated,
            ..Self::default()
        }
    }
}

/// Token counts that a response has reported so far, in all its events.
///
/// Backends report cumulative numbers, not increments. So of two numbers for the same field the
/// larger one counts, and a repeated report changes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TokenCounts {
    input: Option<u64>,
    output: Option<u64>,
    total: Option<u64>,
    /// Cached tokens that `input` includes already, as in OpenAI's formats.
    cached: Option<u64>,
    /// Anthropic's cached tokens, which its `input_tokens` does not include. They are added to the
    /// prompt.
    cache_read: Option<u64>,
    cache_written: Option<u64>,
    reasoning: Option<u64>,
    /// True if an event after the first one reported the output tokens. The first event's number is
    /// preliminary.
    is_output_final: bool,
}

impl TokenCounts {
    /// Reads a `usage` object. Values that are no plausible counts are ignored, and so is an
    /// invalid object: the missing numbers are then estimated.
    pub(crate) fn read(object: &[u8]) -> Self {
        let mut counts = Self::default();
        let read = json::fields(object, |name, place| counts.field(name, &object[place]));
        if read.is_err() {
            return Self::default();
        }
        counts
    }

    pub(crate) fn field(&mut self, name: &[u8], value: &[u8]) {
        let number = match name {
            b"prompt_tokens" | b"input_tokens" | b"prompt_eval_count" => &mut self.input,
            b"completion_tokens" | b"output_tokens" | b"eval_count" => {
                self.is_output_final |= count(value).is_some();
                &mut self.output
            }
            b"total_tokens" => &mut self.total,
            // DeepSeek and Moonshot report the cached tokens under these names.
            b"prompt_cache_hit_tokens" | b"cached_tokens" => &mut self.cached,
            b"cache_read_input_tokens" => &mut self.cache_read,
            b"cache_creation_input_tokens" => &mut self.cache_written,
            b"reasoning_tokens" => &mut self.reasoning,
            // OpenAI's three APIs (chat, responses, realtime) use three names for the same details.
            b"prompt_tokens_details" | b"input_tokens_details" | b"input_token_details" => {
                return self.detail(value, b"cached_tokens");
            }
            b"completion_tokens_details" | b"output_tokens_details" | b"output_token_details" => {
                return self.detail(value, b"reasoning_tokens");
            }
            _ => return,
        };
        *number = (*number).max(count(value));
    }

    fn detail(&mut self, object: &[u8], wanted: &[u8]) {
        // Errors are ignored: some backends send `null` instead of the object with details, and the
        // rest of the report is valid.
        let _ = json::fields(object, |name, place| {
            if name == wanted {
                self.field(name, &object[place]);
            }
        });
    }

    /// Marks the output tokens as preliminary, because Anthropic's first event counts them before
    /// the model has finished. They are only a lower bound.
    pub(crate) fn as_first_event(mut self) -> Self {
        self.is_output_final = false;
        self
    }

    /// Merges the numbers of a later event of the same response: of two numbers for a field the
    /// larger one counts.
    pub(crate) fn merge(&mut self, later: &Self) {
        self.input = self.input.max(later.input);
        self.output = self.output.max(later.output);
        self.total = self.total.max(later.total);
        self.cached = self.cached.max(later.cached);
        self.cache_read = self.cache_read.max(later.cache_read);
        self.cache_written = self.cache_written.max(later.cache_written);
        self.reasoning = self.reasoning.max(later.reasoning);
        self.is_output_final |= later.is_output_final;
    }

    #[cfg(test)]
    pub(crate) fn usage(&self, api: Api) -> Option<TokenUsage> {
        let report = self.report(api)?;
        let source = if report.is_valid() {
            UsageSource::Reported
        } else {
            UsageSource::Estimated
        };
        let [prompt, completion] =
            [report.prompt, report.completion].map(Option::unwrap_or_default);
        Some(report.usage(prompt, completion, source))
    }

    /// True if the report includes a total, or both input and output. Otherwise it is no complete
    /// report.
    pub(crate) fn has_total_or_parts(&self) -> bool {
        self.total.or(self.input.and(self.output)).is_some()
    }

    /// Interprets the numbers for an API, whose formats differ in what the prompt includes; `None`
    /// if no number was reported.
    pub(crate) fn report(&self, api: Api) -> Option<UsageReport> {
        self.input.or(self.output).or(self.total)?;
        let (prompt, cached) = if api == Api::Messages {
            let cache: u64 = self.cache_read.into_iter().chain(self.cache_written).sum();
            (self.input.map(|input| input + cache), self.cache_read)
        } else {
            (self.input, self.cached.max(self.cache_read))
        };
        let completion = self.output.filter(|_| self.is_output_final);
        let (prompt, completion) = if api.writes_text() {
            (prompt, completion)
        } else {
            // An API that generates no text, such as embeddings, need not report output. Its tokens are
            // prompt tokens unless the report has another number.
            let rest = |part: u64| self.total.map(|total| total.saturating_sub(part));
            let prompt = prompt.or_else(|| rest(completion.unwrap_or(0)));
            let rest = prompt.and_then(rest).unwrap_or(0);
            (prompt, completion.or(Some(rest)))
        };
        Some(UsageReport {
            prompt,
            completion,
            preliminary: self.output.unwrap_or(0),
            total: self.total,
            cached: cached.unwrap_or(0),
            reasoning: self.reasoning.unwrap_or(0),
        })
    }
}

/// Usage as a backend reported it. A number that is missing or not plausible is `None` and is
/// estimated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UsageReport {
    pub(crate) prompt: Option<u64>,
    pub(crate) completion: Option<u64>,
    /// Output tokens that any event reported so far, even the first one. A lower bound of the
    /// completion.
    preliminary: u64,
    total: Option<u64>,
    cached: u64,
    reasoning: u64,
}

impl UsageReport {
    /// True if prompt and completion are reported, and the total is not less than their sum.
    /// Otherwise the usage is marked as estimated.
    pub(crate) fn is_valid(&self) -> bool {
        let parts = self.prompt.zip(self.completion);
        parts.is_some_and(|(prompt, completion)| {
            self.total.is_none_or(|total| total >= prompt + completion)
        })
    }

    /// Returns the total minus `part`, if the difference is positive. A report that has only a
    /// total and one part is completed by it.
    pub(crate) fn rest(&self, part: u64) -> Option<u64> {
        let rest = self.total?.saturating_sub(part);
        (rest > 0).then_some(rest)
    }

    /// Returns the usage with these numbers for prompt and completion, and the report's numbers for
    /// cached, reasoning and total tokens.
    pub(crate) fn usage(&self, prompt: u64, completion: u64, source: UsageSource) -> TokenUsage {
        let completion = completion.max(self.preliminary);
        TokenUsage {
            prompt,
            completion,
            cached: self.cached.min(prompt),
            reasoning: self.reasoning,
            total: self.total.unwrap_or(0).max(prompt + completion),
            source,
        }
    }
}

/// Parses a token count: digits, optionally with a fraction of zeros, since some backends send
/// floating-point numbers.
fn count(value: &[u8]) -> Option<u64> {
    let dot = value.iter().position(|byte| *byte == b'.');
    let (whole, fraction) = value.split_at(dot.unwrap_or(value.len()));
    let is_integral = match fraction {
        [] => true,
        [_, zeros @ ..] => !zeros.is_empty() && zeros.iter().all(|byte| *byte == b'0'),
    };
    let digit = |byte: &u8| byte.is_ascii_digit().then(|| u64::from(byte - b'0'));
    let (first, rest) = whole.split_first().filter(|_| is_integral)?;
    rest.iter().try_fold(digit(first)?, |count, byte| {
        Some(count * 10 + digit(byte)?).filter(|count| *count <= MAX_TOKENS)
    })
}

//! How many tokens a request took, from the ways in which backends tell it.
//!
//! | | prompt | completion | part of the prompt that was cached |
//! |---|---|---|---|
//! | OpenAI | `prompt_tokens` | `completion_tokens` | `prompt_tokens_details.cached_tokens` |
//! | its Responses | `input_tokens` | `output_tokens` | `input_tokens_details.cached_tokens` |
//! | Anthropic | `input_tokens` + `cache_read_input_tokens` + `cache_creation_input_tokens` | `output_tokens` | `cache_read_input_tokens` |
//! | Ollama | `prompt_eval_count` | `eval_count` | |
//!
//! So `prompt` is everything that the model was given, whatever of it was in a cache. Anthropic's
//! own `input_tokens` is only what was neither read from its cache nor written to it.
//!
//! A [`Report`] counts as reported if it is complete and valid. Otherwise its valid numbers stand, the
//! others are estimated, and the whole is marked as an estimate.

#[cfg(test)]
mod tests;

use crate::endpoint::Api;
use crate::json;

/// More than this is no count but a mistake.
const MOST: u64 = 1_000_000_000;

/// Where the numbers of a [`Usage`] are from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Source {
    /// The backend reported them.
    Reported,
    /// The backend did not report all of them: see [`estimate`](super::estimate).
    Estimated,
    /// There are none: no model was asked, or it said nothing.
    #[default]
    None,
}

impl Source {
    /// Its name in a record.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Reported => "reported",
            Self::Estimated => "estimated",
            Self::None => "none",
        }
    }
}

/// The tokens of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// All that the model was given.
    pub(crate) prompt: u64,
    /// All that it made.
    pub(crate) completion: u64,
    /// The part of `prompt` that was read from a cache.
    pub(crate) cached: u64,
    /// The part of `completion` that was thought and not said, as far as it is told. Some
    /// backends do not include it there.
    pub(crate) reasoning: u64,
    /// At least `prompt` and `completion`; more if the backend says so.
    pub(crate) total: u64,
    pub(crate) source: Source,
}

impl Usage {
    /// An estimate of a prompt to which nothing was answered.
    pub(crate) fn of_prompt(prompt: u64) -> Self {
        if prompt == 0 {
            return Self::default();
        }
        Self {
            prompt,
            total: prompt,
            source: Source::Estimated,
            ..Self::default()
        }
    }
}

/// What an answer has said about its usage so far.
///
/// Usage is told as it stands, never as what was added. So of two numbers for the same thing the
/// greater counts, and telling it twice changes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    input: Option<u64>,
    output: Option<u64>,
    total: Option<u64>,
    /// Part of the input.
    cached: Option<u64>,
    /// Anthropic's, beside the input.
    cache_read: Option<u64>,
    cache_written: Option<u64>,
    reasoning: Option<u64>,
    /// The output was told by more than a beginning.
    is_output_told: bool,
}

impl Counts {
    /// Reads a `usage` object. What is not a plain number within reason is as if it were not
    /// there, and so is an object that has none.
    pub(crate) fn read(object: &[u8]) -> Self {
        let mut counts = Self::default();
        let read = json::fields(object, |name, place| counts.field(name, &object[place]));
        if read.is_err() {
            return Self::default();
        }
        counts
    }

    /// Reads a field of a `usage` object, or of Ollama's answer.
    pub(crate) fn field(&mut self, name: &[u8], value: &[u8]) {
        let place = match name {
            b"prompt_tokens" | b"input_tokens" | b"prompt_eval_count" => &mut self.input,
            b"completion_tokens" | b"output_tokens" | b"eval_count" => {
                self.is_output_told |= count(value).is_some();
                &mut self.output
            }
            b"total_tokens" => &mut self.total,
            // DeepSeek and Moonshot tell it so.
            b"prompt_cache_hit_tokens" | b"cached_tokens" => &mut self.cached,
            b"cache_read_input_tokens" => &mut self.cache_read,
            b"cache_creation_input_tokens" => &mut self.cache_written,
            b"reasoning_tokens" => &mut self.reasoning,
            b"prompt_tokens_details" | b"input_tokens_details" => {
                return self.detail(value, b"cached_tokens");
            }
            b"completion_tokens_details" | b"output_tokens_details" => {
                return self.detail(value, b"reasoning_tokens");
            }
            _ => return,
        };
        *place = (*place).max(count(value));
    }

    fn detail(&mut self, object: &[u8], wanted: &[u8]) {
        // `null` is no object, and nothing is told.
        let _ = json::fields(object, |name, place| {
            if name == wanted {
                self.field(name, &object[place]);
            }
        });
    }

    /// These are from the beginning of an answer: its output is not there yet.
    pub(crate) fn as_beginning(mut self) -> Self {
        self.is_output_told = false;
        self
    }

    /// Adds what was said later.
    pub(crate) fn merge(&mut self, later: &Self) {
        self.input = self.input.max(later.input);
        self.output = self.output.max(later.output);
        self.total = self.total.max(later.total);
        self.cached = self.cached.max(later.cached);
        self.cache_read = self.cache_read.max(later.cache_read);
        self.cache_written = self.cache_written.max(later.cache_written);
        self.reasoning = self.reasoning.max(later.reasoning);
        self.is_output_told |= later.is_output_told;
    }

    /// The usage without an estimate.
    #[cfg(test)]
    pub(crate) fn usage(&self, api: Api) -> Option<Usage> {
        let report = self.report(api)?;
        let source = if report.is_valid() {
            Source::Reported
        } else {
            Source::Estimated
        };
        let [prompt, completion] =
            [report.prompt, report.completion].map(Option::unwrap_or_default);
        Some(report.usage(prompt, completion, source))
    }

    /// True if a report of these numbers needs no estimate, or hardly.
    pub(crate) fn has_total_or_parts(&self) -> bool {
        self.total.or(self.input.and(self.output)).is_some()
    }

    /// The report that these numbers are to an API; `None` if nothing was reported.
    pub(crate) fn report(&self, api: Api) -> Option<Report> {
        self.input.or(self.output).or(self.total)?;
        let (prompt, cached) = if api == Api::Messages {
            let cache: u64 = self.cache_read.into_iter().chain(self.cache_written).sum();
            (self.input.map(|input| input + cache), self.cache_read)
        } else {
            (self.input, self.cached.max(self.cache_read))
        };
        let completion = self.output.filter(|_| self.is_output_told);
        let (prompt, completion) = if api.writes_text() {
            (prompt, completion)
        } else {
            // All of it is prompt, unless the report differs.
            let rest = |part: u64| self.total.map(|total| total.saturating_sub(part));
            let prompt = prompt.or_else(|| rest(completion.unwrap_or(0)));
            let rest = prompt.and_then(rest).unwrap_or(0);
            (prompt, completion.or(Some(rest)))
        };
        Some(Report {
            prompt,
            completion,
            begun: self.output.unwrap_or(0),
            total: self.total,
            cached: cached.unwrap_or(0),
            reasoning: self.reasoning.unwrap_or(0),
        })
    }
}

/// Usage as a backend reported it. Numbers that are missing or no counts are `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) prompt: Option<u64>,
    pub(crate) completion: Option<u64>,
    /// The tokens of the completion when it began.
    begun: u64,
    total: Option<u64>,
    cached: u64,
    reasoning: u64,
}

impl Report {
    /// True if nothing is missing and the total is not less than its parts.
    pub(crate) fn is_valid(&self) -> bool {
        let parts = self.prompt.zip(self.completion);
        parts.is_some_and(|(prompt, completion)| {
            self.total.is_none_or(|total| total >= prompt + completion)
        })
    }

    /// The tokens that the total leaves for one part beside the other one.
    pub(crate) fn rest(&self, part: u64) -> Option<u64> {
        let rest = self.total?.saturating_sub(part);
        (rest > 0).then_some(rest)
    }

    /// The usage with these parts, as reported or as estimated.
    pub(crate) fn usage(&self, prompt: u64, completion: u64, source: Source) -> Usage {
        let completion = completion.max(self.begun);
        Usage {
            prompt,
            completion,
            cached: self.cached.min(prompt),
            reasoning: self.reasoning,
            total: self.total.unwrap_or(0).max(prompt + completion),
            source,
        }
    }
}

/// A count, if it is one: digits, of which a fraction of zeros may follow, since some backends compute
/// in floating point.
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
        Some(count * 10 + digit(byte)?).filter(|count| *count <= MOST)
    })
}

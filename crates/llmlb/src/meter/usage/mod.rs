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

#[cfg(test)]
mod tests;

use super::api::Api;
use crate::request::scan;

/// More than this is no count but a mistake.
const MOST: u64 = 1_000_000_000;

/// Where the numbers of a [`Usage`] are from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Source {
    /// The backend told them.
    Reported,
    /// It did not: they are a guess, see [`estimate`](super::estimate).
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
        let read = scan::fields(object, |name, place| counts.field(name, &object[place]));
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
        let _ = scan::fields(object, |name, place| {
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

    /// Whether the answer may have more tokens than were told: it was cut after it had told how
    /// it begins, as Anthropic's do.
    pub(crate) fn is_only_beginning(&self) -> bool {
        let is_begun = self.input.or(self.output).is_some();
        is_begun && !self.is_output_told && self.total.is_none()
    }

    /// What they come to; `None` if nothing was told.
    ///
    /// If only the total was told it is all prompt, which is right where it happens (embeddings,
    /// rerank). If one of the parts is missing it is what the total leaves for it.
    pub(crate) fn usage(&self, api: Api) -> Option<Usage> {
        let (input, cached) = if api == Api::Messages {
            let cache = [self.cache_read, self.cache_written];
            let cache = cache.into_iter().flatten().reduce(|a, b| a + b);
            let input = match (self.input, cache) {
                (None, None) => None,
                (input, cache) => Some(input.unwrap_or(0) + cache.unwrap_or(0)),
            };
            (input, self.cache_read)
        } else {
            (self.input, self.cached.max(self.cache_read))
        };
        let (prompt, completion) = match (input, self.output, self.total) {
            (None, None, None) => return None,
            (None, None, Some(total)) => (total, 0),
            (Some(input), None, total) => (input, total.unwrap_or(0).saturating_sub(input)),
            (None, Some(output), total) => (total.unwrap_or(0).saturating_sub(output), output),
            (Some(input), Some(output), _) => (input, output),
        };
        Some(Usage {
            prompt,
            completion,
            cached: cached.unwrap_or(0).min(prompt),
            reasoning: self.reasoning.unwrap_or(0),
            total: self.total.unwrap_or(0).max(prompt + completion),
            source: Source::Reported,
        })
    }
}

/// A count, if it is one.
fn count(value: &[u8]) -> Option<u64> {
    let digit = |byte: &u8| byte.is_ascii_digit().then(|| u64::from(byte - b'0'));
    let (first, rest) = value.split_first()?;
    let count = rest.iter().try_fold(digit(first)?, |count, byte| {
        Some(count * 10 + digit(byte)?).filter(|count| *count <= MOST)
    })?;
    Some(count)
}

//! The limit that a request would exceed.

use std::fmt;

use crate::config::Period;

/// Kind of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitKind {
    Requests,
    Tokens,
    Concurrency,
    Budget(Period),
}

/// The limit of an API key that a refused request would exceed, with the figures for the error
/// message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exceeded {
    pub(crate) kind: LimitKind,
    pub(crate) limit: u64,
    pub(crate) used: u64,
    pub(crate) requested: u64,
    /// Milliseconds after which the request may be admitted; `None` if the request alone exceeds the limit, so
    /// that it is never admitted.
    pub(crate) wait_ms: Option<u64>,
}

impl LimitKind {
    pub(super) const COUNT: usize = 4;

    /// Returns the name of the limit in `/status`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Tokens => "tokens",
            Self::Concurrency => "concurrency",
            Self::Budget(_) => "budget",
        }
    }

    pub(super) fn index(self) -> usize {
        match self {
            Self::Requests => 0,
            Self::Tokens => 1,
            Self::Concurrency => 2,
            Self::Budget(_) => 3,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Requests => "requests per min (RPM)",
            Self::Tokens => "tokens per min (TPM)",
            Self::Concurrency => "concurrent requests",
            Self::Budget(Period::Day) => "tokens per day",
            Self::Budget(Period::Month) => "tokens per month",
        }
    }
}

/// Formats the figures of the limit in the words of OpenAI's error messages.
impl fmt::Display for Exceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            limit,
            used,
            requested,
            wait_ms,
        } = self;
        let words = kind.words();
        write!(
            f,
            "{words}: Limit {limit}, Used {used}, Requested {requested}."
        )?;
        match wait_ms {
            None => f.write_str(" Reduce the prompt or the maximum number of output tokens."),
            Some(_) if *kind == LimitKind::Concurrency => {
                f.write_str(" Please try again when another request has ended.")
            }
            Some(wait) => write!(f, " Please try again in {}.", Wait(*wait)),
        }
    }
}

/// A duration in the format of OpenAI's rate limit fields, which SDKs parse: `120ms`, `1.5s`,
/// `6m0s`, `2h3m4s`.
pub(crate) struct Wait(pub(crate) u64);

impl Wait {
    /// Appends the time. Every response of a key with limits has two of them, so they are written without the
    /// cost of `write!`.
    pub(super) fn append_to(&self, text: &mut Vec<u8>) {
        let ms = self.0;
        if ms < 1000 {
            return append(text, ms, b"ms");
        }
        if ms < 60_000 {
            let (seconds, rest) = (ms / 1000, ms % 1000);
            append(text, seconds, b"");
            if rest > 0 {
                let digits = [rest / 100, rest / 10 % 10, rest % 10];
                text.push(b'.');
                // The digits are below 10, so the conversion cannot fail.
                text.extend(digits.map(|digit| b'0' + u8::try_from(digit).unwrap_or_default()));
                while text.last() == Some(&b'0') {
                    text.pop();
                }
            }
            return text.push(b's');
        }
        let seconds = ms.div_ceil(1000);
        let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        if hours > 0 {
            append(text, hours, b"h");
        }
        append(text, minutes, b"m");
        append(text, seconds, b"s");
    }
}

fn append(text: &mut Vec<u8>, number: u64, unit: &[u8]) {
    text.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    text.extend_from_slice(unit);
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = Vec::new();
        self.append_to(&mut text);
        f.write_str(&String::from_utf8_lossy(&text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_has_the_format_of_openai() {
        for (ms, text) in [
            (0, "0ms"),
            (120, "120ms"),
            (1000, "1s"),
            (1500, "1.5s"),
            (8_640, "8.64s"),
            (59_999, "59.999s"),
            (360_000, "6m0s"),
            (60_001, "1m1s"),
            (7_384_000, "2h3m4s"),
        ] {
            assert_eq!(Wait(ms).to_string(), text);
        }
    }

    #[test]
    fn message_has_the_words_of_openai() {
        let exceeded = Exceeded {
            kind: LimitKind::Requests,
            limit: 3,
            used: 3,
            requested: 1,
            wait_ms: Some(20_000),
        };
        assert_eq!(
            exceeded.to_string(),
            "requests per min (RPM): Limit 3, Used 3, Requested 1. Please try again in 20s."
        );
    }
}

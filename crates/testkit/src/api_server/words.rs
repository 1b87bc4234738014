//! Tokens of a response, and the commands of tests in prompts.
//!
//! Commands are in brackets: `[status 429]` sets the status of an error response, `[cut 3]` cuts
//! the response after three tokens, `[pace 20]` waits 20 ms in front of each token, `[say a b c]`
//! sets the tokens, `[tokens 500]` their number, `[ragged]` splits chunks anywhere, `[gzip]`
//! compresses if the client accepts it.

use serde_json::Value;

/// Tokens that a proxy may damage: bytes that are not ASCII, quotes, newlines, marks of event streams.
const TOKENS: [&str; 12] = [
    "Grüße",
    ",",
    " 世界",
    " 🌍",
    ".",
    "\n\n",
    "data:",
    " [DONE]",
    " \"usage\"",
    " {}",
    " \\",
    "!",
];

/// Tokens of a response.
pub(super) struct Words {
    /// Texts of the tokens. The response has `count` tokens: these in order, starting again with
    /// the first after the last.
    tokens: Vec<String>,
    count: usize,
    /// True if `max_tokens` of the request is smaller than the number of tokens that the response
    /// would have.
    pub(super) is_truncated: bool,
    /// Number of prompt tokens, with cached ones.
    pub(super) prompt: u64,
    /// Number of prompt tokens in the cache.
    pub(super) cached: u64,
    /// Number N of the command `[cut N]` in the prompt. The server closes the connection after N
    /// tokens of a stream, or after half of the body of any other response. `None`: the response is
    /// complete.
    pub(super) breaks_after: Option<u64>,
}

impl Words {
    /// Returns the tokens of a response to a prompt, at most `max_tokens`.
    pub(super) fn for_prompt(prompt: &Value, max_tokens: &Value) -> Self {
        let text = prompt.to_string();
        let prompt_tokens = text.len() as u64 / 4 + 1;
        let tokens: Vec<String> = match argument(&text, "say") {
            Some(words) => words.split_inclusive(' ').map(str::to_owned).collect(),
            None => TOKENS.iter().map(|&token| token.to_owned()).collect(),
        };
        let wanted = number(&text, "tokens").unwrap_or(tokens.len() as u64);
        let max_tokens = max_tokens.as_u64().unwrap_or(u64::MAX);
        Self {
            tokens,
            count: usize::try_from(wanted.min(max_tokens)).expect("a number"),
            is_truncated: max_tokens < wanted,
            prompt: prompt_tokens,
            cached: prompt_tokens / 2,
            breaks_after: number(&text, "cut"),
        }
    }

    pub(super) fn tokens(&self) -> impl Iterator<Item = &str> {
        self.tokens
            .iter()
            .cycle()
            .take(self.count)
            .map(String::as_str)
    }

    pub(super) fn text(&self) -> String {
        self.tokens().collect()
    }

    pub(super) fn count(&self) -> u64 {
        self.count as u64
    }
}

/// Returns the argument of a test's command in the prompt, such as `3` for `[cut 3]`. `None` if the
/// prompt does not contain the command.
fn argument<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("[{word} "))?;
    Some(rest.split_once(']')?.0)
}

pub(super) fn number(text: &str, word: &str) -> Option<u64> {
    argument(text, word)?.parse().ok()
}

pub(super) fn has(text: &str, word: &str) -> bool {
    text.contains(&format!("[{word}]"))
}

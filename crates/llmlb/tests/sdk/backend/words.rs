//! What a backend says, token by token, and how it learns what a test wants.
//!
//! A test writes its wishes into the prompt, in brackets: `[status 429]` fails, `[cut 3]` breaks
//! off after three tokens, `[pace 20]` waits 20 ms before each, `[say a b c]` are the tokens,
//! `[tokens 500]` their number, `[ragged]` cuts frames anywhere, `[gzip]` compresses if the client understands it.

use serde_json::Value;

/// Everything that somebody may get wrong on the way: bytes that are no ASCII, quotes, newlines.
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

/// What an answer consists of.
pub(super) struct Words {
    /// They are said over and over, until there are enough.
    tokens: Vec<String>,
    count: usize,
    /// It had more to say.
    pub(super) is_cut_short: bool,
    /// How many tokens the question has, and how many of these were known already.
    pub(super) prompt: u64,
    pub(super) cached: u64,
    /// After how many tokens the connection breaks.
    pub(super) breaks_after: Option<u64>,
}

impl Words {
    /// The answer to a question, of so many tokens at most.
    pub(super) fn to(question: &Value, most: &Value) -> Self {
        let text = question.to_string();
        let prompt = text.len() as u64 / 4 + 1;
        let tokens: Vec<String> = match wish(&text, "say") {
            Some(said) => said.split_inclusive(' ').map(str::to_owned).collect(),
            None => TOKENS.iter().map(|&token| token.to_owned()).collect(),
        };
        let wanted = number(&text, "tokens").unwrap_or(tokens.len() as u64);
        let most = most.as_u64().unwrap_or(u64::MAX);
        Self {
            tokens,
            count: usize::try_from(wanted.min(most)).expect("a number"),
            is_cut_short: most < wanted,
            prompt,
            cached: prompt / 2,
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

/// What stands behind a word in brackets.
fn wish<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("[{word} "))?;
    Some(rest.split_once(']')?.0)
}

pub(super) fn number(text: &str, word: &str) -> Option<u64> {
    wish(text, word)?.parse().ok()
}

pub(super) fn has(text: &str, word: &str) -> bool {
    text.contains(&format!("[{word}]"))
}

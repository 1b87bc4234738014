//! Text of the demo's responses, which quotes the prompt.

use super::prompt::Prompt;
use super::{hash, pieces};

/// Maximum number of pieces (words, roughly) of the prompt that a response quotes.
const ECHO: usize = 12;

/// Openings of a response, followed by the backend's name. They are short, so that a response limited to
/// a few tokens still contains the name.
const GREETINGS: [&str; 4] = ["Hello from", "Greetings from", "Hi, this is", "You reached"];

const ADMISSIONS: [&str; 4] = [
    "I made this answer up: no model was run for it.",
    "To be honest, I made this up, for there is no model behind me.",
    "There is no model here, so I simply made these words up.",
    "What you read is made up, since I have no model to think with.",
];

const ADVICE: [&str; 4] = [
    "Ask again and another backend may answer, slower or faster than I am.",
    "Send a few requests at once, and see how llmlb spreads them over its backends.",
    "Start llmlb with a real LLM server, and it streams to you in just the same way.",
    "The tokens of this answer are counted, just as those of a real LLM server would be.",
];

/// A generated response, as the pieces in which it is streamed.
#[derive(Debug)]
pub(super) struct SampleResponse {
    pub(super) pieces: Vec<String>,
    /// True if the response was truncated at the client's maximum number of tokens.
    pub(super) is_truncated: bool,
}

impl SampleResponse {
    /// Generates a response of at most `max` tokens to a prompt.
    pub(super) fn new(backend: &str, prompt: &Prompt, max: Option<usize>) -> Self {
        let text = words(backend, prompt);
        let max = max.unwrap_or(usize::MAX);
        let mut all = pieces::pieces(&text).map(str::to_owned);
        Self {
            pieces: all.by_ref().take(max).collect(),
            is_truncated: all.next().is_some(),
        }
    }

    pub(super) fn text(&self) -> String {
        self.pieces.concat()
    }

    pub(super) const fn finish_reason(&self) -> &'static str {
        if self.is_truncated { "length" } else { "stop" }
    }
}

fn words(backend: &str, prompt: &Prompt) -> String {
    let pick = |from: [&'static str; 4], salt: u64| {
        from[usize::try_from(hash::mixed(prompt.seed ^ salt) % 4).unwrap_or(0)]
    };
    format!(
        "{} {backend}. {} {} {}",
        pick(GREETINGS, 1),
        echo(&prompt.question),
        pick(ADMISSIONS, 2),
        pick(ADVICE, 3),
    )
}

/// Quotes the start of the prompt on one line.
fn echo(question: &str) -> String {
    // Read only as many words of the prompt as are quoted, so that a long prompt costs no more than
    // a short one.
    let words: Vec<_> = question.split_whitespace().take(ECHO + 1).collect();
    let line = words.join(" ").replace('"', "'");
    let mut pieces = pieces::pieces(&line);
    let start: String = pieces.by_ref().take(ECHO).collect();
    if start.is_empty() {
        "You asked me something that I cannot read.".to_owned()
    } else if pieces.next().is_some() {
        format!("You asked me: \"{start}...\"")
    } else {
        format!("You asked me: \"{start}\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(question: &str) -> Prompt {
        Prompt {
            question: question.to_owned(),
            tokens: 1,
            seed: hash::fnv(question.as_bytes()),
        }
    }

    #[test]
    fn response_names_the_backend_quotes_the_prompt_and_says_it_is_made_up() {
        let text =
            SampleResponse::new("demo-fast", &prompt("Why is the sky \"blue\"?"), None).text();
        assert!(text.contains("demo-fast"), "{text}");
        assert!(text.contains("\"Why is the sky 'blue'?\""), "{text}");
        assert!(text.contains("made"), "{text}");
    }

    #[test]
    fn response_length_is_moderate_for_any_prompt() {
        let long = "word ".repeat(10_000);
        let joined = "x".repeat(100_000);
        let numbered = (0..200).map(|number| format!("Question {number}"));
        let odd = [
            "",
            " \n",
            "Hi",
            &long,
            &joined,
            "日本語で答えてください。お願いします。何でも",
        ];
        for question in numbered.chain(odd.map(str::to_owned)) {
            let response = SampleResponse::new("demo-medium", &prompt(&question), None);
            let count = response.pieces.len();
            assert!((40..=80).contains(&count), "{count}: {}", response.text());
            assert!(!response.is_truncated);
        }
    }

    #[test]
    fn response_depends_only_on_the_prompt() {
        let text = |question| SampleResponse::new("demo-slow", &prompt(question), None).text();
        assert_eq!(text("one"), text("one"));
        assert_ne!(text("one"), text("two"));
    }

    #[test]
    fn response_that_just_fits_is_not_truncated() {
        let whole = SampleResponse::new("demo-fast", &prompt("Hi"), None);
        let fits = SampleResponse::new("demo-fast", &prompt("Hi"), Some(whole.pieces.len()));
        let truncated =
            SampleResponse::new("demo-fast", &prompt("Hi"), Some(whole.pieces.len() - 1));
        assert_eq!(fits.finish_reason(), "stop");
        assert_eq!(fits.pieces, whole.pieces);
        assert_eq!(truncated.finish_reason(), "length");
        assert_eq!(truncated.pieces, whole.pieces[..whole.pieces.len() - 1]);
    }
}

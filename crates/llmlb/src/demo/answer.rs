//! Something friendly to say.

use super::prompt::Prompt;
use super::{hash, pieces};

/// How much of a question is said back.
const ECHO: usize = 12;

/// Short, so that who allows only a few tokens still reads who answered.
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

/// What was answered, as the pieces in which it is streamed.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) pieces: Vec<String>,
    /// Whether it had more to say than it was allowed to.
    pub(super) cut: bool,
}

impl Answer {
    /// Answers in at most so many tokens.
    pub(super) fn new(backend: &str, prompt: &Prompt, most: Option<usize>) -> Self {
        let text = words(backend, prompt);
        let most = most.unwrap_or(usize::MAX);
        let mut all = pieces::pieces(&text).map(str::to_owned);
        Self {
            pieces: all.by_ref().take(most).collect(),
            cut: all.next().is_some(),
        }
    }

    pub(super) fn text(&self) -> String {
        self.pieces.concat()
    }

    pub(super) const fn finish_reason(&self) -> &'static str {
        if self.cut { "length" } else { "stop" }
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

/// What was asked, in a few words and on one line.
fn echo(question: &str) -> String {
    // More words than that are never said; so a long question costs no more than a short one.
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
            seed: hash::of(question.as_bytes()),
        }
    }

    #[test]
    fn an_answer_says_who_speaks_what_was_asked_and_that_it_is_made_up() {
        let text = Answer::new("demo-fast", &prompt("Why is the sky \"blue\"?"), None).text();
        assert!(text.contains("demo-fast"), "{text}");
        assert!(text.contains("\"Why is the sky 'blue'?\""), "{text}");
        assert!(text.contains("made"), "{text}");
    }

    #[test]
    fn answers_are_of_moderate_length_whatever_was_asked() {
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
            let answer = Answer::new("demo-medium", &prompt(&question), None);
            let count = answer.pieces.len();
            assert!((40..=80).contains(&count), "{count}: {}", answer.text());
            assert!(!answer.cut);
        }
    }

    #[test]
    fn another_question_has_another_answer_the_same_one_the_same() {
        let text = |question| Answer::new("demo-slow", &prompt(question), None).text();
        assert_eq!(text("one"), text("one"));
        assert_ne!(text("one"), text("two"));
    }

    #[test]
    fn an_answer_that_just_fits_is_not_cut() {
        let whole = Answer::new("demo-fast", &prompt("Hi"), None);
        let fits = Answer::new("demo-fast", &prompt("Hi"), Some(whole.pieces.len()));
        let cut = Answer::new("demo-fast", &prompt("Hi"), Some(whole.pieces.len() - 1));
        assert_eq!(fits.finish_reason(), "stop");
        assert_eq!(fits.pieces, whole.pieces);
        assert_eq!(cut.finish_reason(), "length");
        assert_eq!(cut.pieces, whole.pieces[..whole.pieces.len() - 1]);
    }
}

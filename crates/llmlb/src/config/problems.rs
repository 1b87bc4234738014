//! Problems of a configuration: all of them, sorted by file, environment, flags, so that the
//! operator can correct them at once.

use std::error::Error;
use std::fmt;

use super::Config;
use super::origin::Origin;
use crate::text;

/// Maximum number of characters of a configured value that a message repeats.
const SHOWN: usize = 60;

/// All problems of a configuration, one line each. There is at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problems {
    lines: Vec<String>,
    /// Short hash of the file with the problems, by which a server logs the same file only once.
    /// `None` if the file could not be read.
    hash: Option<String>,
}

impl Problems {
    pub(crate) fn len(&self) -> usize {
        self.lines.len()
    }

    /// Returns a problem of a configuration whose file has no errors, such as a backend that is the server
    /// itself.
    pub(crate) fn of_config(config: &Config, what: &str) -> Self {
        let name = config.file.as_ref().map(|file| file.to_string_lossy());
        let name = name.map_or_else(String::new, |name| format!("{}: ", one_line(&name)));
        Self {
            lines: vec![format!("{name}{what}")],
            hash: config.file_hash.clone(),
        }
    }

    pub(crate) fn lines(&self) -> &[String] {
        &self.lines
    }

    /// Returns the first problem, for messages with room for one line.
    pub(crate) fn first(&self) -> &str {
        self.lines.first().map_or("", String::as_str)
    }

    pub(super) fn of_file(mut self, hash: Option<String>) -> Self {
        self.hash = hash;
        self
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines.join("\n"))
    }
}

impl Error for Problems {}

/// Problems of a configuration in the order in which they are found.
#[derive(Debug, Default)]
pub(super) struct ProblemList(Vec<Problem>);

#[derive(Debug)]
struct Problem {
    /// Sort key of a problem: first the file from top to bottom, then the environment, then the
    /// flags.
    order: (u8, usize),
    line: Option<usize>,
    text: String,
}

impl ProblemList {
    /// Adds a problem at this origin. `subject` is the setting's name, or empty if the origin
    /// suffices.
    pub(super) fn add(&mut self, origin: &Origin, subject: &str, what: &str) {
        let (order, line) = match origin {
            Origin::File { at, line, .. } => ((0, *at), Some(*line)),
            Origin::Default => ((1, 0), None),
            Origin::Variable(_) => ((2, 0), None),
            Origin::Flag(_) => ((3, 0), None),
        };
        // Put the name of the setting in front of a value from the file or a default. A variable or
        // flag already identifies the setting.
        let text = match origin {
            Origin::File { .. } | Origin::Default if !subject.is_empty() => {
                format!("{origin}: {}: {what}", one_line(subject))
            }
            _ => format!("{origin}: {what}"),
        };
        self.0.push(Problem { order, line, text });
    }

    /// Adds a problem that concerns a whole file, such as a missing one.
    pub(super) fn add_file(&mut self, name: &str, what: &str) {
        self.0.push(Problem {
            order: (0, 0),
            line: None,
            text: format!("{}: {what}", one_line(name)),
        });
    }

    /// Adds a TOML syntax error, with its column in the line.
    pub(super) fn add_syntax(&mut self, origin: &Origin, column: usize, what: &str) {
        self.add(origin, "", what);
        if let Some(problem) = self.0.last_mut() {
            problem.text = format!("{origin}:{column}: {what}");
        }
    }

    pub(super) fn without_lines(mut self, unwanted: impl Fn(usize) -> bool) -> Self {
        self.0
            .retain(|problem| !problem.line.is_some_and(&unwanted));
        self
    }

    pub(super) fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    pub(super) fn into_result(mut self) -> Result<(), Problems> {
        if self.0.is_empty() {
            return Ok(());
        }
        self.0.sort_by_key(|problem| problem.order);
        let lines = self.0.into_iter().map(|problem| problem.text);
        Err(Problems {
            lines: lines.collect(),
            hash: None,
        })
    }
}

/// Quotes a value within a message: on one line, and truncated.
pub(super) fn quoted(text: &str) -> String {
    let mut shown: String = text.chars().take(SHOWN).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    format!("\"{}\"", one_line(&shown))
}

/// Sanitizes a name or path within a message. Line breaks in it could forge further messages.
pub(super) fn one_line(text: &str) -> String {
    text::plain(text).into_owned()
}

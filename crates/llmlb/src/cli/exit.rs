//! Exit codes of `llmlb`, and the error that a verb returns.

use super::output;

/// Done.
pub(super) const DONE: u8 = 0;
/// Refused or failed.
pub(super) const FAILED: u8 = 1;
/// Wrong usage.
pub(super) const USAGE: u8 = 2;
/// Exit code of `status -p PORT` and `top` if no server runs.
pub(super) const NOT_RUNNING: u8 = 3;

/// Error of a verb: exit code, message, and hints with commands to type.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) code: u8,
    message: String,
    hints: Vec<String>,
}

impl Failure {
    pub(super) fn new(code: u8, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            hints: Vec::new(),
        }
    }

    pub(super) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// Returns the error's message without its hints.
    pub(super) fn message(&self) -> &str {
        &self.message
    }

    pub(super) fn hints(&self) -> impl Iterator<Item = &str> {
        self.hints.iter().map(String::as_str)
    }

    pub(super) fn print(&self) {
        output::message(&self.message);
        for hint in &self.hints {
            output::hint(hint);
        }
    }
}

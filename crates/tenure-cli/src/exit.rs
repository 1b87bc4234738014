//! What each exit code means.

use crate::output;

/// Done.
pub(crate) const DONE: i32 = 0;
/// Refused or failed.
pub(crate) const FAILED: i32 = 1;
/// Wrong usage.
pub(crate) const USAGE: i32 = 2;
/// Asked about a key that nobody holds.
pub(crate) const NOT_RUNNING: i32 = 3;
/// `run`: somebody else holds the key. The same as `EX_TEMPFAIL` of sysexits.h.
pub(crate) const HELD: u8 = 75;
/// `run`: the command was found but could not be started.
pub(crate) const CANNOT_START: i32 = 126;
/// `run`: the command was not found.
pub(crate) const NOT_FOUND: i32 = 127;

/// Why the program ends without having done what was asked.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: i32,
    message: String,
    hints: Vec<String>,
}

impl Failure {
    pub(crate) fn new(code: i32, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            hints: Vec::new(),
        }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    pub(crate) fn print(&self) {
        output::say(&self.message);
        for hint in &self.hints {
            output::hint(hint);
        }
    }
}

impl From<tenure::Error> for Failure {
    fn from(error: tenure::Error) -> Self {
        let code = if error.is_bad_key() { USAGE } else { FAILED };
        let failure = Self::new(code, error.to_string());
        if error.is_unknown() {
            failure.hint(
                "`sudo tenure status` outside of containers shows it; while the key may be held, \
                 removing the file would let in a second owner",
            )
        } else if error.is_hostile() {
            failure.hint(
                "name another directory with TENURE_DIR or another file with --file, or repair this \
                 one once `tenure status` shows that nobody holds the key",
            )
        } else {
            failure
        }
    }
}

//! Exit codes, and the errors that end the program with an exit code.

use crate::output;

/// Success.
pub(crate) const DONE: i32 = 0;
/// Refused or failed.
pub(crate) const FAILED: i32 = 1;
/// Wrong usage.
pub(crate) const USAGE: i32 = 2;
/// Exit code of `status`: a key that the arguments name is not held.
pub(crate) const NOT_RUNNING: i32 = 3;
/// Exit code of `run`: another process holds the key. The value is that of `EX_TEMPFAIL` in
/// sysexits.h.
pub(crate) const HELD: u8 = 75;
/// Exit code of `run`: the command was found but could not be started.
pub(crate) const CANNOT_START: i32 = 126;
/// Exit code of `run`: the command was not found.
pub(crate) const NOT_FOUND: i32 = 127;

/// An error that ends the program: exit code, message and hints.
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
        output::message(&self.message);
        for hint in &self.hints {
            output::hint(hint);
        }
    }
}

impl From<tenure::Error> for Failure {
    fn from(error: tenure::Error) -> Self {
        let code = if error.is_bad_key() || error.is_bad_store() {
            USAGE
        } else {
            FAILED
        };
        let failure = Self::new(code, error.to_string());
        if error.is_unknown() {
            failure.hint(
                "do not remove the file, because that could admit a second owner; show the owner \
                 from outside of containers: `sudo tenure status`",
            )
        } else if error.is_unreachable() {
            failure.hint(
                "check that the store is running and reachable from this host, and the address and \
                 credentials in --store or TENURE_STORE",
            )
        } else if error.is_hostile() {
            failure.hint(
                "set TENURE_DIR to another directory or use --file PATH; before you repair this \
                 path, check that no process holds the key: `tenure status`",
            )
        } else {
            failure
        }
    }
}

//! Errors in the certificate and key files of a TLS configuration.

use std::fmt;
use std::path::Path;

/// Problem with a file of the TLS configuration: which file, what is wrong, and what to type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TlsError {
    message: String,
    hint: Option<String>,
}

impl TlsError {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            hint: None,
        }
    }

    pub(super) fn in_file(setting: &str, path: &Path, what: impl fmt::Display) -> Self {
        Self::new(format!("{setting} ({}): {what}", path.display()))
    }

    pub(super) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Returns the message and its hint in one line, as the log needs them.
    pub(super) fn with_hint(&self) -> String {
        match &self.hint {
            Some(hint) => format!("{} ({hint})", self.message),
            None => self.message.clone(),
        }
    }

    /// Returns the command to type that may solve the problem, if there is one.
    pub(crate) fn hint_text(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for TlsError {}

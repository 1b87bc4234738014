//! A secret that is never printed: `{:?}` shows a placeholder, so that logs and messages cannot
//! contain the secret.

use std::fmt;

/// A key, a token, or a URL that may contain a password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) fn new(key: String) -> Self {
        Self(key)
    }

    /// Returns the secret itself. Must be called only to build a request that sends the secret.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

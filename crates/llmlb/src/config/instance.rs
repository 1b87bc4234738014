//! Name of a server in its usage records. It distinguishes servers that deliver to the same
//! receiver.

use std::fmt;

/// Maximum length of a server's name in usage records, in characters. All allowed characters are
/// ASCII.
pub(super) const MAX_LENGTH: usize = 64;

/// Name of a server in its usage records. It needs no escapes in JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Instance(String);

impl Instance {
    /// Parses a server's name. `None` if the text is empty, too long, or has other characters than
    /// letters, digits and `-_.:`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_valid = !text.is_empty() && text.len() <= MAX_LENGTH && text.chars().all(is_allowed);
        is_valid.then(|| Self(text.to_owned()))
    }

    /// Returns the default name of a server: host name and port. Characters that are not allowed
    /// become `-`. A long host name is truncated but the port is kept, because it distinguishes the
    /// servers of one host.
    pub(crate) fn from_host(host: Option<&str>, port: u16) -> Self {
        let port = format!(":{port}");
        let host = host.filter(|host| !host.is_empty()).unwrap_or("unknown");
        let safe = |letter| if is_allowed(letter) { letter } else { '-' };
        let host = host.chars().map(safe).take(MAX_LENGTH - port.len());
        Self(host.chain(port.chars()).collect())
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_allowed(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || "-_.:".contains(letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_name_is_host_and_port_without_special_characters() {
        let name = |host| Instance::from_host(host, 32_768).0;
        assert_eq!(name(Some("gpu-1.example.com")), "gpu-1.example.com:32768");
        assert_eq!(name(Some("a\"b\n é/c")), "a-b----c:32768");
        assert_eq!(name(None), "unknown:32768");
        assert_eq!(name(Some("")), "unknown:32768");
        let long = name(Some(&"é".repeat(1000)));
        assert_eq!(long, format!("{}:32768", "-".repeat(58)));
        assert!(Instance::parse(&long).is_some());
    }

    #[test]
    fn names_that_need_escapes_or_are_too_long_are_rejected() {
        for name in ["a", "gpu-1:8000", "A_b.C", &"x".repeat(64)] {
            assert_eq!(Instance::parse(name).unwrap().as_str(), name);
        }
        for name in ["", " ", "a b", "a\"", "a\\", "a\n", "é", &"x".repeat(65)] {
            assert_eq!(Instance::parse(name), None, "{name:?}");
        }
    }
}

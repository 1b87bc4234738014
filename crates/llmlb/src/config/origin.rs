//! Origin of a configured value: file and line, variable or flag. `llmlb check` shows it, and
//! messages about problems begin with it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use super::problems::one_line;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    Default,
    File {
        name: PathBuf,
        line: usize,
        /// Byte offset of the value in the file, by which problems are sorted.
        at: usize,
    },
    Variable(Cow<'static, str>),
    Flag(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { name, line, .. } => {
                write!(f, "{}:{line}", one_line(&name.to_string_lossy()))
            }
            Self::Variable(name) => f.write_str(&one_line(name)),
            Self::Flag(name) => f.write_str(name),
        }
    }
}

/// Origins of all values of the configuration, shown by `llmlb check`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Origins {
    pub(super) settings: BTreeMap<&'static str, Origin>,
    /// File and line, variable or flag that defines each backend, in the order of the backends.
    /// `llmlb check` shows it.
    pub(crate) backends: Vec<Origin>,
    /// File and line that defines each alias, in the order of the aliases. `llmlb check` shows it.
    pub(crate) aliases: Vec<Origin>,
    /// File and line that defines each API key, in the order of the keys. `llmlb check` shows it.
    pub(crate) keys: Vec<Origin>,
}

impl Origins {
    /// Returns the origin of a setting's value, by the setting's name.
    pub(crate) fn origin(&self, name: &str) -> &Origin {
        self.settings.get(name).unwrap_or(&Origin::Default)
    }
}

//! Where a value came from: shown by `llmlb check`, and the place that a problem names.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use super::problems::one_line;
use super::settings::Setting;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    Default,
    File {
        name: PathBuf,
        line: usize,
        /// The byte within the file: problems are told in the file's order.
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

/// Where everything came from.
#[derive(Debug, Clone, Default)]
pub(crate) struct Origins {
    pub(super) settings: BTreeMap<&'static str, Origin>,
    /// One for each backend, in the same order.
    pub(crate) backends: Vec<Origin>,
    /// One for each alias, in the same order.
    pub(crate) aliases: Vec<Origin>,
}

impl Origins {
    pub(crate) fn of(&self, setting: &Setting) -> &Origin {
        self.settings.get(setting.name).unwrap_or(&Origin::Default)
    }
}

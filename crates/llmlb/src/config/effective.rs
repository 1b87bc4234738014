//! The effective settings as text, with the origin of each, for `llmlb check`.

use super::setting::Section;
use super::{Config, Origin};

/// Effective value of one setting, as `llmlb check` prints it.
pub(crate) struct Effective<'a> {
    pub(crate) name: &'static str,
    pub(crate) value: String,
    pub(crate) origin: &'a Origin,
}

impl Config {
    pub(crate) fn effective(&self) -> Vec<Effective<'_>> {
        let sections = [
            self.server.effective(),
            self.upstream.effective(),
            self.log.effective(),
            self.telemetry.effective(),
            self.usage.effective(),
            self.fleet.effective(),
        ];
        let settings = sections.into_iter().flatten();
        settings
            .map(|(name, value)| Effective {
                name,
                value,
                origin: self.origins.origin(name),
            })
            .collect()
    }
}

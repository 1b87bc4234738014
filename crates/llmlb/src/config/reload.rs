//! Differences between the configuration of a running server and a changed file.

use super::setting::{Section, SettingChanges};
use super::{Alias, Backend, Config};

/// Changes of a reload, in words for the log.
#[derive(Debug)]
pub(crate) struct Changes {
    /// Changes that take effect, one text for each setting, backend or alias.
    pub(crate) applied: Vec<String>,
    /// Changed settings that keep their value until the server is started again.
    pub(crate) after_restart: Vec<String>,
}

impl Config {
    /// Compares a changed configuration with the running one. Settings that a reload cannot change get their
    /// running value.
    pub(crate) fn merge(&mut self, running: &Self) -> Changes {
        let mut changes = SettingChanges::default();
        self.server.merge(&running.server, &mut changes);
        self.upstream.merge(&running.upstream, &mut changes);
        self.log.merge(&running.log, &mut changes);
        self.usage.merge(&running.usage, &mut changes);
        self.fleet.merge(&running.fleet, &mut changes);
        self.usage_token.clone_from(&running.usage_token);
        let SettingChanges {
            mut applied,
            after_restart,
        } = changes;
        applied.extend(backends(&running.backends, &self.backends));
        applied.extend(aliases(&running.aliases, &self.aliases));
        Changes {
            applied,
            after_restart,
        }
    }
}

/// Describes changes of backends. A backend is the same if its URL is the same.
fn backends(before: &[Backend], after: &[Backend]) -> Vec<String> {
    let find = |list: &[Backend], one: &Backend| {
        let mut list = list.iter();
        list.find(|other| other.url == one.url).cloned()
    };
    let mut changes = Vec::new();
    for backend in after {
        match find(before, backend) {
            None => changes.push(format!("backend {} added", backend.name)),
            Some(old) => {
                let fields = changed_fields(&old, backend);
                if !fields.is_empty() {
                    let fields = fields.join(", ");
                    changes.push(format!("backend {}: {fields} changed", backend.name));
                }
            }
        }
    }
    let gone = before.iter().filter(|one| find(after, one).is_none());
    changes.extend(gone.map(|one| format!("backend {} removed", one.name)));
    let order = |list: &[Backend], other: &[Backend]| {
        let common = list.iter().filter(|one| find(other, one).is_some());
        common.map(|one| one.url.to_string()).collect::<Vec<_>>()
    };
    if order(before, after) != order(after, before) {
        changes.push("order of backends changed".to_owned());
    }
    changes
}

/// Names of the fields that differ. Keys are compared and never shown.
fn changed_fields(before: &Backend, after: &Backend) -> Vec<&'static str> {
    let fields = [
        ("name", before.name != after.name),
        ("models", before.models != after.models),
        ("key", before.api_key != after.api_key),
        ("kind", before.kind != after.kind),
        ("weight", before.weight != after.weight),
        (
            "max_concurrent",
            before.max_concurrent != after.max_concurrent,
        ),
        ("only_models", before.only_models != after.only_models),
        (
            "reuse_after_errors",
            before.reuse_after_errors != after.reuse_after_errors,
        ),
    ];
    let changed = fields.into_iter().filter(|(_, is_changed)| *is_changed);
    changed.map(|(name, _)| name).collect()
}

/// Describes changes of aliases. Both lists are sorted by name.
fn aliases(before: &[Alias], after: &[Alias]) -> Vec<String> {
    let find = |list: &[Alias], name: &str| {
        let mut list = list.iter();
        list.find(|other| other.name == name).cloned()
    };
    let mut changes = Vec::new();
    for alias in after {
        match find(before, &alias.name) {
            None => changes.push(format!("alias {} added", alias.name)),
            Some(old) if old != *alias => changes.push(format!("alias {} changed", alias.name)),
            Some(_) => {}
        }
    }
    let gone = before.iter().filter(|one| find(after, &one.name).is_none());
    changes.extend(gone.map(|one| format!("alias {} removed", one.name)));
    changes
}

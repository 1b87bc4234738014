//! Differences between the configuration of a running server and a changed file.

use std::collections::HashMap;

use super::setting::{Section, SettingChanges};
use super::{Alias, Backend, Config, ConfiguredKey};

/// Differences that a reload of the configuration found, in words for the log.
#[derive(Debug)]
pub(crate) struct Changes {
    /// Changes that take effect now, one text for each setting, backend or alias.
    pub(crate) applied: Vec<String>,
    /// Changes of settings that keep their old value until the server is started again.
    pub(crate) after_restart: Vec<String>,
}

impl Config {
    /// Compares a changed configuration with that of the running server. Settings that a reload
    /// cannot change get their running value.
    pub(crate) fn merge(&mut self, running: &Self) -> Changes {
        let mut changes = SettingChanges::default();
        self.server.merge(&running.server, &mut changes);
        self.upstream.merge(&running.upstream, &mut changes);
        self.log.merge(&running.log, &mut changes);
        self.telemetry.merge(&running.telemetry, &mut changes);
        self.usage.merge(&running.usage, &mut changes);
        self.fleet.merge(&running.fleet, &mut changes);
        self.usage_token.clone_from(&running.usage_token);
        let SettingChanges {
            mut applied,
            after_restart,
        } = changes;
        applied.extend(backends(&running.backends, &self.backends));
        applied.extend(named("alias", &running.aliases, &self.aliases));
        applied.extend(named("key", &running.keys, &self.keys));
        Changes {
            applied,
            after_restart,
        }
    }
}

/// Describes changes of backends for the log. A backend counts as the same if its URL is the same.
fn backends(before: &[Backend], after: &[Backend]) -> Vec<String> {
    fn by_url(list: &[Backend]) -> HashMap<String, &Backend> {
        list.iter().map(|one| (one.url.to_string(), one)).collect()
    }
    let (old, new) = (by_url(before), by_url(after));
    let mut changes = Vec::new();
    for backend in after {
        match old.get(&backend.url.to_string()) {
            None => changes.push(format!("backend {} added", backend.name)),
            Some(old) => {
                let fields = changed_fields(old, backend);
                if !fields.is_empty() {
                    let fields = fields.join(", ");
                    changes.push(format!("backend {}: {fields} changed", backend.name));
                }
            }
        }
    }
    let gone = |one: &&Backend| !new.contains_key(&one.url.to_string());
    let gone = before.iter().filter(gone);
    changes.extend(gone.map(|one| format!("backend {} removed", one.name)));
    let common = |list: &[Backend], other: &HashMap<String, &Backend>| -> Vec<String> {
        let urls = list.iter().map(|one| one.url.to_string());
        urls.filter(|url| other.contains_key(url)).collect()
    };
    if common(before, &new) != common(after, &old) {
        changes.push("order of backends changed".to_owned());
    }
    changes
}

/// Returns the names of the fields in which two versions of a backend differ. Keys are compared but
/// never shown.
fn changed_fields(before: &Backend, after: &Backend) -> Vec<&'static str> {
    // List all fields, without `..`, so that a new field does not compile until it is compared. The
    // label follows from the name and the position, and the URL is the same.
    let Backend {
        name,
        label: _,
        url: _,
        models,
        api_key,
        kind,
        weight,
        max_concurrent,
        only_models,
        reuse_after_errors,
        websocket,
    } = before;
    let fields = [
        ("name", *name != after.name),
        ("models", *models != after.models),
        ("key", *api_key != after.api_key),
        ("kind", *kind != after.kind),
        ("weight", *weight != after.weight),
        ("max_concurrent", *max_concurrent != after.max_concurrent),
        ("only_models", *only_models != after.only_models),
        ("websocket", *websocket != after.websocket),
        (
            "reuse_after_errors",
            *reuse_after_errors != after.reuse_after_errors,
        ),
    ];
    let changed = fields.into_iter().filter(|(_, is_changed)| *is_changed);
    changed.map(|(name, _)| name).collect()
}

/// An alias or an API key, which counts as the same after a reload if its name is the same.
trait Named: PartialEq {
    fn name(&self) -> &str;
}

impl Named for Alias {
    fn name(&self) -> &str {
        &self.name
    }
}

impl Named for ConfiguredKey {
    fn name(&self) -> &str {
        &self.rights.name
    }
}

/// Describes changes of aliases or API keys for the log.
fn named<T: Named>(noun: &str, before: &[T], after: &[T]) -> Vec<String> {
    fn by_name<T: Named>(list: &[T]) -> HashMap<&str, &T> {
        list.iter().map(|one| (one.name(), one)).collect()
    }
    let (old, new) = (by_name(before), by_name(after));
    let mut changes = Vec::new();
    for one in after {
        match old.get(one.name()) {
            None => changes.push(format!("{noun} {} added", one.name())),
            Some(old) if *old != one => changes.push(format!("{noun} {} changed", one.name())),
            Some(_) => {}
        }
    }
    let gone = before.iter().filter(|one| !new.contains_key(one.name()));
    changes.extend(gone.map(|one| format!("{noun} {} removed", one.name())));
    changes
}

#[cfg(test)]
mod tests {
    use super::super::Flags;
    use super::*;

    fn config(text: &str) -> Config {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("llmlb.toml");
        std::fs::write(&file, text).unwrap();
        super::super::load_without_environment(&Flags {
            config: Some(file),
            ..Flags::default()
        })
        .unwrap()
    }

    fn merged(before: &str, after: &str) -> (Config, Changes) {
        let mut new = config(after);
        let changes = new.merge(&config(before));
        (new, changes)
    }

    #[test]
    fn changed_settings_are_listed_with_old_and_new_value() {
        let (new, changes) = merged(
            "[server]\nqueue = 5\n[upstream]\nidle_timeout = \"5m\"\n",
            "[server]\nqueue = 6\nmax_body = \"1MiB\"\n",
        );
        assert_eq!(
            changes.applied,
            ["server.max_body 32MiB -> 1MiB", "server.queue 5 -> 6"]
        );
        assert_eq!(changes.after_restart, [""; 0]);
        assert_eq!((new.server.queue, new.server.max_body), (6, 1 << 20));
    }

    #[test]
    fn settings_that_need_a_restart_keep_their_running_value() {
        let (new, changes) = merged(
            "[server]\nport = 5\n[usage]\nurl = \"https://b.example/?key=one\"\n",
            "[server]\nport = 6\n[usage]\nurl = \"https://b.example/?key=two\"\n",
        );
        assert_eq!(changes.applied, [""; 0]);
        let [port, url] = &changes.after_restart[..] else {
            panic!("{changes:?}");
        };
        assert_eq!(port, "server.port 5 -> 6");
        assert!(url.starts_with("usage.url"), "{url}");
        assert!(!url.contains("one") && !url.contains("two"), "{url}");
        assert_eq!(new.server.port, 5);
        let old = config("[usage]\nurl = \"https://b.example/?key=one\"\n");
        assert_eq!(new.usage.url, old.usage.url);
    }

    #[test]
    fn backends_are_compared_by_url() {
        let table = |url: &str, more: &str| format!("[[backend]]\nurl = \"http://{url}\"\n{more}");
        let before = [table("a", ""), table("b", ""), table("c", "weight = 2\n")].concat();
        let after = [
            table("d", "name = \"new\"\n"),
            table("c", "weight = 3\nname = \"see\"\n"),
            table("a", ""),
        ];
        let (_, changes) = merged(&before, &after.concat());
        assert_eq!(
            changes.applied,
            [
                "backend new added",
                "backend see: name, weight changed",
                "backend b:80 removed",
                "order of backends changed"
            ]
        );
        assert_eq!(merged(&before, &before).1.applied, [""; 0]);
    }

    #[test]
    fn aliases_and_keys_are_compared_by_name() {
        let key = |name: &str, digit: &str, more: &str| {
            let hash = digit.repeat(64);
            format!("[[key]]\nname = \"{name}\"\nsha256 = \"{hash}\"\n{more}")
        };
        let before = [
            "[aliases]\na = \"m\"\nb = \"m\"\n",
            &key("k", "1", ""),
            &key("l", "2", ""),
        ];
        let after = [
            "[aliases]\nb = \"n\"\nc = \"m\"\n",
            &key("l", "3", ""),
            &key("n", "4", "rpm = 5\n"),
        ];
        let (_, changes) = merged(&before.concat(), &after.concat());
        assert_eq!(
            changes.applied,
            [
                "alias b changed",
                "alias c added",
                "alias a removed",
                "key l changed",
                "key n added",
                "key k removed"
            ]
        );
    }
}

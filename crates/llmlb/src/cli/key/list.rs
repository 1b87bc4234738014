//! `llmlb key list`: all keys, without their secrets.

use jiff::Timestamp;
use serde::Serialize;

use super::args::List;
use super::{Keys, failure};
use crate::cli::exit::{self, Failure};
use crate::cli::output;
use crate::cli::table::aligned;
use crate::config::{KeyRights, Origin};
use crate::keys::StoredKey;

/// Version of the JSON document, which changes when a field is removed or changes its meaning.
const VERSION: u32 = 1;

#[derive(Serialize)]
struct KeysDocument {
    version: u32,
    keys: Vec<ListedKey>,
}

/// An API key in the output of `llmlb key list`.
#[derive(Serialize)]
struct ListedKey {
    name: String,
    state: &'static str,
    team: Option<String>,
    models: Option<Vec<String>>,
    rpm: Option<u32>,
    tpm: Option<u64>,
    concurrency: Option<u32>,
    budget_tokens: Option<u64>,
    per: Option<&'static str>,
    expires: Option<String>,
    admin: bool,
    created: Option<String>,
    revoked: Option<String>,
    /// Time until which clients may still use the secret that the last rotation replaced.
    old_secret_until: Option<String>,
    /// Source of the key: `keys.json`, or file and line of the configuration.
    source: String,
}

pub(super) fn list(args: &List, keys: &Keys) -> Result<u8, Failure> {
    let stored = keys.store.read().map_err(|error| failure(&error))?;
    let stored = stored.map_or_else(Vec::new, |stored| stored.keys);
    let now = Timestamp::now();
    let declared = keys.declared.iter();
    let mut listed: Vec<ListedKey> = declared
        .map(|(rights, origin)| of_configuration(rights, origin, now))
        .collect();
    let stored = stored.iter();
    listed.extend(stored.map(|key| of_data_directory(key, keys, now)));
    if args.json {
        let document = KeysDocument {
            version: VERSION,
            keys: listed,
        };
        output::data(&output::json(&document)?)?;
    } else if listed.is_empty() {
        output::data("no API keys: clients need none")?;
        output::hint(&format!("create one: {}", keys.command("add NAME")));
    } else {
        output::data(&table(&listed))?;
    }
    Ok(exit::DONE)
}

fn of_configuration(rights: &KeyRights, origin: &Origin, now: Timestamp) -> ListedKey {
    let state = state(rights, now);
    ListedKey::new(rights, state, origin.to_string())
}

fn of_data_directory(key: &StoredKey, keys: &Keys, now: Timestamp) -> ListedKey {
    let state = match key.revoked {
        Some(_) => "revoked",
        // Show the stored key as overridden: the server uses the key of the same name in the
        // configuration file.
        None if keys.declared(&key.rights.name).is_some() => "overridden",
        None => state(&key.rights, now),
    };
    let previous = key.previous.as_ref();
    let previous = previous.filter(|previous| previous.until > now);
    ListedKey {
        created: Some(seconds(key.created)),
        revoked: key.revoked.map(seconds),
        old_secret_until: previous.map(|previous| seconds(previous.until)),
        ..ListedKey::new(&key.rights, state, "keys.json".to_owned())
    }
}

fn state(rights: &KeyRights, now: Timestamp) -> &'static str {
    if rights.expires.is_some_and(|time| time <= now) {
        "expired"
    } else {
        "active"
    }
}

impl ListedKey {
    fn new(rights: &KeyRights, state: &'static str, source: String) -> Self {
        let limits = &rights.limits;
        Self {
            name: rights.name.clone(),
            state,
            team: rights.team.clone(),
            models: rights.models.clone(),
            rpm: limits.requests_per_minute,
            tpm: limits.tokens_per_minute,
            concurrency: limits.concurrency,
            budget_tokens: limits.budget.map(|budget| budget.tokens),
            per: limits.budget.map(|budget| budget.per.name()),
            expires: rights.expires.map(seconds),
            admin: rights.is_admin,
            created: None,
            revoked: None,
            old_secret_until: None,
            source,
        }
    }

    fn row(&self) -> Vec<String> {
        let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        let admin = if self.admin { " (admin)" } else { "" };
        let models = self.models.as_ref().map(|models| models.join(","));
        vec![
            format!("{}{admin}", self.name),
            self.state.to_owned(),
            or_dash(&self.team),
            models.unwrap_or_else(|| "all".to_owned()),
            self.limits(),
            self.expires.clone().unwrap_or_else(|| "never".to_owned()),
            or_dash(&self.created),
            self.source.clone(),
        ]
    }

    fn limits(&self) -> String {
        let of = |name: &str, value: Option<u64>| value.map(|value| format!("{name}={value}"));
        let budget = self.budget_tokens.zip(self.per);
        let limits = [
            of("rpm", self.rpm.map(u64::from)),
            of("tpm", self.tpm),
            of("concurrency", self.concurrency.map(u64::from)),
            budget.map(|(tokens, per)| format!("{tokens} tokens/{per}")),
        ];
        let limits: Vec<String> = limits.into_iter().flatten().collect();
        if limits.is_empty() {
            "none".to_owned()
        } else {
            limits.join(" ")
        }
    }
}

fn table(listed: &[ListedKey]) -> String {
    let header = [
        "NAME", "STATE", "TEAM", "MODELS", "LIMITS", "EXPIRES", "CREATED", "SOURCE",
    ];
    let header = header.map(str::to_owned).to_vec();
    let rows = listed.iter().map(ListedKey::row);
    aligned(&std::iter::once(header).chain(rows).collect::<Vec<_>>())
}

/// Formats a time in UTC, to the second.
fn seconds(time: Timestamp) -> String {
    format!("{time:.0}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Budget, KeyLimits, Period};

    #[test]
    fn row_shows_rights_limits_and_source() {
        let now: Timestamp = "2026-11-18T12:00:00.5Z".parse().unwrap();
        let rights = KeyRights {
            team: Some("search".to_owned()),
            models: Some(vec!["a".to_owned(), "b*".to_owned()]),
            limits: KeyLimits {
                requests_per_minute: Some(60),
                tokens_per_minute: None,
                concurrency: Some(4),
                budget: Some(Budget {
                    tokens: 1000,
                    per: Period::Day,
                }),
            },
            expires: Some(now),
            is_admin: true,
            ..KeyRights::unlimited("alice")
        };
        let origin = Origin::File {
            name: "llmlb.toml".into(),
            line: 7,
            at: 0,
        };
        let row = of_configuration(&rights, &origin, now).row();
        assert_eq!(
            row,
            [
                "alice (admin)",
                "expired",
                "search",
                "a,b*",
                "rpm=60 concurrency=4 1000 tokens/day",
                "2026-11-18T12:00:00Z",
                "-",
                "llmlb.toml:7",
            ]
        );
        let row = of_configuration(&KeyRights::unlimited("b"), &origin, now).row();
        assert_eq!(row[1..6], ["active", "-", "all", "none", "never"]);
    }
}

//! API keys: list, creation, revocation.

use http::StatusCode;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{failed, invalid, refused};
use crate::config::{
    Budget, KeyLimits, KeyRights, MAX_TOKENS, Period, is_key_name, model_patterns,
};
use crate::keys::{KeyFileError, KeyStore, KeyTable, NewSecret, NotAdded};
use crate::request::Refusal;

/// Maximum number of keys in a list.
const MAX_LISTED: usize = 200;
const MAX_REQUESTS: u64 = 100_000_000;
const MAX_CONCURRENCY: u64 = 1_000_000;

/// Body of an action on a key.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeyName {
    pub(super) name: String,
}

/// Body of the action that creates a key. A limit that is `null` does not apply.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeyFields {
    name: String,
    team: Option<String>,
    models: Option<Vec<String>>,
    requests_per_minute: Option<u64>,
    tokens_per_minute: Option<u64>,
    concurrency: Option<u64>,
    budget_tokens: Option<u64>,
    per: Option<String>,
    #[serde(default)]
    admin: bool,
}

/// A key to create, with valid rights.
pub(super) struct NewKey(KeyRights);

/// Returns the keys of the file and of the configuration.
pub(super) fn list(table: &KeyTable, store: Option<&KeyStore>) -> Result<Value, Refusal> {
    let stored = store.map_or(Ok(None), KeyStore::read);
    let stored = stored.map_err(|error| explain(&error))?;
    let stored = stored.map_or_else(Vec::new, |stored| stored.keys);
    let now = Timestamp::now();
    let mut keys: Vec<Value> = Vec::new();
    let mut configured = table.all();
    configured.retain(|key| table.is_configured(&key.name));
    configured.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    keys.extend(configured.iter().map(|key| {
        json!({
            "name": &*key.name, "team": key.team.as_deref(), "models": key.models(), "admin": key.is_admin,
            "expires": key.expires().map(|time| time.to_string()), "state": state(None, key.expires(), now),
            "source": "llmlb.toml",
        })
    }));
    // Active keys first: revoked ones are only of historical interest.
    let (active, revoked): (Vec<_>, Vec<_>) = stored.iter().partition(|key| key.revoked.is_none());
    keys.extend(active.into_iter().chain(revoked).map(|key| {
        let rights = &key.rights;
        json!({
            "name": rights.name, "team": rights.team, "models": rights.models, "admin": rights.is_admin,
            "expires": rights.expires.map(|time| time.to_string()),
            "state": state(key.revoked, rights.expires, now), "source": "keys.json",
        })
    }));
    let more = keys.len().saturating_sub(MAX_LISTED);
    keys.truncate(MAX_LISTED);
    let required = table.is_required() || !stored.is_empty();
    Ok(json!({ "keys": keys, "more": more, "required": required }))
}

fn state(revoked: Option<Timestamp>, expires: Option<Timestamp>, now: Timestamp) -> &'static str {
    match (revoked, expires) {
        (Some(_), _) => "revoked",
        (None, Some(end)) if end <= now => "expired",
        _ => "active",
    }
}

impl NewKey {
    /// Checks the fields like `llmlb key add` does.
    pub(super) fn parse(fields: KeyFields) -> Result<Self, Refusal> {
        const NAMES: &str = "allowed: 1 to 64 of a-z A-Z 0-9 . _ -, not beginning with -";
        if !is_key_name(&fields.name) {
            return Err(invalid(format!("name: {NAMES}")));
        }
        if fields
            .team
            .as_deref()
            .is_some_and(|team| !is_key_name(team))
        {
            return Err(invalid(format!("team: {NAMES}")));
        }
        let models = fields.models.filter(|models| !models.is_empty());
        let models = models.map(|models| model_patterns(&models)).transpose();
        let models = models.map_err(|why| invalid(format!("models: {why}")))?;
        let within = |what: &str, value: Option<u64>, max: u64| match value {
            Some(value) if !(1..=max).contains(&value) => {
                Err(invalid(format!("{what}: allowed: 1 to {max}")))
            }
            value => Ok(value),
        };
        let small = |what: &str, value, max| {
            within(what, value, max).map(|value| value.and_then(|value| u32::try_from(value).ok()))
        };
        let budget = within("budget", fields.budget_tokens, MAX_TOKENS)?;
        let per = fields.per.as_deref().map(period).transpose()?;
        if budget.is_some() != per.is_some() {
            return Err(invalid(
                "A budget needs a period, and a period a budget.".to_owned(),
            ));
        }
        let limits = KeyLimits {
            requests_per_minute: small(
                "requests per minute",
                fields.requests_per_minute,
                MAX_REQUESTS,
            )?,
            tokens_per_minute: within("tokens per minute", fields.tokens_per_minute, MAX_TOKENS)?,
            concurrency: small("concurrent requests", fields.concurrency, MAX_CONCURRENCY)?,
            budget: budget.zip(per).map(|(tokens, per)| Budget { tokens, per }),
        };
        Ok(Self(KeyRights {
            name: fields.name,
            team: fields.team,
            models,
            limits,
            expires: None,
            is_admin: fields.admin,
        }))
    }

    pub(super) fn name(&self) -> &str {
        &self.0.name
    }

    /// Creates the key. The response is the only place where its secret appears.
    pub(super) fn create(self, store: &KeyStore) -> Result<Value, Refusal> {
        let secret = NewSecret::generate().map_err(|error| failed(error.to_string()))?;
        let added = store.add("dashboard", self.0, &secret);
        match added.map_err(|error| explain(&error))? {
            Ok(is_first) => Ok(json!({ "secret": secret.expose(), "first": is_first })),
            Err(NotAdded::Exists) => {
                let message = "An API key has this name already.";
                Err(refused(StatusCode::CONFLICT, "key_exists", message))
            }
            Err(NotAdded::Full) => {
                let message = "There are as many API keys as a file may have; revoke unused ones.";
                Err(refused(StatusCode::CONFLICT, "too_many_keys", message))
            }
        }
    }
}

/// Revokes a key. Clients that send it are rejected within a second.
pub(super) fn revoke(store: &KeyStore, name: &str) -> Result<Value, Refusal> {
    match store.revoke("dashboard", name) {
        Ok(Some(is_last)) => Ok(json!({ "revoked": true, "last": is_last })),
        Ok(None) => {
            let message = "keys.json has no active API key of this name.";
            Err(refused(StatusCode::NOT_FOUND, "unknown_key", message))
        }
        Err(error) => Err(explain(&error)),
    }
}

fn period(word: &str) -> Result<Period, Refusal> {
    let mut words = Period::WORDS.into_iter();
    let found = words.find(|(name, _)| *name == word);
    found
        .map(|(_, period)| period)
        .ok_or_else(|| invalid("per: allowed: day, month".to_owned()))
}

fn explain(error: &KeyFileError) -> Refusal {
    failed(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(text: &str) -> Result<KeyRights, String> {
        let fields: KeyFields = serde_json::from_str(text).map_err(|error| error.to_string())?;
        NewKey::parse(fields)
            .map(|key| key.0)
            .map_err(|refusal| refusal.message)
    }

    #[test]
    fn fields_of_a_new_key_are_checked() {
        let full = fields(
            r#"{"name":"a","team":"t","models":["m*"],"requests_per_minute":5,"tokens_per_minute":6,
                "concurrency":7,"budget_tokens":8,"per":"day","admin":true}"#,
        );
        let full = full.unwrap();
        assert_eq!(full.models, Some(vec!["m*".to_owned()]));
        assert_eq!(full.limits.requests_per_minute, Some(5));
        assert_eq!(full.limits.concurrency, Some(7));
        assert!(full.limits.budget.is_some() && full.is_admin);
        let plain = fields(r#"{"name":"a","models":[]}"#).unwrap();
        assert_eq!((plain.models, plain.is_admin), (None, false));
        for (text, why) in [
            (r#"{"name":"a b"}"#, "name: allowed"),
            (r#"{"name":"<b>"}"#, "name: allowed"),
            (r#"{"name":"a","team":""}"#, "team: allowed"),
            (r#"{"name":"a","requests_per_minute":0}"#, "allowed: 1 to"),
            (r#"{"name":"a","concurrency":99999999}"#, "allowed: 1 to"),
            (r#"{"name":"a","budget_tokens":5}"#, "needs a period"),
            (r#"{"name":"a","per":"day"}"#, "needs a period"),
            (
                r#"{"name":"a","budget_tokens":5,"per":"year"}"#,
                "per: allowed",
            ),
            (r#"{"name":"a","requests_per_minute":-1}"#, "invalid value"),
            (r#"{"name":"a","rpm":1}"#, "unknown field"),
            (r#"{"team":"a"}"#, "missing field"),
        ] {
            let error = fields(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}

//! API keys that the configuration file declares: the tables `[[key]]`.

pub(crate) mod fields;
mod hash;

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;

use super::backends::first_seen;
use super::document::TomlDocument;
use super::env::Environment;
use super::key_limits::{Budget, KeyLimits};
use super::origin::Origin;
use super::problems::ProblemList;
use super::setting::{Section, Setting};
use super::settings::{self, KeyFields};
use super::tables::{self, TableFields};

pub(crate) use hash::{SecretHash, bytes_from_hex, bytes_to_hex};

/// Minimum length of a secret in bytes. Shorter ones could be guessed.
pub(crate) const MIN_SECRET: usize = 16;
/// Maximum length of a secret in bytes.
pub(crate) const MAX_SECRET: usize = 256;

/// An API key of the configuration file.
#[derive(Debug, Clone)]
pub(crate) struct ConfiguredKey {
    /// Unique.
    pub(crate) name: String,
    /// Unique.
    pub(crate) secret: SecretHash,
    pub(crate) team: Option<String>,
    /// Models that the key may use; `None` for all. A `*` at the end of a name matches any rest.
    pub(crate) models: Option<Vec<String>>,
    pub(crate) limits: KeyLimits,
    /// Time from which the key is rejected.
    pub(crate) expires: Option<Timestamp>,
    pub(crate) is_admin: bool,
}

/// The keys of the file.
#[derive(Default)]
pub(super) struct ReadKeys {
    pub(super) keys: Vec<ConfiguredKey>,
    /// File and line of each key.
    pub(super) origins: Vec<Origin>,
    /// True if the file declares a key, also an invalid one.
    pub(super) is_declared: bool,
    /// Names of the variables that contain secrets. They are not reported as unknown.
    pub(super) variables: Vec<String>,
}

/// A `[[key]]` of the file.
struct KeyDraft {
    fields: KeyFields,
    /// Origin of each field that is set, by the name of its setting.
    origins: BTreeMap<&'static str, Origin>,
    origin: Origin,
}

impl KeyDraft {
    /// Returns the file and line of a field, or of the table if the field is not set.
    fn origin<T>(&self, setting: &Setting<T>) -> &Origin {
        self.origins.get(setting.name).unwrap_or(&self.origin)
    }
}

pub(super) fn read(
    document: &TomlDocument<'_>,
    env: &Environment,
    problems: &mut ProblemList,
) -> ReadKeys {
    let mut drafts = Vec::new();
    for (table, origin) in tables::find(document, "key", problems) {
        document.check_keys("key", table, problems);
        let mut source = TableFields::new(document, table, problems);
        let fields = KeyFields::read(&mut source);
        let origins = source.into_origins();
        if !document.is_broken() {
            check_required(table, &origin, problems);
        }
        drafts.push(KeyDraft {
            fields,
            origins,
            origin,
        });
    }
    if let Some(first) = drafts.get(settings::MAX_KEYS) {
        let (count, max) = (drafts.len(), settings::MAX_KEYS);
        let what = format!("there are {count} keys; allowed: up to {max}");
        problems.add(&first.origin, "key", &what);
    }
    let mut read = ReadKeys {
        is_declared: !drafts.is_empty(),
        ..ReadKeys::default()
    };
    let (mut names, mut secrets) = (HashMap::new(), HashMap::new());
    for draft in &drafts {
        check_budget(draft, problems);
        read.variables.extend(draft.fields.key_env.clone());
        let secret = secret(draft, env, problems);
        if let Some(name) = &draft.fields.name {
            let origin = draft.origin(&settings::KEY_NAME);
            let first = *names.entry(name).or_insert(origin);
            if !std::ptr::eq(first, origin) {
                let what = format!("\"{name}\" occurs twice{}", first_seen(first));
                problems.add(origin, settings::KEY_NAME.name, &what);
            }
        }
        if let Some(secret) = secret {
            let first = *secrets.entry(secret).or_insert(&draft.origin);
            if !std::ptr::eq(first, &raw const draft.origin) {
                let what = format!("two keys have the same secret{}", first_seen(first));
                problems.add(&draft.origin, "key", &what);
            }
        }
        if let (Some(name), Some(secret)) = (&draft.fields.name, secret) {
            read.keys.push(finish(name, secret, &draft.fields));
            read.origins.push(draft.origin.clone());
        }
    }
    read
}

/// Reports a table without a name, or without exactly one of `key_env` and `sha256`.
fn check_required(table: &toml::de::DeTable<'_>, origin: &Origin, problems: &mut ProblemList) {
    let has = |key: &str| table.contains_key(key);
    if !has(settings::KEY_NAME.key()) {
        let what = settings::KEY_NAME.rejection("missing");
        problems.add(origin, settings::KEY_NAME.name, &what);
    }
    let why = match (
        has(settings::KEY_ENV.key()),
        has(settings::KEY_SHA256.key()),
    ) {
        (false, false) => "has no secret",
        (true, true) => "has two secrets",
        _ => return,
    };
    let what = format!("{why}; allowed: either key_env = \"VARIABLE\" or sha256 = \"..\"");
    problems.add(origin, "key", &what);
}

/// Reports a budget without a period, and a period without a budget.
fn check_budget(draft: &KeyDraft, problems: &mut ProblemList) {
    let is_set = |name: &str| draft.origins.contains_key(name);
    let (budget, per) = (&settings::KEY_BUDGET, &settings::KEY_PER);
    if is_set(budget.name) && draft.fields.per.is_none() {
        let what = "needs a period; allowed: per = \"day\" or per = \"month\"";
        problems.add(draft.origin(budget), budget.name, what);
    }
    if is_set(per.name) && draft.fields.budget_tokens.is_none() {
        let what = "is the period of a budget; allowed: together with budget_tokens";
        problems.add(draft.origin(per), per.name, what);
    }
}

fn secret(draft: &KeyDraft, env: &Environment, problems: &mut ProblemList) -> Option<SecretHash> {
    let Some(variable) = &draft.fields.key_env else {
        return draft.fields.sha256;
    };
    let setting = &settings::KEY_ENV;
    let secret = fields::secret_in(variable, env);
    secret
        .map_err(|why| problems.add(draft.origin(setting), setting.name, &why))
        .ok()
}

fn finish(name: &str, secret: SecretHash, fields: &KeyFields) -> ConfiguredKey {
    let budget = fields.budget_tokens.zip(fields.per);
    ConfiguredKey {
        name: name.to_owned(),
        secret,
        team: fields.team.clone(),
        models: fields.models.clone(),
        limits: KeyLimits {
            requests_per_minute: fields.rpm,
            tokens_per_minute: fields.tpm,
            concurrency: fields.concurrency,
            budget: budget.map(|(tokens, per)| Budget { tokens, per }),
        },
        expires: fields.expires,
        is_admin: fields.admin,
    }
}

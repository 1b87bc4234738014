//! API keys that the configuration file declares in its tables `[[key]]`.

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
use super::secret::Secret;
use super::setting::{Section, Setting};
use super::settings::{self, KeyFields};
use super::tables::{self, TableFields};

pub(crate) use hash::{SecretHash, bytes_from_hex, bytes_to_hex};

/// Minimum length of an API key's secret in bytes. Shorter secrets could be guessed.
pub(crate) const MIN_SECRET: usize = 16;
/// Maximum length of an API key's secret in bytes.
pub(crate) const MAX_SECRET: usize = 256;

/// The name of an API key, and the rights and limits of the clients that send its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyRights {
    /// Unique.
    pub(crate) name: String,
    pub(crate) team: Option<String>,
    /// Models that clients with the key may use; `None` for all. A `*` at the end of a name matches
    /// any rest.
    pub(crate) models: Option<Vec<String>>,
    pub(crate) limits: KeyLimits,
    /// Time from which clients with the key are rejected.
    pub(crate) expires: Option<Timestamp>,
    /// True if clients with the key may read the pages about the server, such as `/status`, from
    /// other machines.
    pub(crate) is_admin: bool,
}

#[cfg(test)]
impl KeyRights {
    /// Returns the rights of an API key that may use all models without limits.
    pub(crate) fn unlimited(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            team: None,
            models: None,
            limits: KeyLimits::default(),
            expires: None,
            is_admin: false,
        }
    }
}

/// An API key that the configuration file declares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConfiguredKey {
    pub(crate) rights: KeyRights,
    /// Unique.
    pub(crate) secret: ConfiguredSecret,
}

/// The secret of an API key, in the form in which the configuration file gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ConfiguredSecret {
    /// The secret itself, from the environment variable that `key_env` names.
    Text(Secret),
    /// SHA-256 of the secret (`sha256`), from the file itself.
    Hash(SecretHash),
}

impl ConfiguredSecret {
    fn hash(&self) -> SecretHash {
        match self {
            Self::Text(secret) => SecretHash::new(secret.expose().as_bytes()),
            Self::Hash(hash) => *hash,
        }
    }
}

/// API keys from the `[[key]]` tables of the file.
#[derive(Default)]
pub(super) struct ReadKeys {
    pub(super) keys: Vec<ConfiguredKey>,
    /// File and line of each API key, in the order of the keys.
    pub(super) origins: Vec<Origin>,
    /// True if the file declares an API key, even an invalid one: a public address is then not
    /// reported as open to every client.
    pub(super) is_declared: bool,
    /// Names of the environment variables that contain secrets. They are not reported as unknown
    /// settings.
    pub(super) variables: Vec<String>,
}

/// A `[[key]]` table as it was read, before its secret is known.
struct KeyDraft {
    fields: KeyFields,
    /// File and line of each field that the table sets, by the name of its setting.
    origins: BTreeMap<&'static str, Origin>,
    origin: Origin,
}

impl KeyDraft {
    /// Returns the file and line of a field of the `[[key]]` table, or of the table if the field is
    /// not set.
    fn origin<T>(&self, setting: &Setting<T>) -> &Origin {
        self.origins.get(setting.name).unwrap_or(&self.origin)
    }

    /// Returns the rights of the API key; `None` if its name is missing or invalid.
    fn rights(&self) -> Option<KeyRights> {
        let fields = &self.fields;
        let budget = fields.budget_tokens.zip(fields.per);
        Some(KeyRights {
            name: fields.name.clone()?,
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
        })
    }
}

/// Reads the API keys of the file, with their secrets.
pub(super) fn read(
    document: &TomlDocument<'_>,
    env: &Environment,
    problems: &mut ProblemList,
) -> ReadKeys {
    let drafts = drafts(document, problems);
    let mut read = ReadKeys {
        is_declared: !drafts.is_empty(),
        ..ReadKeys::default()
    };
    let mut secrets = HashMap::new();
    for draft in &drafts {
        read.variables.extend(draft.fields.key_env.clone());
        let secret = secret(draft, env, problems);
        if let Some(secret) = &secret {
            let first = *secrets.entry(secret.hash()).or_insert(&draft.origin);
            if !std::ptr::eq(first, &raw const draft.origin) {
                let what = format!("two keys have the same secret{}", first_seen(first));
                problems.add(&draft.origin, "key", &what);
            }
        }
        if let (Some(rights), Some(secret)) = (draft.rights(), secret) {
            read.keys.push(ConfiguredKey { rights, secret });
            read.origins.push(draft.origin.clone());
        }
    }
    read
}

/// Reads the API keys of the file without their secrets: for a command, the variables with the
/// secrets need not be set.
pub(super) fn read_rights(
    document: &TomlDocument<'_>,
    problems: &mut ProblemList,
) -> Vec<(KeyRights, Origin)> {
    let drafts = drafts(document, problems);
    let rights = drafts
        .iter()
        .filter_map(|draft| Some((draft.rights()?, draft.origin.clone())));
    rights.collect()
}

fn drafts(document: &TomlDocument<'_>, problems: &mut ProblemList) -> Vec<KeyDraft> {
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
    let mut names = HashMap::new();
    for draft in &drafts {
        check_budget(draft, problems);
        if let Some(name) = &draft.fields.name {
            let origin = draft.origin(&settings::KEY_NAME);
            let first = *names.entry(name).or_insert(origin);
            if !std::ptr::eq(first, origin) {
                let what = format!("\"{name}\" occurs twice{}", first_seen(first));
                problems.add(origin, settings::KEY_NAME.name, &what);
            }
        }
    }
    drafts
}

/// Reports a `[[key]]` table that has no name, or that does not have exactly one of `key_env` and
/// `sha256`.
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

/// Reports a key with a budget but no period, or with a period but no budget.
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

fn secret(
    draft: &KeyDraft,
    env: &Environment,
    problems: &mut ProblemList,
) -> Option<ConfiguredSecret> {
    let Some(variable) = &draft.fields.key_env else {
        return draft.fields.sha256.map(ConfiguredSecret::Hash);
    };
    let setting = &settings::KEY_ENV;
    let secret = fields::secret_in(variable, env);
    secret
        .map(ConfiguredSecret::Text)
        .map_err(|why| problems.add(draft.origin(setting), setting.name, &why))
        .ok()
}

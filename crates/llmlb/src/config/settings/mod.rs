//! Table of all settings. A setting is an entry here and a field of its section; everything else is
//! derived. A test compares the table with `docs/configuration.md`.

mod backend;
mod fleet;
mod key;
mod log;
mod server;
mod telemetry;
mod upstream;
mod usage;

pub(super) use backend::*;
pub(crate) use fleet::*;
pub(crate) use key::*;
pub(crate) use log::*;
pub(crate) use server::*;
pub(crate) use telemetry::*;
pub(crate) use upstream::*;
pub(crate) use usage::*;

use super::setting::{AnySetting, Section, key_of, section_of};

pub(super) const CONFIG: &str = "LLMLB_CONFIG";
pub(super) const BACKENDS: &str = "LLMLB_BACKENDS";
pub(super) const LOCK_DIR: &str = "LLMLB_LOCK_DIR";
pub(super) const DATA_DIR: &str = "LLMLB_DATA_DIR";
pub(super) const URL_VARIABLE: &str = "LLMLB_USAGE_URL";
pub(super) const TOKEN_VARIABLE: &str = "LLMLB_USAGE_TOKEN";

pub(super) const CONFIG_FLAG: &str = "--config";
pub(super) const BACKEND_FLAG: &str = "--backend";

pub(super) const MAX_BACKENDS: usize = 65_535;
/// Maximum number of API keys in the configuration file.
pub(crate) const MAX_KEYS: usize = 10_000;

/// Name of the section `[aliases]`. Its keys are model names that the operator chooses, so they are
/// not checked against known settings.
pub(super) const ALIASES: &str = "aliases";

pub(super) const SECTIONS: [&str; 9] = [
    "server",
    "upstream",
    "log",
    "telemetry",
    "usage",
    "fleet",
    "backend",
    "key",
    ALIASES,
];

/// Environment variables that are not settings of the configuration file, for the documentation.
pub(super) const OTHER_VARIABLES: [(&str, &str); 4] = [
    (
        "LLMLB_ADMIN_KEY",
        "API key of an admin, which `llmlb top --url` sends. The server does not read it.",
    ),
    (CONFIG, "Configuration file; the flag is `--config`."),
    (
        LOCK_DIR,
        "Lock directory, used instead of `llmlb` in the system's temporary directory.",
    ),
    (
        TOKEN_VARIABLE,
        "Bearer token of the receiver of usage records, unless `usage.token_env` names another variable.",
    ),
];

/// Returns all settings except those of backends, API keys and aliases, in the order of the
/// documentation.
pub(crate) fn all() -> impl Iterator<Item = &'static dyn AnySetting> {
    let sections = [
        ServerConfig::SETTINGS,
        UpstreamConfig::SETTINGS,
        LogConfig::SETTINGS,
        TelemetryConfig::SETTINGS,
        UsageConfig::SETTINGS,
        FleetConfig::SETTINGS,
    ];
    sections.into_iter().flatten().copied()
}

pub(super) fn of_backends() -> impl Iterator<Item = &'static dyn AnySetting> {
    BackendFields::SETTINGS.iter().copied()
}

pub(super) fn of_keys() -> impl Iterator<Item = &'static dyn AnySetting> {
    KeyFields::SETTINGS.iter().copied()
}

/// Returns the keys that the configuration file may have in a section. Any other key is reported as
/// unknown.
pub(super) fn keys_of(section: &str) -> Vec<&'static str> {
    let names = (all().chain(of_backends()).chain(of_keys())).map(AnySetting::name);
    names
        .filter(|name| section_of(name) == section)
        .map(key_of)
        .collect()
}

/// Returns the names of all environment variables that llmlb reads. Another one that begins with
/// `LLMLB_` is reported as misspelt.
pub(super) fn variables() -> impl Iterator<Item = &'static str> {
    let settings = all().chain(of_backends()).filter_map(AnySetting::variable);
    settings.chain(OTHER_VARIABLES.iter().map(|(name, _)| *name))
}

//! Parsers for the fields of one backend.

use toml::de::DeValue;

use super::super::env::Environment;
use super::super::problems::quoted;
use super::super::settings::{self, Setting};
use super::super::suggest::did_you_mean;
use super::super::values::{self, RawSetting};
use super::super::{BackendUrl, Kind, Secret};
use super::LONGEST_NAME;

pub(super) fn url(value: &DeValue<'_>) -> Result<BackendUrl, String> {
    match value.as_str() {
        Some(text) => BackendUrl::parse(text),
        None => Err(wrong_type(value, "a URL", &settings::BACKEND_URL)),
    }
}

pub(super) fn name(value: &DeValue<'_>) -> Result<String, String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
    match value.as_str() {
        Some(name) if (1..=LONGEST_NAME).contains(&name.len()) && name.bytes().all(allowed) => {
            Ok(name.to_owned())
        }
        Some(name) => Err(format!(
            "{} cannot be a name; allowed: {}",
            quoted(name),
            settings::BACKEND_NAME.allowed
        )),
        None => Err(wrong_type(value, "a name", &settings::BACKEND_NAME)),
    }
}

pub(super) fn models(value: &DeValue<'_>) -> Result<Vec<String>, String> {
    names(value, &settings::BACKEND_MODELS)
}

pub(super) fn only_models(value: &DeValue<'_>) -> Result<Vec<String>, String> {
    let allowed = settings::BACKEND_ONLY.allowed;
    let names = names(value, &settings::BACKEND_ONLY)?;
    let is_invalid =
        |name: &&String| name.trim_end_matches('*').contains('*') || name.ends_with("**");
    match names.iter().find(is_invalid) {
        Some(name) => Err(format!(
            "{} has a * that is not at its end; allowed: {allowed}",
            quoted(name)
        )),
        None => Ok(names),
    }
}

/// Parses a list of distinct names.
pub(in super::super) fn names(
    value: &DeValue<'_>,
    setting: &Setting,
) -> Result<Vec<String>, String> {
    let refused = |why: &str| format!("{why}; allowed: {}", setting.allowed);
    let Some(items) = value.as_array() else {
        return Err(wrong_type(value, "a list", setting));
    };
    let mut names: Vec<String> = Vec::new();
    for item in items {
        match item.get_ref().as_str() {
            Some(name) if name.trim().is_empty() => return Err(refused("a name is empty")),
            Some(name) if names.iter().any(|known| known == name) => {
                return Err(refused(&format!("{} occurs twice", quoted(name))));
            }
            Some(name) => names.push(name.to_owned()),
            None => {
                return Err(refused(&values::not(
                    RawSetting::Toml(item.get_ref()),
                    "a name",
                )));
            }
        }
    }
    if names.is_empty() {
        return Err(refused("the list is empty"));
    }
    Ok(names)
}

pub(super) fn kind(value: &DeValue<'_>) -> Result<Kind, String> {
    let setting = &settings::BACKEND_KIND;
    let Some(text) = value.as_str() else {
        return Err(wrong_type(value, "a name", setting));
    };
    Kind::from_name(text).ok_or_else(|| {
        let near = did_you_mean(text, Kind::ALL.iter().map(|kind| kind.name()));
        let shown = quoted(text);
        format!("{shown} is not known{near}; allowed: {}", setting.allowed)
    })
}

pub(super) fn weight(value: &DeValue<'_>) -> Result<u32, String> {
    values::number(RawSetting::Toml(value), &(1..=settings::MOST_WEIGHT))
        .map_err(|why| format!("{why}; allowed: {}", settings::BACKEND_WEIGHT.allowed))
}

pub(super) fn limit(value: &DeValue<'_>) -> Result<u32, String> {
    values::number(RawSetting::Toml(value), &(1..=settings::MOST_CONCURRENT))
        .map_err(|why| format!("{why}; allowed: {}", settings::BACKEND_LIMIT.allowed))
}

pub(super) fn reuse_after_errors(value: &DeValue<'_>) -> Result<bool, String> {
    values::boolean(RawSetting::Toml(value))
        .map_err(|why| format!("{why}; allowed: {}", settings::BACKEND_REUSE.allowed))
}

pub(super) fn key_variable(value: &DeValue<'_>) -> Result<String, String> {
    values::variable(RawSetting::Toml(value))
        .map_err(|why| format!("{why}; allowed: {}", settings::BACKEND_KEY.allowed))
}

pub(in super::super) fn wrong_type(value: &DeValue<'_>, wanted: &str, setting: &Setting) -> String {
    let why = values::not(RawSetting::Toml(value), wanted);
    format!("{why}; allowed: {}", setting.allowed)
}

/// Returns the key that an environment variable contains.
pub(super) fn key(variable: &str, env: &Environment) -> Result<Secret, String> {
    match env.text(variable) {
        Some(Ok(key)) if is_header_text(key) => Ok(Secret::new(key.to_owned())),
        Some(_) => Err(format!(
            "the value of the variable {variable} cannot be a key; allowed: visible ASCII characters"
        )),
        None => Err(values::not_set(variable, &settings::BACKEND_KEY)),
    }
}

/// True if a key can be sent in a header. Any other key would make every request fail.
fn is_header_text(key: &str) -> bool {
    key.bytes().all(|byte| byte.is_ascii_graphic())
}

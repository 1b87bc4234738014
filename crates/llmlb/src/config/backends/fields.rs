//! The fields of one backend.

use toml::de::DeValue;

use super::super::env::Environment;
use super::super::problems::quoted;
use super::super::settings::{self, Setting};
use super::super::values::{self, Raw};
use super::super::{BackendUrl, Secret};
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
    let refused = |why: &str| format!("{why}; allowed: {}", settings::BACKEND_MODELS.allowed);
    let Some(items) = value.as_array() else {
        return Err(wrong_type(value, "a list", &settings::BACKEND_MODELS));
    };
    let mut models: Vec<String> = Vec::new();
    for item in items {
        match item.get_ref().as_str() {
            Some(model) if model.trim().is_empty() => return Err(refused("a name is empty")),
            Some(model) if models.iter().any(|known| known == model) => {
                return Err(refused(&format!("{} is there twice", quoted(model))));
            }
            Some(model) => models.push(model.to_owned()),
            None => return Err(refused(&values::not(Raw::Toml(item.get_ref()), "a name"))),
        }
    }
    if models.is_empty() {
        return Err(refused("the list is empty"));
    }
    Ok(models)
}

/// What cannot be a variable's name is likely to be the key itself: it is not repeated.
pub(super) fn key_variable(value: &DeValue<'_>) -> Result<String, String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    match value.as_str() {
        Some(name)
            if !name.is_empty()
                && name.bytes().all(allowed)
                && !name.starts_with(|first: char| first.is_ascii_digit()) =>
        {
            Ok(name.to_owned())
        }
        _ => Err(format!(
            "this cannot be the name of a variable (the key itself does not belong here); \
             allowed: {}",
            settings::BACKEND_KEY.allowed
        )),
    }
}

fn wrong_type(value: &DeValue<'_>, wanted: &str, setting: &Setting) -> String {
    let why = values::not(Raw::Toml(value), wanted);
    format!("{why}; allowed: {}", setting.allowed)
}

/// The key that a variable holds.
pub(super) fn key(variable: &str, env: &Environment) -> Result<Secret, String> {
    match env.text(variable) {
        Some(Ok(key)) if is_header_text(key) => Ok(Secret::new(key.to_owned())),
        Some(_) => Err(format!(
            "the variable {variable} holds what cannot be a key; allowed: visible ASCII characters"
        )),
        // Lower case is no habit for variables, but is one for keys.
        None if variable.bytes().any(|byte| byte.is_ascii_lowercase()) => Err(format!(
            "the variable that this names is not set, or empty; allowed: {}",
            settings::BACKEND_KEY.allowed
        )),
        None => Err(format!("the variable {variable} is not set, or empty")),
    }
}

/// It goes into a header, where anything else would make every request fail.
fn is_header_text(key: &str) -> bool {
    key.bytes().all(|byte| byte.is_ascii_graphic())
}

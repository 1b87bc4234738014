//! Types of the fields of a backend and of an alias.

use serde_json::{Value, json};
use toml::de::DeValue;

use super::super::env::Environment;
use super::super::problems::quoted;
use super::super::types::{ValueType, VariableName};
use super::super::values::{self, RawSetting};
use super::super::{BackendUrl, Secret};
use super::MAX_NAME;

pub(in super::super) struct HttpUrl;

impl ValueType<BackendUrl> for HttpUrl {
    fn parse(&self, raw: RawSetting<'_>) -> Result<BackendUrl, String> {
        BackendUrl::parse(values::text(raw, "a URL")?).map_err(str::to_owned)
    }

    fn format(&self, value: &BackendUrl) -> String {
        value.to_string()
    }

    fn allowed(&self) -> String {
        "http://HOST[:PORT][/PREFIX] or https://..".to_owned()
    }

    fn schema(&self) -> Value {
        json!({ "type": "string", "pattern": "^[Hh][Tt][Tt][Pp][Ss]?://" })
    }
}

pub(in super::super) struct BackendName;

impl ValueType<String> for BackendName {
    fn parse(&self, raw: RawSetting<'_>) -> Result<String, String> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
        let name = values::text(raw, "a name")?;
        if (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(allowed) {
            Ok(name.to_owned())
        } else {
            Err(format!("{} cannot be a name", quoted(name)))
        }
    }

    fn format(&self, value: &String) -> String {
        value.clone()
    }

    fn allowed(&self) -> String {
        format!("1 to {MAX_NAME} of a-z A-Z 0-9 . _ : -")
    }

    fn schema(&self) -> Value {
        let pattern = format!("^[A-Za-z0-9._:-]{{1,{MAX_NAME}}}$");
        json!({ "type": "string", "pattern": pattern })
    }
}

/// Names of models.
pub(in super::super) struct ModelNames;

impl ValueType<Vec<String>> for ModelNames {
    fn parse(&self, raw: RawSetting<'_>) -> Result<Vec<String>, String> {
        names(raw)
    }

    fn format(&self, value: &Vec<String>) -> String {
        value.join(", ")
    }

    fn allowed(&self) -> String {
        "a list of names, at least one".to_owned()
    }

    fn schema(&self) -> Value {
        json!({ "type": "array", "items": { "type": "string", "pattern": "\\S" }, "minItems": 1, "uniqueItems": true })
    }
}

/// Patterns of model names, each of which may end in a `*`.
pub(in super::super) struct ModelPatterns;

impl ValueType<Vec<String>> for ModelPatterns {
    fn parse(&self, raw: RawSetting<'_>) -> Result<Vec<String>, String> {
        let names = names(raw)?;
        let is_invalid =
            |name: &&String| name.trim_end_matches('*').contains('*') || name.ends_with("**");
        match names.iter().find(is_invalid) {
            Some(name) => Err(format!("{} has a * that is not at its end", quoted(name))),
            None => Ok(names),
        }
    }

    fn format(&self, value: &Vec<String>) -> String {
        value.join(", ")
    }

    fn allowed(&self) -> String {
        "a list of names, at least one; a * at the end of one matches any rest".to_owned()
    }

    fn schema(&self) -> Value {
        json!({ "type": "array", "items": { "type": "string", "pattern": "^[^*]*[^*\\s][^*]*\\*?$|^\\*$" }, "minItems": 1, "uniqueItems": true })
    }
}

/// Models that an alias stands for.
pub(in super::super) struct AliasModels;

impl ValueType<Vec<String>> for AliasModels {
    fn parse(&self, raw: RawSetting<'_>) -> Result<Vec<String>, String> {
        let models = match raw {
            RawSetting::Toml(DeValue::Array(_)) => names(raw)?,
            _ => vec![values::text(raw, "the name of a model")?.to_owned()],
        };
        if models.iter().any(|model| model.trim().is_empty()) {
            return Err("a name is empty".to_owned());
        }
        Ok(models)
    }

    fn format(&self, value: &Vec<String>) -> String {
        value.join(", ")
    }

    fn allowed(&self) -> String {
        "the name of a model, or a list of names".to_owned()
    }

    fn schema(&self) -> Value {
        json!({ "anyOf": [
            { "type": "string", "pattern": "\\S" },
            ModelNames.schema(),
        ] })
    }
}

/// Parses a list of names, which must be distinct.
fn names(raw: RawSetting<'_>) -> Result<Vec<String>, String> {
    let items = match raw {
        RawSetting::Toml(DeValue::Array(items)) => items,
        other => return Err(values::not(other, "a list")),
    };
    let mut names: Vec<String> = Vec::new();
    for item in items {
        match values::text(RawSetting::Toml(item.get_ref()), "a name")? {
            name if name.trim().is_empty() => return Err("a name is empty".to_owned()),
            name if names.iter().any(|known| known == name) => {
                return Err(format!("{} occurs twice", quoted(name)));
            }
            name => names.push(name.to_owned()),
        }
    }
    if names.is_empty() {
        return Err("the list is empty".to_owned());
    }
    Ok(names)
}

/// Returns the backend's key that an environment variable contains.
pub(super) fn key(variable: &str, env: &Environment) -> Result<Secret, String> {
    match env.text(variable) {
        Some(Ok(key)) if is_header_text(key) => Ok(Secret::new(key.to_owned())),
        Some(_) => Err(format!(
            "the value of the variable {variable} cannot be a key; allowed: visible ASCII characters"
        )),
        None => Err(VariableName::not_set(variable)),
    }
}

/// True if a backend's key can be sent in a header. Any other key would make every request to the
/// backend fail.
fn is_header_text(key: &str) -> bool {
    key.bytes().all(|byte| byte.is_ascii_graphic())
}

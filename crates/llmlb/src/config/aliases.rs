//! Aliases of the configuration file: additional names by which clients can request models.

use toml::de::DeValue;

use super::document::TomlDocument;
use super::origin::Origins;
use super::problems::{ProblemList, quoted};
use super::settings::{ALIAS, ALIASES};
use super::values::{self, RawSetting};

/// An additional name for a model, or a common name for a model that backends name differently.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Alias {
    pub(crate) name: String,
    /// Names that backends have for the model. A backend that serves several of them uses the first
    /// in this list.
    pub(crate) models: Vec<String>,
}

/// Reads the aliases of the configuration file. They also apply to backends that the environment or
/// flags define.
pub(super) fn read(
    document: &TomlDocument<'_>,
    origins: &mut Origins,
    problems: &mut ProblemList,
) -> Vec<Alias> {
    let Some(value) = document.aliases() else {
        return Vec::new();
    };
    let Some(table) = value.get_ref().as_table() else {
        let why = values::not(RawSetting::Toml(value.get_ref()), "a section");
        let what = format!("{why}; allowed: [{ALIASES}]");
        problems.add(&document.origin(value.span().start), ALIASES, &what);
        return Vec::new();
    };
    let mut aliases = Vec::new();
    for (key, value) in table {
        let name: &str = key.get_ref();
        let origin = document.origin(value.span().start);
        let is_another = |model: &str| model != name && table.contains_key(model);
        match models(name, value.get_ref(), is_another) {
            Ok(models) => {
                let name = name.to_owned();
                aliases.push(Alias { name, models });
                origins.aliases.push(origin);
            }
            Err(why) => problems.add(&origin, &format!("{ALIASES}.{name}"), &why),
        }
    }
    aliases
}

/// Parses the models that one alias stands for.
fn models(
    name: &str,
    value: &DeValue<'_>,
    is_another: impl Fn(&str) -> bool,
) -> Result<Vec<String>, String> {
    let models = ALIAS.parse(RawSetting::Toml(value))?;
    if name.trim().is_empty() {
        return Err(ALIAS.rejection("a name is empty"));
    }
    if let Some(model) = models.iter().find(|model| is_another(model)) {
        return Err(ALIAS.rejection(&format!("{} is an alias itself", quoted(model))));
    }
    if models == [name] {
        return Err(ALIAS.rejection("an alias cannot stand for itself"));
    }
    Ok(models)
}

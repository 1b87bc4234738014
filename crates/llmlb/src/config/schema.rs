//! JSON Schema of the configuration file, generated from the table of settings. Editors use it to complete and
//! check `llmlb.toml`.
//!
//! The schema accepts every valid file. It does not know rules across settings, such as unique names.

use serde_json::{Map, Value, json};

use super::setting::{AnySetting, key_of, section_of};
use super::settings;

/// Returns the JSON Schema of the configuration file, for `llmlb check --schema`.
pub(crate) fn schema() -> Value {
    let mut sections = Map::new();
    for setting in settings::all() {
        let section = sections.entry(section_of(setting.name()));
        add(section.or_insert_with(table), setting);
    }
    sections.insert("backend".to_owned(), list(settings::of_backends(), "url"));
    sections.insert("key".to_owned(), list(settings::of_keys(), "name"));
    let alias: &dyn AnySetting = &settings::ALIAS;
    sections.insert(
        settings::ALIASES.to_owned(),
        json!({ "type": "object", "additionalProperties": alias.schema() }),
    );
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "llmlb.toml",
        "description": format!("Configuration of llmlb {}.", env!("CARGO_PKG_VERSION")),
        "type": "object",
        "properties": sections,
        "additionalProperties": false,
    })
}

fn table() -> Value {
    json!({ "type": "object", "properties": {}, "additionalProperties": false })
}

/// Returns the JSON Schema of a list of tables with these settings, such as `[[backend]]`.
fn list(settings: impl Iterator<Item = &'static dyn AnySetting>, required: &str) -> Value {
    let mut item = table();
    settings.for_each(|setting| add(&mut item, setting));
    item["required"] = json!([required]);
    json!({ "type": "array", "items": item })
}

fn add(table: &mut Value, setting: &dyn AnySetting) {
    table["properties"][key_of(setting.name())] = setting.schema();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schema_has_every_setting_with_its_description() {
        let schema = schema();
        let sections = &schema["properties"];
        let items = |section: &str| sections[section]["items"]["properties"].clone();
        let all = settings::all().map(|setting| {
            let section = section_of(setting.name());
            (setting, sections[section]["properties"].clone())
        });
        let backends = settings::of_backends().map(|setting| (setting, items("backend")));
        let keys = settings::of_keys().map(|setting| (setting, items("key")));
        for (setting, properties) in all.chain(backends).chain(keys) {
            let found = &properties[key_of(setting.name())];
            let description = found["description"].as_str().unwrap_or_default();
            assert!(
                description.starts_with(setting.about()),
                "{}",
                setting.name()
            );
            let is_described = ["type", "enum", "anyOf"]
                .iter()
                .any(|key| found.get(key).is_some());
            assert!(is_described, "{}: {found}", setting.name());
        }
        for section in settings::SECTIONS {
            assert!(sections[section].is_object(), "{section}");
        }
    }

    #[test]
    fn defaults_have_the_type_of_their_setting() {
        let schema = schema();
        let server = &schema["properties"]["server"]["properties"];
        assert_eq!(server["port"]["default"], 32_768);
        assert_eq!(server["allow_public"]["default"], false);
        assert_eq!(server["drain_timeout"]["default"], "30s");
        assert_eq!(server["unknown_endpoints"]["default"], "forward");
        assert_eq!(server["instance"].get("default"), None);
    }
}

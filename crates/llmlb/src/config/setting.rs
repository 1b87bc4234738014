//! Definition of a setting, and of the sections whose fields are settings.
//!
//! Everything about a setting is derived from its entry in [`settings`](super::settings): parsing,
//! the effective value in `llmlb check`, the documentation, and suggestions for misspelt names.

use serde_json::Value;

use super::Flags;
use super::types::ValueType;
use super::values::RawSetting;

/// Definition of one setting. `T` is the type of its field in the configuration.
pub(crate) struct Setting<T: 'static> {
    /// Section and key of the setting in the file, such as `server.port`.
    pub(crate) name: &'static str,
    /// Effect of a changed value in the file on a running server.
    pub(super) reload: Reload,
    pub(crate) variable: Option<&'static str>,
    pub(crate) flag: Option<Flag>,
    pub(super) default: DefaultValue<T>,
    /// Type of the setting's value, which checks range and unit.
    pub(super) value: &'static dyn ValueType<T>,
    pub(super) about: &'static str,
}

#[cfg_attr(
    not(test),
    expect(
        dead_code,
        reason = "`short` is read only by the test that compares docs/configuration.md"
    )
)]
pub(crate) struct Flag {
    pub(crate) long: &'static str,
    pub(crate) short: Option<&'static str>,
    /// Function that returns the flag's value as text, if the flag is given.
    pub(super) text: fn(&Flags) -> Option<String>,
}

/// Effect of a changed value in the file on a running server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reload {
    /// A reload of the configuration applies the new value.
    Applies,
    /// The server keeps the old value until it is started again, and logs a warning.
    AfterRestart,
}

/// Value of a setting that no layer sets.
pub(super) enum DefaultValue<T> {
    /// A constant. The documentation shows it as it is written in the file.
    Constant(fn() -> T),
    /// A value that the documentation describes in words: no value, or one determined at the start.
    Described(&'static str, fn() -> T),
}

impl<T> Setting<T> {
    pub(super) fn default_value(&self) -> T {
        match self.default {
            DefaultValue::Constant(value) | DefaultValue::Described(_, value) => value(),
        }
    }

    /// Parses the setting's value. The error ends with the allowed values.
    pub(super) fn parse(&self, raw: RawSetting<'_>) -> Result<T, String> {
        self.value.parse(raw).map_err(|why| self.rejection(&why))
    }

    /// Appends the allowed values to the reason why a value is rejected.
    pub(super) fn rejection(&self, why: &str) -> String {
        format!("{why}; allowed: {}", self.value.allowed())
    }

    pub(super) fn section(&self) -> &'static str {
        section_of(self.name)
    }

    pub(super) fn key(&self) -> &'static str {
        key_of(self.name)
    }
}

/// A setting without the type of its value, so that a list can have settings of all types.
#[cfg_attr(
    not(test),
    expect(
        dead_code,
        reason = "some methods are called only by the test that compares docs/configuration.md"
    )
)]
pub(crate) trait AnySetting: Sync {
    fn name(&self) -> &'static str;
    fn variable(&self) -> Option<&'static str>;
    fn flag(&self) -> Option<&Flag>;
    fn reload(&self) -> Reload;
    /// Returns the default value as the documentation shows it.
    fn default_text(&self) -> String;
    fn allowed(&self) -> String;
    fn about(&self) -> &'static str;
    /// Returns a JSON Schema of the setting's value, with its meaning and default.
    fn schema(&self) -> Value;
}

impl<T> AnySetting for Setting<T> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn variable(&self) -> Option<&'static str> {
        self.variable
    }

    fn flag(&self) -> Option<&Flag> {
        self.flag.as_ref()
    }

    fn reload(&self) -> Reload {
        self.reload
    }

    fn default_text(&self) -> String {
        match self.default {
            DefaultValue::Constant(value) => format!("`{}`", self.value.format(&value())),
            DefaultValue::Described(words, _) => words.to_owned(),
        }
    }

    fn allowed(&self) -> String {
        self.value.allowed()
    }

    fn about(&self) -> &'static str {
        self.about
    }

    fn schema(&self) -> Value {
        let mut schema = self.value.schema();
        let allowed = self.value.allowed();
        let about = self.about;
        schema["description"] = format!("{about} Allowed: {allowed}.").into();
        if let DefaultValue::Constant(value) = self.default {
            let text = self.value.format(&value());
            let is_literal = schema["type"] == "boolean" || schema["type"] == "integer";
            let literal = serde_json::from_str(&text).ok().filter(|_| is_literal);
            schema["default"] = literal.unwrap_or(Value::String(text));
        }
        schema
    }
}

/// Returns the section of a setting's name, `server` for `server.port`.
pub(super) fn section_of(name: &str) -> &str {
    name.split_once('.').map_or("", |(section, _)| section)
}

/// Returns the key of a setting's name, `port` for `server.port`.
pub(super) fn key_of(name: &str) -> &str {
    name.split_once('.').map_or(name, |(_, key)| key)
}

/// Source of the values of a section: the layers of the configuration, or a `[[backend]]` table of
/// the file.
pub(super) trait Source {
    /// Returns the value of a setting. For an invalid value it adds a problem to the list that is
    /// reported, and returns the default.
    fn get<T>(&mut self, setting: &'static Setting<T>) -> T;
}

/// Source of a configuration in which every setting has its default.
pub(super) struct Defaults;

impl Source for Defaults {
    fn get<T>(&mut self, setting: &'static Setting<T>) -> T {
        setting.default_value()
    }
}

/// Settings whose values in a changed file differ from those of the running server, in the order of
/// the documentation.
#[derive(Debug, Default)]
pub(crate) struct SettingChanges {
    /// Settings that the reload applies, with the old and the new value.
    pub(crate) applied: Vec<String>,
    /// Settings that keep their old value until a restart, with the old and the new value.
    pub(crate) after_restart: Vec<String>,
}

impl SettingChanges {
    /// Adds a changed setting. Returns true if a reload cannot change the setting.
    pub(super) fn add(&mut self, setting: &dyn AnySetting, from: &str, to: &str) -> bool {
        let change = if from == to {
            // Show no values if the old and the new text are the same: the values differ in a part
            // that is never shown, such as the password of a URL.
            setting.name().to_owned()
        } else {
            format!("{} {from} -> {to}", setting.name())
        };
        let needs_restart = setting.reload() == Reload::AfterRestart;
        if needs_restart {
            self.after_restart.push(change);
        } else {
            self.applied.push(change);
        }
        needs_restart
    }
}

/// A section of the configuration: a struct with a field for each of its settings.
pub(super) trait Section {
    /// Settings of the section, in the order of the documentation.
    const SETTINGS: &'static [&'static dyn AnySetting];

    fn read(source: &mut impl Source) -> Self;

    /// Returns the name and the value of each setting as text, for `llmlb check`.
    fn effective(&self) -> Vec<(&'static str, String)>;

    /// Adds the settings that differ from those of the running server to `changes`, and restores
    /// the running values of settings that a reload cannot change.
    fn merge(&mut self, running: &Self, changes: &mut SettingChanges);
}

/// Declares the struct of a section. Each field names its setting: a field without a setting does not
/// compile, and a setting without a field is dead code.
macro_rules! section {
    (
        $(#[$attribute:meta])*
        $section:ident {
            $($(#[$doc:meta])* $field:ident: $type:ty = $setting:ident,)*
        }
    ) => {
        $(#[$attribute])*
        #[derive(Debug, Clone)]
        pub(crate) struct $section {
            $($(#[$doc])* pub(crate) $field: $type,)*
        }

        impl $crate::config::setting::Section for $section {
            const SETTINGS: &'static [&'static dyn $crate::config::setting::AnySetting] =
                &[$(&$setting,)*];

            fn read(source: &mut impl $crate::config::setting::Source) -> Self {
                Self {
                    $($field: source.get(&$setting),)*
                }
            }

            fn effective(&self) -> Vec<(&'static str, String)> {
                vec![$(($setting.name, $setting.value.format(&self.$field)),)*]
            }

            fn merge(
                &mut self,
                running: &Self,
                changes: &mut $crate::config::setting::SettingChanges,
            ) {
                $(if self.$field != running.$field {
                    let text = |value: &$type| $setting.value.format(value);
                    let (from, to) = (text(&running.$field), text(&self.$field));
                    if changes.add(&$setting, &from, &to) {
                        self.$field.clone_from(&running.$field);
                    }
                })*
            }
        }
    };
}

pub(super) use section;

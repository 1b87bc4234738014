//! Value of one setting from its layers: default, file, environment, flag. Every layer is validated,
//! also an overridden one: its error would otherwise appear when the override is removed.

use super::document::TomlDocument;
use super::env::Environment;
use super::origin::{Origin, Origins};
use super::problems::ProblemList;
use super::settings::{DefaultValue, Setting};
use super::values::RawSetting;

pub(super) struct Layers<'a> {
    document: Option<&'a TomlDocument<'a>>,
    env: &'a Environment,
    problems: &'a mut ProblemList,
    origins: Origins,
}

/// Error: a layer has an invalid value, which was added to the problems.
pub(super) struct Invalid;

impl<'a> Layers<'a> {
    pub(super) fn new(
        document: Option<&'a TomlDocument<'a>>,
        env: &'a Environment,
        problems: &'a mut ProblemList,
    ) -> Self {
        Self {
            document,
            env,
            problems,
            origins: Origins::default(),
        }
    }

    pub(super) fn into_origins(self) -> Origins {
        self.origins
    }

    /// Adds a problem with a setting's value, at the origin of the value.
    pub(super) fn reject(&mut self, setting: &Setting, what: &str) {
        let origin = self.origins.origin(setting);
        self.problems.add(origin, setting.name, what);
    }

    /// Adds a problem at an origin other than the setting's own, such as the variable of a token.
    pub(super) fn reject_at(&mut self, origin: &Origin, what: &str) {
        self.problems.add(origin, "", what);
    }

    pub(super) fn origin(&self, setting: &Setting) -> &Origin {
        self.origins.origin(setting)
    }

    /// Returns the setting's value. `None`: a layer is invalid, and the problem was added.
    pub(super) fn setting<T>(
        &mut self,
        setting: &Setting,
        typed: Option<&str>,
        parse: impl Fn(RawSetting<'_>) -> Result<T, String>,
    ) -> Option<T> {
        self.resolve(setting, typed, parse).ok().flatten()
    }

    /// Returns the value of a setting without a default; `Ok(None)` if it is not set.
    pub(super) fn optional<T>(
        &mut self,
        setting: &Setting,
        parse: impl Fn(RawSetting<'_>) -> Result<T, String>,
    ) -> Result<Option<T>, Invalid> {
        self.resolve(setting, None, parse)
    }

    fn resolve<T>(
        &mut self,
        setting: &Setting,
        typed: Option<&str>,
        parse: impl Fn(RawSetting<'_>) -> Result<T, String>,
    ) -> Result<Option<T>, Invalid> {
        let found = match setting.default {
            DefaultValue::Value(text) => Some(text.to_owned()),
            DefaultValue::Computed(_, find) => Some(find()),
            DefaultValue::Words(_) => None,
        };
        let found = found.as_deref().map(RawSetting::Text);
        let mut given: Vec<_> = found
            .map(|raw| (raw, Origin::Default))
            .into_iter()
            .collect();
        self.origins.settings.insert(setting.name, Origin::Default);
        given.extend(self.document.and_then(|document| document.value(setting)));
        if let Some(name) = setting.variable {
            let origin = Origin::Variable(name.into());
            match self.env.text(name) {
                Some(Ok(text)) => given.push((RawSetting::Text(text), origin)),
                Some(Err(why)) => self.problems.add(&origin, setting.name, why),
                None => {}
            }
        }
        if let (Some(text), Some(flag)) = (typed, &setting.flag) {
            given.push((RawSetting::Text(text), Origin::Flag(flag.long)));
        }

        let mut is_valid = true;
        let mut last = None;
        for (raw, origin) in given {
            match parse(raw) {
                Ok(value) => {
                    self.origins.settings.insert(setting.name, origin);
                    last = Some(value);
                }
                Err(why) => {
                    let what = format!("{why}; allowed: {}", setting.allowed);
                    self.problems.add(&origin, setting.name, &what);
                    is_valid = false;
                }
            }
        }
        is_valid.then_some(last).ok_or(Invalid)
    }
}

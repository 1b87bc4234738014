//! Value of one setting from its layers: default, file, environment, flag. The value of every layer
//! is validated, even if another layer overrides it: the error would otherwise appear when the
//! override is removed.

use std::collections::BTreeSet;

use super::Flags;
use super::document::TomlDocument;
use super::env::Environment;
use super::origin::{Origin, Origins};
use super::problems::ProblemList;
use super::setting::{Setting, Source};
use super::values::RawSetting;

pub(super) struct Layers<'a> {
    document: Option<&'a TomlDocument<'a>>,
    env: &'a Environment,
    flags: &'a Flags,
    problems: &'a mut ProblemList,
    origins: Origins,
    /// Names of the settings that have an invalid value in any layer.
    invalid: BTreeSet<&'static str>,
}

impl<'a> Layers<'a> {
    pub(super) fn new(
        document: Option<&'a TomlDocument<'a>>,
        env: &'a Environment,
        flags: &'a Flags,
        problems: &'a mut ProblemList,
    ) -> Self {
        Self {
            document,
            env,
            flags,
            problems,
            origins: Origins::default(),
            invalid: BTreeSet::new(),
        }
    }

    pub(super) fn into_origins(self) -> Origins {
        self.origins
    }

    /// Reports a problem with the value of a setting, at the file and line, variable or flag that
    /// sets it.
    pub(super) fn reject<T>(&mut self, setting: &Setting<T>, what: &str) {
        let origin = self.origins.origin(setting.name);
        self.problems.add(origin, setting.name, what);
    }

    /// Reports a problem at another origin than that of a setting, such as at the variable of a
    /// token.
    pub(super) fn reject_at(&mut self, origin: &Origin, what: &str) {
        self.problems.add(origin, "", what);
    }

    pub(super) fn origin<T>(&self, setting: &Setting<T>) -> &Origin {
        self.origins.origin(setting.name)
    }

    /// True if no layer has an invalid value of the setting. Checks across settings must call this
    /// first: a default that replaces an invalid value would cause a second, misleading problem.
    pub(super) fn is_valid<T>(&self, setting: &Setting<T>) -> bool {
        !self.invalid.contains(setting.name)
    }
}

impl Source for Layers<'_> {
    fn get<T>(&mut self, setting: &'static Setting<T>) -> T {
        let mut given = Vec::new();
        given.extend(self.document.and_then(|document| document.value(setting)));
        if let Some(name) = setting.variable {
            let origin = Origin::Variable(name.into());
            match self.env.text(name) {
                Some(Ok(text)) => given.push((RawSetting::Text(text), origin)),
                Some(Err(why)) => self.problems.add(&origin, setting.name, why),
                None => {}
            }
        }
        let flag = setting.flag.as_ref();
        let typed = flag.and_then(|flag| Some((Origin::Flag(flag.long), (flag.text)(self.flags)?)));
        if let Some((origin, text)) = &typed {
            given.push((RawSetting::Text(text), origin.clone()));
        }

        let mut value = setting.default_value();
        self.origins.settings.insert(setting.name, Origin::Default);
        for (raw, origin) in given {
            match setting.parse(raw) {
                Ok(parsed) => {
                    self.origins.settings.insert(setting.name, origin);
                    value = parsed;
                }
                Err(why) => {
                    self.problems.add(&origin, setting.name, &why);
                    self.invalid.insert(setting.name);
                }
            }
        }
        value
    }
}

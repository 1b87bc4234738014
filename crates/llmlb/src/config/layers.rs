//! One setting from all the places it may be set: file, then environment, then flag. Every place is
//! checked, also one that another overrides: it would surprise later.

use super::document::Document;
use super::env::Environment;
use super::origin::{Origin, Origins};
use super::problems::Gathered;
use super::settings::{Default, Setting};
use super::values::Raw;

pub(super) struct Layers<'a> {
    document: Option<&'a Document<'a>>,
    env: &'a Environment,
    problems: &'a mut Gathered,
    origins: Origins,
}

/// Something is wrong with a value, and that is among the problems.
pub(super) struct Noted;

impl<'a> Layers<'a> {
    pub(super) fn new(
        document: Option<&'a Document<'a>>,
        env: &'a Environment,
        problems: &'a mut Gathered,
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

    /// A problem with a value that was read, at the place it came from.
    pub(super) fn refuse(&mut self, setting: &Setting, what: &str) {
        let origin = self.origins.of(setting);
        self.problems.add(origin, setting.name, what);
    }

    /// The same for another place.
    pub(super) fn refuse_at(&mut self, origin: &Origin, what: &str) {
        self.problems.add(origin, "", what);
    }

    pub(super) fn origin(&self, setting: &Setting) -> &Origin {
        self.origins.of(setting)
    }

    /// The setting's value, or nothing if something is wrong with it: then the problem is noted.
    pub(super) fn setting<T>(
        &mut self,
        setting: &Setting,
        typed: Option<&str>,
        parse: impl Fn(Raw<'_>) -> Result<T, String>,
    ) -> Option<T> {
        self.given(setting, typed, parse).ok().flatten()
    }

    /// The same for one that need not be set.
    pub(super) fn optional<T>(
        &mut self,
        setting: &Setting,
        parse: impl Fn(Raw<'_>) -> Result<T, String>,
    ) -> Result<Option<T>, Noted> {
        self.given(setting, None, parse)
    }

    fn given<T>(
        &mut self,
        setting: &Setting,
        typed: Option<&str>,
        parse: impl Fn(Raw<'_>) -> Result<T, String>,
    ) -> Result<Option<T>, Noted> {
        let found = match setting.default {
            Default::Value(text) => Some(text.to_owned()),
            Default::Found(_, find) => Some(find()),
            Default::Words(_) => None,
        };
        let found = found.as_deref().map(Raw::Text);
        let mut given: Vec<_> = found
            .map(|raw| (raw, Origin::Default))
            .into_iter()
            .collect();
        self.origins.settings.insert(setting.name, Origin::Default);
        given.extend(self.document.and_then(|document| document.value(setting)));
        if let Some(name) = setting.variable {
            let origin = Origin::Variable(name.into());
            match self.env.text(name) {
                Some(Ok(text)) => given.push((Raw::Text(text), origin)),
                Some(Err(why)) => self.problems.add(&origin, setting.name, why),
                None => {}
            }
        }
        if let (Some(text), Some(flag)) = (typed, &setting.flag) {
            given.push((Raw::Text(text), Origin::Flag(flag.long)));
        }

        let mut sound = true;
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
                    sound = false;
                }
            }
        }
        sound.then_some(last).ok_or(Noted)
    }
}

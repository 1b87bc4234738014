//! Tables that a configuration file may contain repeatedly: `[[backend]]` and `[[key]]`.

use std::collections::BTreeMap;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::document::TomlDocument;
use super::origin::Origin;
use super::problems::ProblemList;
use super::setting::{Setting, Source};
use super::values::RawSetting;

/// Returns all tables with this name in the file, each with its origin. A value under the name that
/// is no table is reported.
pub(super) fn find<'a>(
    document: &'a TomlDocument<'_>,
    name: &str,
    problems: &mut ProblemList,
) -> Vec<(&'a DeTable<'a>, Origin)> {
    let Some(value) = document.top_level(name) else {
        return Vec::new();
    };
    let mut reject = |value: &Spanned<DeValue<'_>>| {
        let what = format!("this is not a list of {name}s; allowed: [[{name}]]");
        problems.add(&document.origin(value.span().start), name, &what);
    };
    let Some(items) = value.get_ref().as_array() else {
        reject(value);
        return Vec::new();
    };
    let mut tables = Vec::new();
    for item in items {
        match item.get_ref().as_table() {
            Some(table) => tables.push((table, document.origin(item.span().start))),
            None => reject(item),
        }
    }
    tables
}

/// Reader of the fields of one `[[backend]]` or `[[key]]` table. Collects the origin of each field
/// and the problems with its value.
pub(super) struct TableFields<'a> {
    document: &'a TomlDocument<'a>,
    table: &'a DeTable<'a>,
    origins: BTreeMap<&'static str, Origin>,
    problems: &'a mut ProblemList,
}

impl<'a> TableFields<'a> {
    pub(super) fn new(
        document: &'a TomlDocument<'a>,
        table: &'a DeTable<'a>,
        problems: &'a mut ProblemList,
    ) -> Self {
        Self {
            document,
            table,
            origins: BTreeMap::new(),
            problems,
        }
    }

    /// Returns the file and line of each field that the table sets, by the name of the field's
    /// setting.
    pub(super) fn into_origins(self) -> BTreeMap<&'static str, Origin> {
        self.origins
    }
}

impl Source for TableFields<'_> {
    fn get<T>(&mut self, setting: &'static Setting<T>) -> T {
        let Some(value) = self.table.get(setting.key()) else {
            return setting.default_value();
        };
        let origin = self.document.origin(value.span().start);
        match setting.parse(RawSetting::Toml(value.get_ref())) {
            Ok(value) => {
                self.origins.insert(setting.name, origin);
                value
            }
            Err(why) => {
                self.problems.add(&origin, setting.name, &why);
                setting.default_value()
            }
        }
    }
}

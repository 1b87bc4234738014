//! The parsed TOML text of a configuration file: syntax errors, unknown names, and values with
//! their line numbers.

use std::collections::{BTreeMap, HashSet};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::file::ConfigFile;
use super::origin::Origin;
use super::problems::ProblemList;
use super::setting::{AnySetting, Setting, key_of};
use super::settings;
use super::suggest::did_you_mean;
use super::values::{self, RawSetting};

/// A configuration file, parsed as far as it is valid TOML.
pub(super) struct TomlDocument<'a> {
    source: &'a ConfigFile,
    root: DeTable<'a>,
    /// Syntax errors of the file, at most one per line.
    syntax: ProblemList,
    /// Lines with a syntax error. The parser guesses their values, so other problems on them are not
    /// reported.
    guessed: HashSet<usize>,
    /// Offset of each line's end. A lookup of a line number is then a binary search, which keeps a
    /// file full of errors fast.
    line_ends: Vec<usize>,
}

impl<'a> TomlDocument<'a> {
    pub(super) fn parse(source: &'a ConfigFile) -> Self {
        let (root, errors) = DeTable::parse_recoverable(&source.text);
        let mut document = Self {
            source,
            root: root.into_inner(),
            syntax: ProblemList::default(),
            guessed: HashSet::new(),
            line_ends: source.text.match_indices('\n').map(|(at, _)| at).collect(),
        };
        let errors = errors.iter().map(|error| {
            let at = error.span().map_or(0, |span| span.start);
            (at, error.message())
        });
        document.note_syntax(errors.collect());
        document
    }

    /// Returns the file and line of a byte offset, for messages.
    pub(super) fn origin(&self, at: usize) -> Origin {
        Origin::File {
            name: self.source.name.clone(),
            line: self.line(at),
            at,
        }
    }

    /// True if the file has syntax errors. A missing key must not be reported then, because it may
    /// be in a part that could not be read.
    pub(super) fn is_broken(&self) -> bool {
        !self.guessed.is_empty()
    }

    pub(super) fn value<T>(&self, setting: &Setting<T>) -> Option<(RawSetting<'_>, Origin)> {
        let section = self.root.get(setting.section())?.get_ref().as_table()?;
        let value = section.get(setting.key())?;
        Some((
            RawSetting::Toml(value.get_ref()),
            self.origin(value.span().start),
        ))
    }

    /// Returns the value of a top-level name, such as all `[[backend]]` tables.
    pub(super) fn top_level(&self, name: &str) -> Option<&Spanned<DeValue<'a>>> {
        self.root.get(name)
    }

    pub(super) fn aliases(&self) -> Option<&Spanned<DeValue<'a>>> {
        self.root.get(settings::ALIASES)
    }

    /// Reports unknown sections and keys. The keys of `[[backend]]` and `[[key]]` are checked with
    /// each table, and the keys of `[aliases]` are free.
    /// `is_checked` selects the sections whose keys are checked.
    pub(super) fn check_names(
        &self,
        is_checked: impl Fn(&str) -> bool,
        problems: &mut ProblemList,
    ) {
        for (name, value) in &self.root {
            let origin = self.origin(name.span().start);
            let section = name.get_ref().as_ref();
            let is_known = settings::SECTIONS.contains(&section);
            let is_free = ["backend", "key", settings::ALIASES].contains(&section);
            if is_free || (is_known && !is_checked(section)) {
                continue;
            }
            if !is_known {
                problems.add(&origin, section, &unknown_section(section, value.get_ref()));
            } else if let Some(table) = value.get_ref().as_table() {
                self.check_keys(section, table, problems);
            } else {
                let raw = RawSetting::Toml(value.get_ref());
                let what = format!("{}; allowed: [{section}]", values::not(raw, "a section"));
                problems.add(&origin, section, &what);
            }
        }
    }

    pub(super) fn check_keys(
        &self,
        section: &str,
        table: &DeTable<'_>,
        problems: &mut ProblemList,
    ) {
        let keys = settings::keys_of(section);
        for key in table.keys() {
            let name: &str = key.get_ref();
            if !keys.contains(&name) {
                let near = did_you_mean(name, keys.iter().copied());
                let what = format!("unknown key{near}; allowed: {}", keys.join(", "));
                let origin = self.origin(key.span().start);
                problems.add(&origin, &format!("{section}.{name}"), &what);
            }
        }
    }

    /// Returns all problems of the file. Problems on lines with a syntax error are dropped, because
    /// they refer to guessed values.
    pub(super) fn all_problems(self, problems: ProblemList) -> ProblemList {
        problems
            .without_lines(|line| self.guessed.contains(&line))
            .and(self.syntax)
    }

    /// Records one syntax error per line: further errors on a line mostly follow from the first. Errors
    /// within a multi-line list count as one, because an unclosed list swallows the rest of the file.
    fn note_syntax(&mut self, mut errors: Vec<(usize, &str)>) {
        errors.sort_by_key(|(at, _)| *at);
        let mut lists = Vec::new();
        collect_lists(&self.root, &mut lists);
        lists.retain(|(start, end)| self.line(*start) < self.line(*end));
        lists.sort_unstable();

        // Syntax errors by line, at most one per line. An error within a multi-line list is stored
        // under the first line of the list, so that each list has one error.
        let mut reported: BTreeMap<usize, (usize, &str)> = BTreeMap::new();
        let mut swallowed = HashSet::new();
        for (at, message) in errors {
            let before = lists.partition_point(|(start, _)| *start <= at);
            let list = lists[..before].last().filter(|(_, end)| at <= *end);
            let Some((start, end)) = list else {
                let line = self.line(at);
                self.guessed.insert(line);
                if self.is_header(line) && !is_duplicate(message) {
                    // Report no problems of the keys below an invalid section header, since the
                    // section of these keys is unknown.
                    let below = line + 1..=self.line_ends.len() + 1;
                    let section = below.take_while(|line| !self.is_header(*line));
                    let section: Vec<usize> = section.collect();
                    self.guessed.extend(section);
                }
                reported.entry(line).or_insert((at, message));
                continue;
            };
            let first = self.line(*start);
            if swallowed.insert(*start) {
                self.guessed.extend(first..=self.line(*end));
            }
            if is_unclosed(message) {
                reported.insert(first, (*start, message));
            } else {
                reported.entry(first).or_insert((at, message));
            }
        }
        for (at, message) in reported.into_values() {
            let origin = self.origin(at);
            self.syntax.add_syntax(&origin, self.column(at), message);
        }
    }

    fn is_header(&self, line: usize) -> bool {
        let start = match line {
            0 | 1 => 0,
            _ => self
                .line_ends
                .get(line - 2)
                .map_or(usize::MAX, |end| end + 1),
        };
        let rest = self.source.text.get(start..).unwrap_or_default();
        rest.trim_start_matches([' ', '\t']).starts_with('[')
    }

    fn line(&self, at: usize) -> usize {
        self.line_ends.partition_point(|end| *end < at) + 1
    }

    fn column(&self, at: usize) -> usize {
        let text = self.source.text.get(..at).unwrap_or_default();
        let line = text.rsplit('\n').next().unwrap_or_default();
        line.chars().count() + 1
    }
}

// Compare the message of a TOML parser's error, because the error has no kind. Tests fail if a new
// version of the parser changes its messages.

/// True if the parser rejects a key or section because its name occurs twice. The header of such a
/// section is valid, so the keys below it are still checked.
fn is_duplicate(message: &str) -> bool {
    message == "duplicate key"
}

/// True if the error is a list, table or text that is not closed. Most of the file after it is then
/// misread.
fn is_unclosed(message: &str) -> bool {
    message.starts_with("unclosed")
}

/// Returns the message for an unknown section or top-level key. For `port` outside of a section it
/// suggests `server.port`.
fn unknown_section(name: &str, value: &DeValue<'_>) -> String {
    let meant = (settings::all().map(AnySetting::name)).find(|known| key_of(known) == name);
    let near = match meant {
        Some(setting) => format!(" (did you mean {setting}?)"),
        None => did_you_mean(name, settings::SECTIONS.into_iter()),
    };
    let kind = if value.is_table() || value.is_array() {
        "section"
    } else {
        "key"
    };
    format!(
        "unknown {kind}{near}; \
         allowed: [server], [upstream], [log], [telemetry], [usage], [fleet], [[backend]], [[key]], [aliases]"
    )
}

/// Collects the start and end of the outermost lists, so that all syntax errors within one list are
/// reported as one. `[[backend]]` tables do not count as lists, but their values may be lists.
fn collect_lists(table: &DeTable<'_>, lists: &mut Vec<(usize, usize)>) {
    for value in table.values() {
        let span = value.span();
        match value.get_ref() {
            DeValue::Array(items) => {
                let in_brackets = items.iter().all(|item| {
                    let item = item.span();
                    span.start < item.start && item.end <= span.end
                });
                if in_brackets {
                    lists.push((span.start, span.end));
                } else {
                    for table in items.iter().filter_map(|item| item.get_ref().as_table()) {
                        collect_lists(table, lists);
                    }
                }
            }
            DeValue::Table(table) => collect_lists(table, lists),
            _ => {}
        }
    }
}

//! The file as TOML: what is not TOML, names that mean nothing, and the values.

use std::collections::{BTreeMap, HashSet};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::file::Source;
use super::origin::Origin;
use super::problems::Gathered;
use super::settings::{self, Setting};
use super::suggest::did_you_mean;
use super::values::{self, Raw};

pub(super) struct Document<'a> {
    source: &'a Source,
    root: DeTable<'a>,
    /// What is not TOML.
    syntax: Gathered,
    /// Lines that were guessed at, because something on them is not TOML.
    guessed: HashSet<usize>,
    /// Where each line ends, so that finding a line is cheap in a file of nothing but errors.
    line_ends: Vec<usize>,
}

impl<'a> Document<'a> {
    pub(super) fn parse(source: &'a Source) -> Self {
        let (root, errors) = DeTable::parse_recoverable(&source.text);
        let mut document = Self {
            source,
            root: root.into_inner(),
            syntax: Gathered::default(),
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

    /// Where a byte of the file is.
    pub(super) fn origin(&self, at: usize) -> Origin {
        Origin::File {
            name: self.source.name.clone(),
            line: self.line(at),
            at,
        }
    }

    /// Whether something is not TOML, so that what is missing may just not have been understood.
    pub(super) fn is_broken(&self) -> bool {
        !self.guessed.is_empty()
    }

    pub(super) fn value(&self, setting: &Setting) -> Option<(Raw<'_>, Origin)> {
        let section = self.root.get(setting.section())?.get_ref().as_table()?;
        let value = section.get(setting.key())?;
        Some((Raw::Toml(value.get_ref()), self.origin(value.span().start)))
    }

    pub(super) fn backends(&self) -> Option<&Spanned<DeValue<'a>>> {
        self.root.get("backend")
    }

    pub(super) fn aliases(&self) -> Option<&Spanned<DeValue<'a>>> {
        self.root.get(settings::ALIASES)
    }

    /// Sections and keys that do not exist. (A backend's keys are checked with the backend, and
    /// those of the aliases are anybody's.)
    pub(super) fn check_names(&self, problems: &mut Gathered) {
        for (name, value) in &self.root {
            let origin = self.origin(name.span().start);
            let section = name.get_ref().as_ref();
            if section == "backend" || section == settings::ALIASES {
                continue;
            }
            if !settings::SECTIONS.contains(&section) {
                problems.add(&origin, section, &unknown_section(section, value.get_ref()));
            } else if let Some(table) = value.get_ref().as_table() {
                self.check_keys(section, table, problems);
            } else {
                let raw = Raw::Toml(value.get_ref());
                let what = format!("{}; allowed: [{section}]", values::not(raw, "a section"));
                problems.add(&origin, section, &what);
            }
        }
    }

    pub(super) fn check_keys(&self, section: &str, table: &DeTable<'_>, problems: &mut Gathered) {
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

    /// All problems of the file. What was said about a guess would only confuse.
    pub(super) fn settle(self, problems: Gathered) -> Gathered {
        problems
            .without_lines(|line| self.guessed.contains(&line))
            .and(self.syntax)
    }

    /// One problem for each line: what follows on the same line mostly comes from the first. One
    /// for each list, too, since one that is not closed swallows the rest of the file.
    fn note_syntax(&mut self, mut errors: Vec<(usize, &str)>) {
        errors.sort_by_key(|(at, _)| *at);
        let mut lists = Vec::new();
        collect_lists(&self.root, &mut lists);
        lists.retain(|(start, end)| self.line(*start) < self.line(*end));
        lists.sort_unstable();

        // By the line it is told for: the list's first line, or the error's own.
        let mut told: BTreeMap<usize, (usize, &str)> = BTreeMap::new();
        let mut swallowed = HashSet::new();
        for (at, message) in errors {
            let before = lists.partition_point(|(start, _)| *start <= at);
            let list = lists[..before].last().filter(|(_, end)| at <= *end);
            let Some((start, end)) = list else {
                let line = self.line(at);
                self.guessed.insert(line);
                if self.is_header(line) && message != "duplicate key" {
                    // Without its header, nobody knows where the section's keys belong.
                    let below = line + 1..=self.line_ends.len() + 1;
                    let section = below.take_while(|line| !self.is_header(*line));
                    let section: Vec<usize> = section.collect();
                    self.guessed.extend(section);
                }
                told.entry(line).or_insert((at, message));
                continue;
            };
            let first = self.line(*start);
            if swallowed.insert(*start) {
                self.guessed.extend(first..=self.line(*end));
            }
            if message.starts_with("unclosed") {
                told.insert(first, (*start, message));
            } else {
                told.entry(first).or_insert((at, message));
            }
        }
        for (at, message) in told.into_values() {
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

/// `port` outside of any section most likely is `server.port`.
fn unknown_section(name: &str, value: &DeValue<'_>) -> String {
    let settings = settings::ALL;
    let meant = settings.iter().find(|setting| setting.key() == name);
    let near = match meant {
        Some(setting) => format!(" (did you mean {}?)", setting.name),
        None => did_you_mean(name, settings::SECTIONS.into_iter()),
    };
    let kind = if value.is_table() || value.is_array() {
        "section"
    } else {
        "key"
    };
    format!(
        "unknown {kind}{near}; \
         allowed: [server], [upstream], [log], [usage], [[backend]], [aliases]"
    )
}

/// Where the outermost lists begin and end. Those of `[[backend]]` are not lists to whoever wrote
/// them, but what is in them may be.
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

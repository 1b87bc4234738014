//! The list of backends: from the flags, else the environment, else the file. All three lists are
//! validated; one list replaces another as a whole.

pub(super) mod fields;

use std::collections::{HashMap, HashSet};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::document::TomlDocument;
use super::env::Environment;
use super::origin::Origin;
use super::problems::ProblemList;
use super::settings::{self, Setting};
use super::{Backend, BackendUrl, Flags, Kind};

const LONGEST_NAME: usize = 64;

/// The backends that are used, with their origins.
#[derive(Default)]
pub(super) struct ReadBackends {
    pub(super) backends: Vec<Backend>,
    pub(super) origins: Vec<Origin>,
    /// Names of the variables in `api_key_env`, also of backends that are not used.
    pub(super) key_variables: Vec<String>,
}

/// A backend as written in one layer, before defaults are applied.
struct BackendDraft {
    url: Option<(BackendUrl, Origin)>,
    name: Option<(String, Origin)>,
    models: Option<Vec<String>>,
    key_variable: Option<(String, Origin)>,
    kind: Option<Kind>,
    weight: Option<u32>,
    limit: Option<u32>,
    only_models: Option<(Vec<String>, Origin)>,
    reuse_after_errors: Option<bool>,
    origin: Origin,
}

impl BackendDraft {
    fn new(origin: Origin) -> Self {
        Self {
            url: None,
            name: None,
            models: None,
            key_variable: None,
            kind: None,
            weight: None,
            limit: None,
            only_models: None,
            reuse_after_errors: None,
            origin,
        }
    }
}

pub(super) fn read(
    flags: &Flags,
    env: &Environment,
    document: Option<&TomlDocument<'_>>,
    problems: &mut ProblemList,
) -> ReadBackends {
    let from_file = document.map_or_else(Vec::new, |document| in_file(document, problems));
    let from_env = in_variable(env, problems);
    let from_flags = flags.backends.iter().map(String::as_str).collect();
    let from_flags = in_text(from_flags, &Origin::Flag(settings::BACKEND_FLAG), problems);

    let key_variables = from_file
        .iter()
        .filter_map(|draft| draft.key_variable.as_ref());
    let key_variables = key_variables.map(|(name, _)| name.clone()).collect();
    for layer in [&from_file, &from_env, &from_flags] {
        check_unique(layer, problems);
        check_served(layer, problems);
    }
    let used = match () {
        () if flags.demo => Vec::new(),
        () if !flags.backends.is_empty() => from_flags,
        () if env.text(settings::BACKENDS).is_some() => from_env,
        () => from_file,
    };
    if let Some(first) = used.get(settings::MOST_BACKENDS) {
        let what = format!(
            "there are {} backends; allowed: up to {}",
            used.len(),
            settings::MOST_BACKENDS
        );
        problems.add(&first.origin, "backend", &what);
    }
    let (backends, origins) = finish(used, env, problems);
    ReadBackends {
        backends,
        origins,
        key_variables,
    }
}

fn in_variable(env: &Environment, problems: &mut ProblemList) -> Vec<BackendDraft> {
    let origin = Origin::Variable(settings::BACKENDS.into());
    match env.text(settings::BACKENDS) {
        Some(Ok(text)) => {
            let urls = text
                .split([',', ' ', '\t', '\n'])
                .filter(|url| !url.is_empty());
            let urls: Vec<&str> = urls.collect();
            if urls.is_empty() {
                let what = format!(
                    "there is no URL; allowed: {}",
                    settings::BACKEND_URL.allowed
                );
                problems.add(&origin, "", &what);
            }
            in_text(urls, &origin, problems)
        }
        Some(Err(why)) => {
            problems.add(&origin, "", why);
            Vec::new()
        }
        None => Vec::new(),
    }
}

/// Parses URLs. A message names an invalid URL by its number, because it may contain a password.
fn in_text(urls: Vec<&str>, origin: &Origin, problems: &mut ProblemList) -> Vec<BackendDraft> {
    let many = urls.len() > 1;
    let mut drafts = Vec::new();
    for (index, text) in urls.into_iter().enumerate() {
        match BackendUrl::parse(text) {
            Ok(url) => drafts.push(BackendDraft {
                url: Some((url, origin.clone())),
                ..BackendDraft::new(origin.clone())
            }),
            Err(why) if many => problems.add(origin, "", &format!("URL {}: {why}", index + 1)),
            Err(why) => problems.add(origin, "", &why),
        }
    }
    drafts
}

fn in_file(document: &TomlDocument<'_>, problems: &mut ProblemList) -> Vec<BackendDraft> {
    let Some(value) = document.backends() else {
        return Vec::new();
    };
    let not_a_list = |value: &Spanned<DeValue<'_>>, problems: &mut ProblemList| {
        let what = "this is not a list of backends; allowed: [[backend]]";
        problems.add(&document.origin(value.span().start), "backend", what);
    };
    let Some(items) = value.get_ref().as_array() else {
        not_a_list(value, problems);
        return Vec::new();
    };
    let mut drafts = Vec::new();
    for item in items {
        match item.get_ref().as_table() {
            Some(table) => {
                let origin = document.origin(item.span().start);
                drafts.push(one_in_file(document, table, origin, problems));
            }
            None => not_a_list(item, problems),
        }
    }
    drafts
}

fn one_in_file(
    document: &TomlDocument<'_>,
    table: &DeTable<'_>,
    origin: Origin,
    problems: &mut ProblemList,
) -> BackendDraft {
    document.check_keys("backend", table, problems);
    if !table.contains_key(settings::BACKEND_URL.key()) && !document.is_broken() {
        let what = format!("missing; allowed: {}", settings::BACKEND_URL.allowed);
        problems.add(&origin, settings::BACKEND_URL.name, &what);
    }
    let mut fields = BackendTable {
        document,
        table,
        problems,
    };
    BackendDraft {
        url: fields.get(&settings::BACKEND_URL, fields::url),
        name: fields.get(&settings::BACKEND_NAME, fields::name),
        models: fields.value(&settings::BACKEND_MODELS, fields::models),
        key_variable: fields.get(&settings::BACKEND_KEY, fields::key_variable),
        kind: fields.value(&settings::BACKEND_KIND, fields::kind),
        weight: fields.value(&settings::BACKEND_WEIGHT, fields::weight),
        limit: fields.value(&settings::BACKEND_LIMIT, fields::limit),
        only_models: fields.get(&settings::BACKEND_ONLY, fields::only_models),
        reuse_after_errors: fields.value(&settings::BACKEND_REUSE, fields::reuse_after_errors),
        origin,
    }
}

/// Reader of one `[[backend]]` table.
struct BackendTable<'a> {
    document: &'a TomlDocument<'a>,
    table: &'a DeTable<'a>,
    problems: &'a mut ProblemList,
}

impl BackendTable<'_> {
    /// Returns a field and its origin, if the field is present and valid.
    fn get<T>(
        &mut self,
        setting: &Setting,
        parse: fn(&DeValue<'_>) -> Result<T, String>,
    ) -> Option<(T, Origin)> {
        let value = self.table.get(setting.key())?;
        let origin = self.document.origin(value.span().start);
        match parse(value.get_ref()) {
            Ok(value) => Some((value, origin)),
            Err(why) => {
                self.problems.add(&origin, setting.name, &why);
                None
            }
        }
    }

    fn value<T>(
        &mut self,
        setting: &Setting,
        parse: fn(&DeValue<'_>) -> Result<T, String>,
    ) -> Option<T> {
        self.get(setting, parse).map(|(value, _)| value)
    }
}

fn check_unique(drafts: &[BackendDraft], problems: &mut ProblemList) {
    let mut urls = HashMap::new();
    let mut names = HashMap::new();
    for draft in drafts {
        if let Some((url, origin)) = &draft.url {
            let first = *urls.entry(url.to_string()).or_insert(origin);
            if !std::ptr::eq(first, origin) {
                let what = format!("{url} occurs twice{}", first_seen(first));
                problems.add(origin, settings::BACKEND_URL.name, &what);
            }
        }
        if let Some((name, origin)) = &draft.name {
            let first = *names.entry(name).or_insert(origin);
            if !std::ptr::eq(first, origin) {
                let what = format!("\"{name}\" occurs twice{}", first_seen(first));
                problems.add(origin, settings::BACKEND_NAME.name, &what);
            }
        }
    }
}

/// Reports a backend whose `only_models` excludes all of its `models`: it would silently never get
/// a request.
fn check_served(drafts: &[BackendDraft], problems: &mut ProblemList) {
    for draft in drafts {
        let (Some(models), Some((only, origin))) = (&draft.models, &draft.only_models) else {
            continue;
        };
        if !models.iter().any(|model| is_among(only, model)) {
            let setting = settings::BACKEND_ONLY;
            let what = format!(
                "none of backend.models is in the list, so the backend would serve no model; allowed: {}",
                setting.allowed
            );
            problems.add(origin, setting.name, &what);
        }
    }
}

/// True if a list of names and patterns contains this name. A `*` at the end of a pattern matches
/// any rest.
pub(crate) fn is_among(names: &[String], name: &str) -> bool {
    names.iter().any(|one| match one.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == one,
    })
}

fn first_seen(origin: &Origin) -> String {
    match origin {
        Origin::File { line, .. } => format!(" (first on line {line}); allowed: once"),
        _ => "; allowed: once".into(),
    }
}

fn finish(
    drafts: Vec<BackendDraft>,
    env: &Environment,
    problems: &mut ProblemList,
) -> (Vec<Backend>, Vec<Origin>) {
    let given = drafts.iter().filter_map(|draft| draft.name.as_ref());
    let mut names = BackendNames::new(given.map(|(name, _)| name.clone()));
    let mut finished = Vec::new();
    for (place, draft) in drafts.into_iter().enumerate() {
        let api_key = draft.key_variable.and_then(|(variable, origin)| {
            let key = fields::key(&variable, env);
            key.map_err(|why| problems.add(&origin, settings::BACKEND_KEY.name, &why))
                .ok()
        });
        // A missing URL was already reported.
        let Some((url, _)) = draft.url else { continue };
        let (name, label) = match draft.name {
            Some((name, _)) => (name.clone(), name),
            None => (names.default_for(&url), names.label(place + 1)),
        };
        let kind = draft
            .kind
            .or_else(|| Kind::from_host(url.authority().host()));
        let backend = Backend {
            name,
            label,
            url,
            models: draft.models,
            api_key,
            kind,
            weight: draft.weight.unwrap_or(1),
            max_concurrent: draft.limit,
            only_models: draft.only_models.map(|(names, _)| names),
            reuse_after_errors: draft.reuse_after_errors.unwrap_or(false),
        };
        finished.push((backend, draft.origin));
    }
    finished.into_iter().unzip()
}

/// Assignment of unique names to backends.
struct BackendNames {
    taken: HashSet<String>,
    /// Last number appended to each default name.
    numbers: HashMap<String, u32>,
}

impl BackendNames {
    fn new(given: impl Iterator<Item = String>) -> Self {
        Self {
            taken: given.collect(),
            numbers: HashMap::new(),
        }
    }

    /// Returns the label of the n-th backend, `backend-1` for the first. A number is appended if the
    /// configuration uses that name for another backend.
    fn label(&mut self, place: usize) -> String {
        let label = format!("backend-{place}");
        let others = (2..).map(|number| format!("{label}-{number}"));
        let mut labels = std::iter::once(label.clone()).chain(others);
        let free = labels.find(|label| self.taken.insert(label.clone()));
        free.unwrap_or(label)
    }

    /// Returns the default name, host and port. A number is appended if the name is taken, for
    /// example by another path prefix of the same host.
    fn default_for(&mut self, url: &BackendUrl) -> String {
        let name = url.authority().as_str().replace(['[', ']'], "");
        // Truncate a very long host, so that a number still fits.
        let name: String = name.chars().take(LONGEST_NAME - 6).collect();
        let number = self.numbers.entry(name.clone()).or_insert(1);
        let mut unique = name.clone();
        while !self.taken.insert(unique.clone()) {
            *number += 1;
            unique = format!("{name}-{number}");
        }
        unique
    }
}

//! The list of backends: from the flags, else the environment, else the file. All three lists are
//! validated; one list replaces another as a whole.

pub(super) mod fields;

use std::collections::{BTreeMap, HashMap, HashSet};

use toml::de::DeTable;

use super::document::TomlDocument;
use super::env::Environment;
use super::origin::Origin;
use super::problems::ProblemList;
use super::setting::{Defaults, Section, Setting};
use super::settings::{self, BackendFields};
use super::tables::{self, TableFields};
use super::values::RawSetting;
use super::{Backend, BackendUrl, Flags, Kind};

/// Maximum length of a backend's name.
const MAX_NAME: usize = 64;

/// Backends that the server uses, with their origins: the file and line, variable or flag that
/// defines each.
#[derive(Default)]
pub(super) struct ReadBackends {
    pub(super) backends: Vec<Backend>,
    pub(super) origins: Vec<Origin>,
    /// Names of the environment variables that `api_key_env` names, also for backends that another
    /// list replaces. These variables are not reported as unknown, even if they begin with
    /// `LLMLB_`.
    pub(super) key_variables: Vec<String>,
}

/// A backend as defined in one layer of the configuration: the file, the environment or the flags.
struct BackendDraft {
    fields: BackendFields,
    /// File and line of each field that the file sets, by the name of its setting. Messages about a
    /// field begin with its origin.
    origins: BTreeMap<&'static str, Origin>,
    /// File and line, variable or flag that defines the backend. Messages about fields that are not
    /// set begin with this origin.
    origin: Origin,
}

impl BackendDraft {
    /// Returns the file and line, variable or flag that sets a field, for messages about the field.
    fn origin<T>(&self, setting: &Setting<T>) -> &Origin {
        self.origins.get(setting.name).unwrap_or(&self.origin)
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
        .filter_map(|draft| draft.fields.api_key_env.clone())
        .collect();
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
    if let Some(first) = used.get(settings::MAX_BACKENDS) {
        let what = format!(
            "there are {} backends; allowed: up to {}",
            used.len(),
            settings::MAX_BACKENDS
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
                let what = settings::BACKEND_URL.rejection("there is no URL");
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

/// Parses backends' URLs from a flag or variable. A message names an invalid URL by its position,
/// because the URL may contain a password.
fn in_text(urls: Vec<&str>, origin: &Origin, problems: &mut ProblemList) -> Vec<BackendDraft> {
    let many = urls.len() > 1;
    let mut drafts = Vec::new();
    for (index, text) in urls.into_iter().enumerate() {
        match settings::BACKEND_URL.parse(RawSetting::Text(text)) {
            Ok(url) => drafts.push(BackendDraft {
                fields: BackendFields {
                    url,
                    ..BackendFields::read(&mut Defaults)
                },
                origins: BTreeMap::new(),
                origin: origin.clone(),
            }),
            Err(why) if many => problems.add(origin, "", &format!("URL {}: {why}", index + 1)),
            Err(why) => problems.add(origin, "", &why),
        }
    }
    drafts
}

fn in_file(document: &TomlDocument<'_>, problems: &mut ProblemList) -> Vec<BackendDraft> {
    let mut drafts = Vec::new();
    for (table, origin) in tables::find(document, "backend", problems) {
        drafts.push(one_in_file(document, table, origin, problems));
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
        let what = settings::BACKEND_URL.rejection("missing");
        problems.add(&origin, settings::BACKEND_URL.name, &what);
    }
    let mut source = TableFields::new(document, table, problems);
    BackendDraft {
        fields: BackendFields::read(&mut source),
        origins: source.into_origins(),
        origin,
    }
}

fn check_unique(drafts: &[BackendDraft], problems: &mut ProblemList) {
    let mut urls = HashMap::new();
    let mut names = HashMap::new();
    for draft in drafts {
        if let Some(url) = &draft.fields.url {
            let origin = draft.origin(&settings::BACKEND_URL);
            let first = *urls.entry(url.to_string()).or_insert(origin);
            if !std::ptr::eq(first, origin) {
                let what = format!("{url} occurs twice{}", first_seen(first));
                problems.add(origin, settings::BACKEND_URL.name, &what);
            }
        }
        if let Some(name) = &draft.fields.name {
            let origin = draft.origin(&settings::BACKEND_NAME);
            let first = *names.entry(name).or_insert(origin);
            if !std::ptr::eq(first, origin) {
                let what = format!("\"{name}\" occurs twice{}", first_seen(first));
                problems.add(origin, settings::BACKEND_NAME.name, &what);
            }
        }
    }
}

/// Reports a backend whose `only_models` excludes all of its `models`: the backend would silently
/// never get a request.
fn check_served(drafts: &[BackendDraft], problems: &mut ProblemList) {
    let setting = &settings::BACKEND_ONLY;
    for draft in drafts {
        let (Some(models), Some(only)) = (&draft.fields.models, &draft.fields.only_models) else {
            continue;
        };
        if !models.iter().any(|model| is_among(only, model)) {
            let what = setting.rejection(
                "no name in backend.models matches only_models, so the backend would serve no model",
            );
            problems.add(draft.origin(setting), setting.name, &what);
        }
    }
}

/// True if a list of names and patterns contains this model name. A `*` at the end of a pattern
/// matches any rest.
pub(crate) fn is_among(names: &[String], name: &str) -> bool {
    names.iter().any(|one| match one.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == one,
    })
}

pub(super) fn first_seen(origin: &Origin) -> String {
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
    let given = drafts.iter().filter_map(|draft| draft.fields.name.clone());
    let mut names = BackendNames::new(given);
    let mut finished = Vec::new();
    for (index, draft) in drafts.into_iter().enumerate() {
        let api_key = draft.fields.api_key_env.as_ref().and_then(|variable| {
            let setting = &settings::BACKEND_KEY;
            let key = fields::key(variable, env);
            key.map_err(|why| problems.add(draft.origin(setting), setting.name, &why))
                .ok()
        });
        let BackendDraft { fields, origin, .. } = draft;
        // Skip a backend without a URL: the missing URL was already reported.
        let Some(url) = fields.url else { continue };
        let (name, label) = match fields.name {
            Some(name) => (name.clone(), name),
            None => (names.default_for(&url), names.label(index + 1)),
        };
        let kind = (fields.kind).or_else(|| Kind::from_host(url.authority().host()));
        let backend = Backend {
            name,
            label,
            url,
            models: fields.models,
            api_key,
            kind,
            weight: fields.weight,
            max_concurrent: fields.max_concurrent,
            only_models: fields.only_models,
            reuse_after_errors: fields.reuse_after_errors,
            websocket: fields.websocket,
        };
        finished.push((backend, origin));
    }
    finished.into_iter().unzip()
}

/// Names that are in use, to give each backend a unique name.
struct BackendNames {
    taken: HashSet<String>,
    /// Last number that was appended to each default name, so that the search for a free number
    /// continues there.
    numbers: HashMap<String, u32>,
}

impl BackendNames {
    fn new(given: impl Iterator<Item = String>) -> Self {
        Self {
            taken: given.collect(),
            numbers: HashMap::new(),
        }
    }

    /// Returns the label of the n-th backend, such as `backend-1` for the first, by which clients
    /// know the backend. A number is appended if the configuration uses that name for another
    /// backend.
    fn label(&mut self, place: usize) -> String {
        let label = format!("backend-{place}");
        let others = (2..).map(|number| format!("{label}-{number}"));
        let mut labels = std::iter::once(label.clone()).chain(others);
        let free = labels.find(|label| self.taken.insert(label.clone()));
        free.unwrap_or(label)
    }

    /// Returns the default name of a backend: `host:port` of its URL. If another backend has that
    /// name, for example with another path prefix on the same host, a number is appended.
    fn default_for(&mut self, url: &BackendUrl) -> String {
        let name = url.authority().as_str().replace(['[', ']'], "");
        // Truncate a very long host, so that the name with an appended number has at most
        // `MAX_NAME` characters.
        let name: String = name.chars().take(MAX_NAME - 6).collect();
        let number = self.numbers.entry(name.clone()).or_insert(1);
        let mut unique = name.clone();
        while !self.taken.insert(unique.clone()) {
            *number += 1;
            unique = format!("{name}-{number}");
        }
        unique
    }
}

//! What is done with the usage of requests.

use std::time::Duration;

use spool::{Http, HttpError, HttpOptions, Keep, Token};

use super::env::Environment;
use super::layers::Layers;
use super::origin::Origin;
use super::problems::{Gathered, Problems};
use super::secret::Secret;
use super::settings::{self, Setting};
use super::values::{self, Raw};

/// How usage is recorded, and where it goes.
#[derive(Debug, Clone)]
pub(crate) struct Usage {
    pub(crate) enabled: bool,
    /// Without one, records are kept in `archive/`.
    pub(crate) url: Option<Receiver>,
    /// The variable that the token is taken from.
    pub(crate) token_env: String,
    pub(crate) token: Option<Token>,
    pub(crate) every: Duration,
    pub(crate) format: Format,
    pub(crate) on_failure: OnFailure,
    pub(crate) allow_http: bool,
    /// Bounds for `archive/`.
    pub(crate) archive: Keep,
    /// Bounds for `failed/`.
    pub(crate) failed: Keep,
}

/// Where records are sent to. There may be a key in the URL: it is not shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Receiver {
    url: Secret,
    shown: String,
}

/// What is posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Json,
    CloudEvents,
}

/// What is done with requests while their usage cannot be recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnFailure {
    /// They are served, and the loss is counted.
    Serve,
    Refuse,
}

impl Receiver {
    /// For the request, and nothing else.
    pub(crate) fn url(&self) -> &str {
        self.url.expose()
    }

    /// Without what may be a secret.
    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }

    /// Whether it may be on another machine is looked at later.
    fn parse(raw: Raw<'_>) -> Result<Self, String> {
        let url = values::text(raw, "a URL")?;
        let http = validate_url(url, true).map_err(|error| error.to_string())?;
        Ok(Self {
            url: Secret::new(url.to_owned()),
            shown: spool::Sink::name(&http).to_owned(),
        })
    }
}

impl Format {
    const ALL: [(&'static str, Self); 2] =
        [("json", Self::Json), ("cloudevents", Self::CloudEvents)];

    pub(crate) fn name(self) -> &'static str {
        name_of(self, &Self::ALL)
    }

    /// As a flag names it.
    pub(crate) fn named(text: &str) -> Result<Self, String> {
        values::word(Raw::Text(text), &Self::ALL)
            .map_err(|why| format!("{why}; allowed: {}", settings::USAGE_FORMAT.allowed))
    }
}

impl OnFailure {
    const ALL: [(&'static str, Self); 2] = [("serve", Self::Serve), ("refuse", Self::Refuse)];

    pub(crate) fn name(self) -> &'static str {
        name_of(self, &Self::ALL)
    }
}

fn name_of<T: Copy + PartialEq>(value: T, names: &[(&'static str, T)]) -> &'static str {
    let found = names.iter().find(|(_, meaning)| *meaning == value);
    found.map_or("", |(name, _)| name)
}

/// Every setting is read before the first missing one ends this: all problems at once.
pub(super) fn read(layers: &mut Layers<'_>, env: &Environment) -> Option<Usage> {
    let enabled = layers.setting(&settings::USAGE_ENABLED, None, values::boolean);
    let url = layers.optional(&settings::USAGE_URL, Receiver::parse);
    let token_env = layers.setting(&settings::USAGE_TOKEN_ENV, None, values::variable);
    let every = layers.setting(&settings::USAGE_EVERY, None, values::every);
    let format = layers.setting(&settings::USAGE_FORMAT, None, |raw| {
        values::word(raw, &Format::ALL)
    });
    let on_failure = layers.setting(&settings::USAGE_ON_FAILURE, None, |raw| {
        values::word(raw, &OnFailure::ALL)
    });
    let allow_http = layers.setting(&settings::USAGE_ALLOW_HTTP, None, values::boolean);
    let (archive, failed) = bounds(layers);
    let is_used = enabled != Some(false) && matches!(url, Ok(Some(_)));
    if let (Ok(Some(url)), Some(false)) = (&url, allow_http) {
        check_reach(url, layers);
    }
    let token = match &token_env {
        // What looks like a token must not be shown as the name of one, whether it is used or not.
        Some(variable) if is_used || values::may_be_secret(variable) => {
            token(variable, layers, env)
        }
        _ => None,
    };
    Some(Usage {
        enabled: enabled?,
        url: url.ok()?,
        token_env: token_env?,
        token,
        every: every?,
        format: format?,
        on_failure: on_failure?,
        allow_http: allow_http?,
        archive: archive?,
        failed: failed?,
    })
}

/// Bounds for `archive/` and `failed/`.
fn bounds(layers: &mut Layers<'_>) -> (Option<Keep>, Option<Keep>) {
    let archive = keep(
        layers,
        &settings::USAGE_ARCHIVE_MAX_AGE,
        &settings::USAGE_ARCHIVE_MAX_SIZE,
    );
    let failed = keep(
        layers,
        &settings::USAGE_FAILED_MAX_AGE,
        &settings::USAGE_FAILED_MAX_SIZE,
    );
    (archive, failed)
}

/// Reads the bounds for `archive/` and `failed/` from the environment alone, as `usage deliver` does.
pub(super) fn read_bounds(env: &Environment) -> Result<(Keep, Keep), Problems> {
    let mut problems = Gathered::default();
    let (archive, failed) = bounds(&mut Layers::new(None, env, &mut problems));
    problems.into_result()?;
    Ok((archive.unwrap_or_default(), failed.unwrap_or_default()))
}

/// Bounds for a directory.
fn keep(layers: &mut Layers<'_>, age: &Setting, size: &Setting) -> Option<Keep> {
    let max_age = layers.optional(age, values::max_age);
    let max_bytes = layers.optional(size, values::max_size);
    Some(Keep {
        max_age: max_age.ok()?,
        max_bytes: max_bytes.ok()?.map(|bytes| bytes as u64),
    })
}

/// Records and token are not for those on the way.
fn check_reach(receiver: &Receiver, layers: &mut Layers<'_>) {
    if validate_url(receiver.url(), false).is_err_and(|error| error.is_plain_http()) {
        let what = format!(
            "{} is on another machine: without https anyone on the way can read the records and \
             the token; use https://, or set usage.allow_http = true or \
             LLMLB_USAGE_ALLOW_HTTP=true if the way there is safe",
            receiver.shown()
        );
        layers.refuse(&settings::USAGE_URL, &what);
    }
}

/// The token that a variable holds. Nobody needs one; but a variable that somebody named is meant.
fn token(variable: &str, layers: &mut Layers<'_>, env: &Environment) -> Option<Token> {
    let refused = match env.text(variable) {
        Some(Ok(text)) => match Token::new(text) {
            Ok(token) => return Some(token),
            Err(error) => error.to_string(),
        },
        Some(Err(why)) => why.to_owned(),
        None if *layers.origin(&settings::USAGE_TOKEN_ENV) == Origin::Default => return None,
        None => {
            let what = values::not_set(variable, &settings::USAGE_TOKEN_ENV);
            layers.refuse(&settings::USAGE_TOKEN_ENV, &what);
            return None;
        }
    };
    layers.refuse_at(&Origin::Variable(variable.to_owned().into()), &refused);
    None
}

/// Checks a URL. Nothing is sent.
fn validate_url(url: &str, allow_http: bool) -> Result<Http, HttpError> {
    let mut options = HttpOptions::default();
    options.allow_plain_http = allow_http;
    Http::new(url, options)
}

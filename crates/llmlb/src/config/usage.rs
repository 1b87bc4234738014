//! The section `[usage]`: recording and delivery of usage records.

use std::time::Duration;

use spool::{Http, HttpError, HttpOptions, Keep, Token};

use super::env::Environment;
use super::layers::Layers;
use super::origin::Origin;
use super::problems::{ProblemList, Problems};
use super::secret::Secret;
use super::settings::{self, Setting};
use super::values::{self, RawSetting};

/// Settings of recording and delivery.
#[derive(Debug, Clone)]
pub(crate) struct UsageConfig {
    pub(crate) enabled: bool,
    /// `None`: records are moved to `archive/`.
    pub(crate) url: Option<Receiver>,
    /// Name of the variable that contains the token.
    pub(crate) token_env: String,
    pub(crate) token: Option<Token>,
    pub(crate) every: Duration,
    pub(crate) format: Format,
    pub(crate) on_failure: OnFailure,
    pub(crate) allow_http: bool,
    /// Bounds of `archive/`.
    pub(crate) archive: Keep,
    /// Bounds of `failed/`.
    pub(crate) failed: Keep,
}

/// Receiver of usage records. Its URL may contain a key, which is never shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Receiver {
    url: Secret,
    shown: String,
}

/// Format of the delivered batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Json,
    CloudEvents,
}

/// Treatment of requests while their usage cannot be recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnFailure {
    /// Serve the requests and count the lost records.
    Serve,
    Refuse,
}

impl Receiver {
    /// Returns the complete URL. Only for requests to the receiver.
    pub(crate) fn url(&self) -> &str {
        self.url.expose()
    }

    /// Returns the URL without its secret parts, for messages.
    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }

    /// Parses a URL. Plain http to another machine is checked later, with `usage.allow_http`.
    fn parse(raw: RawSetting<'_>) -> Result<Self, String> {
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

    /// Parses the value of `--format`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        values::word(RawSetting::Text(text), &Self::ALL)
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

/// Reads the section. All settings are read before the first `?`, so that all problems are reported.
pub(super) fn read(layers: &mut Layers<'_>, env: &Environment) -> Option<UsageConfig> {
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
        // A name that may be the token itself is checked even if no token is needed: `llmlb check`
        // would print it.
        Some(variable) if is_used || values::may_be_secret(variable) => {
            token(variable, layers, env)
        }
        _ => None,
    };
    Some(UsageConfig {
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

/// Reads the bounds of `archive/` and `failed/`.
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

/// Reads the bounds of `archive/` and `failed/` from the environment only, for `usage deliver`.
pub(super) fn read_bounds(env: &Environment) -> Result<(Keep, Keep), Problems> {
    let mut problems = ProblemList::default();
    let (archive, failed) = bounds(&mut Layers::new(None, env, &mut problems));
    problems.into_result()?;
    Ok((archive.unwrap_or_default(), failed.unwrap_or_default()))
}

/// Reads the bounds of one directory.
fn keep(layers: &mut Layers<'_>, age: &Setting, size: &Setting) -> Option<Keep> {
    let max_age = layers.optional(age, values::max_age);
    let max_bytes = layers.optional(size, values::max_size);
    Some(Keep {
        max_age: max_age.ok()?,
        max_bytes: max_bytes.ok()?.map(|bytes| bytes as u64),
    })
}

/// Rejects plain http to another machine: the network could read the records and the token.
fn check_reach(receiver: &Receiver, layers: &mut Layers<'_>) {
    if validate_url(receiver.url(), false).is_err_and(|error| error.is_plain_http()) {
        let what = format!(
            "{} is on another machine: without https the network can read the records and \
             the token; use https://, or on a trusted network set usage.allow_http = true or \
             LLMLB_USAGE_ALLOW_HTTP=true",
            receiver.shown()
        );
        layers.reject(&settings::USAGE_URL, &what);
    }
}

/// Returns the token that a variable contains. A token is optional, but a variable that
/// `usage.token_env` names must be set.
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
            layers.reject(&settings::USAGE_TOKEN_ENV, &what);
            return None;
        }
    };
    layers.reject_at(&Origin::Variable(variable.to_owned().into()), &refused);
    None
}

/// Validates a URL without sending a request.
fn validate_url(url: &str, allow_http: bool) -> Result<Http, HttpError> {
    let mut options = HttpOptions::default();
    options.allow_plain_http = allow_http;
    Http::new(url, options)
}

//! The section `[usage]`: URL and token of the receiver of usage records, and checks across its
//! settings.

use serde_json::{Value, json};
use spool::{Http, HttpError, HttpOptions, Keep, Token};

use super::env::Environment;
use super::layers::Layers;
use super::origin::Origin;
use super::secret::Secret;
use super::setting::Section;
use super::settings::{self, UsageConfig};
use super::types::{ValueType, VariableName, word_for};
use super::values::{self, RawSetting};

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
    /// Serve requests although their usage is not recorded, and count the lost records.
    Serve,
    Refuse,
}

impl Receiver {
    /// Returns the receiver's complete URL, which may contain a key. Messages must use
    /// [`Self::shown`] instead, so that the key does not reach logs.
    pub(crate) fn url(&self) -> &str {
        self.url.expose()
    }

    /// Returns the receiver's URL without its secret parts, for messages.
    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }
}

/// Type of `usage.url`. Plain http to another machine is checked later, with `usage.allow_http`.
pub(super) struct ReceiverUrl;

impl ValueType<Receiver> for ReceiverUrl {
    fn parse(&self, raw: RawSetting<'_>) -> Result<Receiver, String> {
        let url = values::text(raw, "a URL")?;
        let http = validate_url(url, true).map_err(|error| error.to_string())?;
        Ok(Receiver {
            url: Secret::new(url.to_owned()),
            shown: spool::Sink::name(&http).to_owned(),
        })
    }

    fn format(&self, value: &Receiver) -> String {
        value.shown().to_owned()
    }

    fn allowed(&self) -> String {
        "https://HOST[:PORT][/PATH], or http://.. on this machine".to_owned()
    }

    fn schema(&self) -> Value {
        json!({ "type": "string", "pattern": "^[Hh][Tt][Tt][Pp][Ss]?://" })
    }
}

impl Format {
    pub(super) const WORDS: [(&'static str, Self); 2] =
        [("json", Self::Json), ("cloudevents", Self::CloudEvents)];

    pub(crate) fn name(self) -> &'static str {
        word_for(&self, &Self::WORDS)
    }

    /// Parses the value of `llmlb usage deliver --format`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        settings::USAGE_FORMAT.parse(RawSetting::Text(text))
    }
}

impl OnFailure {
    pub(super) const WORDS: [(&'static str, Self); 2] =
        [("serve", Self::Serve), ("refuse", Self::Refuse)];
}

impl UsageConfig {
    /// Returns the maximum age and total size of the files in `archive/`. Files beyond them are
    /// deleted.
    pub(crate) fn archive(&self) -> Keep {
        Keep {
            max_age: self.archive_max_age,
            max_bytes: self.archive_max_size,
        }
    }

    /// Returns the maximum age and total size of the files in `failed/`. Files beyond them are
    /// deleted.
    pub(crate) fn failed(&self) -> Keep {
        Keep {
            max_age: self.failed_max_age,
            max_bytes: self.failed_max_size,
        }
    }

    /// Reads the section `[usage]`. A relative data directory in the file becomes relative to the
    /// file.
    pub(super) fn read_from(layers: &mut Layers<'_>) -> Self {
        let mut usage = Self::read(layers);
        // Join a relative directory with the directory of the file, so that all commands that read
        // the file find the same directory from any current directory.
        if let (Some(dir), Origin::File { name, .. }) = (
            &mut usage.data_dir,
            layers.origin(&settings::USAGE_DATA_DIR),
        ) && let Some(parent) = name.parent()
        {
            *dir = parent.join(&*dir);
        }
        usage
    }

    /// Rejects a receiver on another machine that is reached over plain http: the network could
    /// read the records and the token.
    pub(super) fn check_reach(&self, layers: &mut Layers<'_>) {
        let is_known =
            layers.is_valid(&settings::USAGE_URL) && layers.is_valid(&settings::USAGE_ALLOW_HTTP);
        let Some(receiver) = self.url.as_ref().filter(|_| is_known && !self.allow_http) else {
            return;
        };
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

    /// Returns the token with which `serve` delivers usage records. Without a receiver no token is
    /// needed.
    pub(super) fn token(&self, layers: &mut Layers<'_>, env: &Environment) -> Option<Token> {
        let has_receiver = self.url.is_some() && layers.is_valid(&settings::USAGE_URL);
        let is_used = self.enabled && has_receiver;
        // Check the variable's name even if no receiver needs a token: if the operator has entered
        // the token itself as the name, `llmlb check` would print the token.
        let is_checked = is_used || VariableName::may_be_secret(&self.token_env);
        is_checked.then(|| self.receiver_token(layers, env))?
    }

    /// Returns the token for the receiver of usage records. A token is optional, but a variable
    /// that `usage.token_env` names must be set.
    pub(super) fn receiver_token(
        &self,
        layers: &mut Layers<'_>,
        env: &Environment,
    ) -> Option<Token> {
        let variable = self.token_env.as_str();
        if !layers.is_valid(&settings::USAGE_TOKEN_ENV) {
            return None;
        }
        let refused = match env.text(variable) {
            Some(Ok(text)) => match Token::new(text) {
                Ok(token) => return Some(token),
                Err(error) => error.to_string(),
            },
            Some(Err(why)) => why.to_owned(),
            None if *layers.origin(&settings::USAGE_TOKEN_ENV) == Origin::Default => return None,
            None => {
                let what = VariableName::not_set(variable);
                layers.reject(&settings::USAGE_TOKEN_ENV, &what);
                return None;
            }
        };
        layers.reject_at(&Origin::Variable(variable.to_owned().into()), &refused);
        None
    }
}

/// Validates the URL of the receiver of usage records, without sending a request.
fn validate_url(url: &str, allow_http: bool) -> Result<Http, HttpError> {
    let mut options = HttpOptions::default();
    options.allow_plain_http = allow_http;
    Http::new(url, options)
}

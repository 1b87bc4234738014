//! Delivery to an HTTP API: one `POST` for each attempt.
//!
//! What the receiver answers decides ([`status`]). Where there is no answer, it decides whether the
//! receiver can have the batch: before the first byte of the body was handed over it cannot;
//! afterwards that is unknown.

mod address;
mod early;
mod excerpt;
mod format;
mod retry_after;
mod status;
#[cfg(test)]
mod tests;
mod token;

use std::fmt;
use std::io::{self, Read};
use std::time::{Duration, SystemTime};

use ureq::http::header::{
    AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, DATE, LOCATION, RETRY_AFTER,
};
use ureq::http::{HeaderMap, HeaderName, HeaderValue, Response};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::unversioned::resolver::DefaultResolver;
use ureq::unversioned::transport::{Connector, DefaultConnector};
use ureq::{Agent, Body, SendBody, Timeout};

use crate::batch::Batch;
use crate::delivery::{Answer, Sink};
use address::Address;
use early::Heed;
use excerpt::excerpt;
use status::{Meaning, meaning};

pub use format::{CloudEvents, Format};
pub use token::Token;

/// How long a connection may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// As much of an answer is read, so that the connection can be used again.
const MOST_OF_AN_ANSWER: u64 = 64 * 1024;

/// How a receiver is spoken to.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HttpOptions {
    /// How long an attempt may take in all.
    pub timeout: Duration,
    /// Sent as `Authorization: Bearer`.
    pub token: Option<Token>,
    /// 409 means that something is wrong with the batch, not that the receiver has it already.
    pub conflict_is_failure: bool,
    /// Allows `http://` to other machines. Anyone on the way can read the records and the token.
    pub allow_plain_http: bool,
    /// Sent as `User-Agent`.
    pub user_agent: String,
    /// What is posted.
    pub format: Format,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(30),
            token: None,
            conflict_is_failure: false,
            allow_plain_http: false,
            user_agent: concat!("spool/", env!("CARGO_PKG_VERSION")).to_owned(),
            format: Format::default(),
        }
    }
}

/// An HTTP API that takes batches, one `POST` for each, with the batch's key as `Idempotency-Key`.
/// [`Format`] says what is posted.
///
/// Certificates are checked against what the system trusts; redirects are not followed;
/// connections are kept. A proxy is taken from the environment (`HTTPS_PROXY`, `NO_PROXY`), except
/// to reach this machine.
///
/// ```
/// use spool::{Http, HttpOptions, Sink, Token};
///
/// let mut options = HttpOptions::default();
/// options.token = Some(Token::new("s3cret")?);
/// let http = Http::new("https://usage.example/v1/batches", options)?;
/// assert_eq!(http.name(), "https://usage.example/v1/batches");
/// # Ok::<(), spool::HttpError>(())
/// ```
pub struct Http {
    agent: Agent,
    address: Address,
    options: HttpOptions,
    headers: HeaderMap,
}

/// Why a receiver cannot be spoken to as was asked. No secret is in the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpError {
    why: String,
    is_plain_http: bool,
}

impl Http {
    /// Checks the URL and the options. Nothing is sent yet.
    pub fn new(url: &str, options: HttpOptions) -> Result<Self, HttpError> {
        let address = Address::parse(url, options.allow_plain_http)?;
        let mut headers = HeaderMap::new();
        let content_type = options.format.content_type();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        if let Some(token) = &options.token {
            let mut value = HeaderValue::from_str(&format!("Bearer {}", token.expose()))
                .map_err(|_| HttpError::new("the token cannot be sent in a header"))?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        if HeaderValue::from_str(&options.user_agent).is_err() {
            return Err(HttpError::new("the user agent cannot be sent in a header"));
        }
        Ok(Self {
            agent: agent(&address, &options),
            address,
            options,
            headers,
        })
    }

    fn post(&self, key: &str, body: &mut Handed<'_>) -> Result<Response<Body>, ureq::Error> {
        let mut request = self.agent.post(&self.address.uri);
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        request
            .header(HeaderName::from_static("idempotency-key"), key)
            .header(CONTENT_LENGTH, body.left.len())
            .send(SendBody::from_reader(body))
    }

    fn judge(&self, mut response: Response<Body>) -> Answer {
        let status = response.status();
        let meaning = meaning(status.as_u16(), self.options.conflict_is_failure);
        let mut bytes = Vec::new();
        // Whatever becomes of the body: the status has decided.
        let mut body = response.body_mut().as_reader().take(MOST_OF_AN_ANSWER);
        if let Err(error) = body.read_to_end(&mut bytes) {
            tracing::debug!(%status, %error, "the answer was cut");
        }
        let text =
            |bytes: &[u8]| excerpt(bytes, self.options.token.as_ref(), self.address.uri.query());
        let elsewhere = response.headers().get(LOCATION);
        let elsewhere = elsewhere
            .filter(|_| status.is_redirection())
            .map(|url| format!(" (to {})", text(url.as_bytes())));
        let words = match text(&bytes) {
            words if words.is_empty() => words,
            words => format!(": {words}"),
        };
        let said = format!("{status}{}{words}", elsewhere.unwrap_or_default());
        match meaning {
            Meaning::Accepted => Answer::accepted(said),
            Meaning::Rejected => Answer::rejected(said),
            Meaning::TooLarge => Answer::too_large(said),
            Meaning::Later { unknown } => Answer::later(said, unknown, wait(response.headers())),
            Meaning::Misconfigured => Answer::misconfigured(said),
        }
    }

    /// What the network did, for people.
    fn in_words(&self, error: &ureq::Error) -> String {
        match error {
            ureq::Error::Timeout(Timeout::Connect | Timeout::Resolve) => {
                let limit = CONNECT_WITHIN.min(self.options.timeout);
                format!("no connection within {} s", limit.as_secs_f32())
            }
            ureq::Error::Timeout(_) => {
                let limit = self.options.timeout;
                format!("no answer within {} s", limit.as_secs_f32())
            }
            ureq::Error::HostNotFound => "its host is not known".to_owned(),
            // What a plain HTTP server answers to a TLS client.
            ureq::Error::Rustls(rustls::Error::InvalidMessage(_)) => {
                "it does not speak TLS; is it http:// and not https://?".to_owned()
            }
            ureq::Error::Io(error) => {
                let text = error.to_string();
                let words = text.split(" (os error").next().unwrap_or(&text);
                // On Windows it is a sentence.
                words.trim_end_matches('.').to_lowercase()
            }
            other => other.to_string(),
        }
    }
}

impl Sink for Http {
    fn name(&self) -> &str {
        &self.address.shown
    }

    fn send(&self, batch: &Batch) -> Answer {
        let bytes = self.options.format.body(batch);
        let mut body = Handed {
            left: &bytes,
            is_begun: false,
        };
        let (sent, is_cut) = early::watch(|| self.post(batch.idempotency_key(), &mut body));
        match sent.map(|response| self.judge(response)) {
            // It cannot have what it did not read.
            Ok(Answer::Accepted { said }) if is_cut => {
                Answer::later(format!("{said}, but it did not read the batch"), true, None)
            }
            Ok(answer) => answer,
            Err(error) => {
                let words = format!("{}: {}", self.name(), self.in_words(&error));
                Answer::later(words, body.is_begun, None)
            }
        }
    }
}

fn agent(address: &Address, options: &HttpOptions) -> Agent {
    let tls = TlsConfig::builder()
        .root_certs(RootCerts::PlatformVerifier)
        .build();
    let mut config = Agent::config_builder()
        .tls_config(tls)
        .http_status_as_error(false)
        // Elsewhere is not where the token was meant for.
        .max_redirects(0)
        .max_redirects_will_error(false)
        .user_agent(options.user_agent.as_str())
        .timeout_global(Some(options.timeout))
        .timeout_resolve(Some(CONNECT_WITHIN))
        .timeout_connect(Some(CONNECT_WITHIN));
    if address.is_loopback {
        config = config.proxy(None);
    }
    let connector = DefaultConnector::new().chain(Heed);
    Agent::with_parts(config.build(), connector, DefaultResolver::default())
}

/// How long the receiver asks us to wait. Its dates are by its own clock.
fn wait(headers: &HeaderMap) -> Option<Duration> {
    let text = |name| headers.get(name)?.to_str().ok();
    let now = text(DATE).and_then(|date| httpdate::parse_http_date(date).ok());
    retry_after::parse(text(RETRY_AFTER)?, now.unwrap_or_else(SystemTime::now))
}

/// A body that knows whether any of it was handed over.
struct Handed<'a> {
    left: &'a [u8],
    is_begun: bool,
}

impl Read for Handed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.is_begun = true;
        self.left.read(buffer)
    }
}

impl HttpError {
    fn new(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            is_plain_http: false,
        }
    }

    /// The URL begins with `http://`, and the receiver is on another machine.
    pub fn is_plain_http(&self) -> bool {
        self.is_plain_http
    }
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http")
            .field("to", &self.address.shown)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for HttpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for HttpError {}

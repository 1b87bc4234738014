//! Delivery to an HTTP API: one `POST` for each attempt.
//!
//! The status of the response decides the fate of the batch ([`status`]). Without a response, the
//! receiver cannot have the batch if no byte of the body was passed to the HTTP client; otherwise
//! the outcome is unknown.

mod address;
mod early_response;
mod excerpt;
mod format;
mod retry_after;
mod status;
#[cfg(test)]
mod tests;
mod token;

use std::fmt;
use std::io::{self, Read};
use std::sync::{Mutex, MutexGuard, PoisonError};
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
use early_response::{EarlyResponseConnector, UploadStatus};
use excerpt::excerpt;
use status::{StatusClass, classify};

pub use format::{CloudEvents, Format};
pub use token::Token;

/// Maximum time to connect, including the name lookup.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum bytes of a response body that are read. A connection can be reused only after the whole
/// body was read.
const MAX_RESPONSE_BODY: u64 = 64 * 1024;

/// Options of an HTTP destination.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HttpOptions {
    /// Maximum duration of an attempt.
    pub timeout: Duration,
    /// Token for `Authorization: Bearer`.
    pub token: Option<Token>,
    /// Treats 409 as a rejection of the batch. By default 409 means that the receiver has the
    /// batch.
    pub conflict_is_failure: bool,
    /// Allows `http://` to other machines. The network can then read the records and the token.
    pub allow_plain_http: bool,
    /// Value of `User-Agent`.
    pub user_agent: String,
    /// Format of the request body.
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

/// An HTTP API that accepts batches, one `POST` for each, with the batch's key as
/// `Idempotency-Key`. [`Format`] defines the body.
///
/// Certificates are verified against the system's trust store. Redirects are not followed.
/// Connections are reused. The proxy comes from the environment (`HTTPS_PROXY`, `NO_PROXY`);
/// requests to this machine use no proxy.
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
    /// Idle clients. A concurrent `send` that finds none creates one.
    clients: Mutex<Vec<Client>>,
    address: Address,
    options: HttpOptions,
    headers: HeaderMap,
}

/// An HTTP client that serves one delivery attempt at a time. The upload status in `upload` is
/// shared by all connections of the agent: with concurrent attempts, an incomplete upload of one
/// attempt would count for the others.
struct Client {
    agent: Agent,
    upload: UploadStatus,
}

/// Error of the URL or the options of an HTTP destination. Its text contains no secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpError {
    why: String,
    is_plain_http: bool,
}

impl Http {
    /// Creates a destination after checking the URL and the options. Sends no request.
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
            clients: Mutex::new(vec![Client::new(&address, &options)]),
            address,
            options,
            headers,
        })
    }

    fn take_client(&self) -> Client {
        let idle = self.lock_clients().pop();
        idle.unwrap_or_else(|| Client::new(&self.address, &self.options))
    }

    fn lock_clients(&self) -> MutexGuard<'_, Vec<Client>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn post(
        &self,
        agent: &Agent,
        key: &str,
        body: &mut TrackedBody<'_>,
    ) -> Result<Response<Body>, ureq::Error> {
        let mut request = agent.post(&self.address.uri);
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        request
            .header(HeaderName::from_static("idempotency-key"), key)
            .header(CONTENT_LENGTH, body.remaining.len())
            .send(SendBody::from_reader(body))
    }

    fn interpret(&self, mut response: Response<Body>) -> Answer {
        let status = response.status();
        let class = classify(status.as_u16(), self.options.conflict_is_failure);
        let mut bytes = Vec::new();
        // An unreadable body does not change the answer: only the status decides, and the body is
        // shown to people.
        let mut body = response.body_mut().as_reader().take(MAX_RESPONSE_BODY);
        if let Err(error) = body.read_to_end(&mut bytes) {
            tracing::debug!(%status, %error, "response body incomplete");
        }
        let text =
            |bytes: &[u8]| excerpt(bytes, self.options.token.as_ref(), self.address.uri.query());
        let location = response.headers().get(LOCATION);
        let location = location
            .filter(|_| status.is_redirection())
            .map(|url| format!(" (to {})", text(url.as_bytes())));
        let body = match text(&bytes) {
            body if body.is_empty() => body,
            body => format!(": {body}"),
        };
        let message = format!("{status}{}{body}", location.unwrap_or_default());
        match class {
            StatusClass::Accepted => Answer::accepted(message),
            StatusClass::Rejected => Answer::rejected(message),
            StatusClass::TooLarge => Answer::too_large(message),
            StatusClass::Later { unknown } => Answer::Later {
                message,
                unknown,
                after: requested_wait(response.headers()),
            },
            StatusClass::Misconfigured => Answer::misconfigured(message),
        }
    }

    fn describe(&self, error: &ureq::Error) -> String {
        match error {
            ureq::Error::Timeout(Timeout::Connect | Timeout::Resolve) => {
                let limit = CONNECT_TIMEOUT.min(self.options.timeout);
                format!("no connection within {} s", limit.as_secs_f32())
            }
            ureq::Error::Timeout(_) => {
                let limit = self.options.timeout;
                format!("no response within {} s", limit.as_secs_f32())
            }
            ureq::Error::HostNotFound => "host not found".to_owned(),
            // The server does not speak TLS: a plain HTTP server responds to a TLS handshake with
            // text, which is not a TLS message.
            ureq::Error::Rustls(rustls::Error::InvalidMessage(_)) => {
                "the server does not speak TLS; use http:// instead of https://?".to_owned()
            }
            ureq::Error::Io(error) => {
                let text = error.to_string();
                let text = text.split(" (os error").next().unwrap_or(&text);
                // Remove the full stop at the end of Windows error texts, since the text becomes
                // the middle of a sentence.
                text.trim_end_matches('.').to_lowercase()
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
        let mut body = TrackedBody {
            remaining: &bytes,
            is_started: false,
        };
        let client = self.take_client();
        client.upload.reset();
        let sent = self.post(&client.agent, batch.idempotency_key(), &mut body);
        let is_incomplete = client.upload.is_incomplete();
        let answer = match sent.map(|response| self.interpret(response)) {
            // The receiver responded with success before the whole batch was sent, so the receiver
            // may not have the batch. The outcome counts as unknown: if the batch counted as
            // delivered, its records could be lost.
            Ok(Answer::Accepted { message: response }) if is_incomplete => {
                let message = format!(
                    "{response}, but the receiver did not read the whole batch, so the batch does \
                     not count as delivered"
                );
                Answer::unknown(message, None)
            }
            Ok(answer) => answer,
            Err(error) => Answer::Later {
                message: format!("{}: {}", self.name(), self.describe(&error)),
                unknown: body.is_started,
                after: None,
            },
        };
        self.lock_clients().push(client);
        answer
    }
}

impl Client {
    fn new(address: &Address, options: &HttpOptions) -> Self {
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::PlatformVerifier)
            .build();
        let mut config = Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            // Do not follow redirects: a redirect could send the token to another host.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(options.user_agent.as_str())
            .timeout_global(Some(options.timeout))
            .timeout_resolve(Some(CONNECT_TIMEOUT))
            .timeout_connect(Some(CONNECT_TIMEOUT));
        if address.is_loopback {
            config = config.proxy(None);
        }
        let upload = UploadStatus::default();
        let connector = DefaultConnector::new().chain(EarlyResponseConnector {
            upload: upload.clone(),
        });
        let agent = Agent::with_parts(config.build(), connector, DefaultResolver::default());
        Self { agent, upload }
    }
}

/// Returns the wait that the receiver asks for. Dates count from the receiver's own clock (`Date`).
fn requested_wait(headers: &HeaderMap) -> Option<Duration> {
    let text = |name| headers.get(name)?.to_str().ok();
    let now = text(DATE).and_then(|date| httpdate::parse_http_date(date).ok());
    retry_after::parse(text(RETRY_AFTER)?, now.unwrap_or_else(SystemTime::now))
}

/// Request body that tracks if the HTTP client has read any of it.
struct TrackedBody<'a> {
    remaining: &'a [u8],
    is_started: bool,
}

impl Read for TrackedBody<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.is_started = true;
        self.remaining.read(buffer)
    }
}

impl HttpError {
    fn new(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            is_plain_http: false,
        }
    }

    /// True if the URL begins with `http://` and the receiver is on another machine.
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

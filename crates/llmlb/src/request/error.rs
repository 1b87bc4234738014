//! Error responses that llmlb sends itself, in the format of the API that the client uses.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use serde_json::json;

use crate::endpoint::Dialect;
use crate::headers::ERROR_CODE;

/// Reason why llmlb does not serve a request, from which the error response is built.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) code: &'static str,
    pub(crate) message: String,
    param: Option<&'static str>,
    retry_after: Option<u16>,
    allow: Option<&'static str>,
    upgrade: Option<&'static str>,
    /// True if the request gets no usage record and is only counted in `/status`, because its key
    /// does not permit it: a client can send any number of such requests.
    pub(crate) is_unrecorded: bool,
    asks_for_key: bool,
    rate_limit: Option<Box<RateLimit>>,
}

/// Limit of a key that a request would exceed, with the time to wait, as the error response reports
/// them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RateLimit {
    pub(crate) kind: &'static str,
    /// Milliseconds after which the request may be admitted, sent as `Retry-After`; `None` if it
    /// never will be.
    pub(crate) wait_ms: Option<u64>,
    pub(crate) is_worth_retrying: bool,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            param: None,
            retry_after: None,
            allow: None,
            upgrade: None,
            is_unrecorded: false,
            asks_for_key: false,
            rate_limit: None,
        }
    }

    /// Sets `error.param` of the error response: the field of the request that is wrong.
    pub(crate) fn param(mut self, param: &'static str) -> Self {
        self.param = Some(param);
        self
    }

    /// Sets `Retry-After`.
    pub(crate) fn retry_after(mut self, seconds: u16) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    /// Sets the key's limit that the request would exceed: its name and the time to wait.
    pub(crate) fn rate_limited(mut self, limit: RateLimit) -> Self {
        self.rate_limit = Some(Box::new(limit));
        self
    }

    /// Sets the header field `Allow` of the error response: the methods that are served.
    pub(crate) fn allow(mut self, methods: &'static str) -> Self {
        self.allow = Some(methods);
        self
    }

    /// Sets the header field `Upgrade` of the error response: the protocol that the client must
    /// request.
    pub(crate) fn upgrade(mut self, protocol: &'static str) -> Self {
        self.upgrade = Some(protocol);
        self
    }

    /// Counts the request in `/status` and writes no usage record: its key does not permit it, and
    /// a client can send any number of such requests.
    pub(crate) fn unrecorded(mut self) -> Self {
        self.is_unrecorded = true;
        self
    }

    /// Sets the header field `WWW-Authenticate` of the error response, which shows that an API key
    /// is missing or wrong.
    pub(crate) fn asking_for_key(mut self) -> Self {
        self.asks_for_key = true;
        self
    }

    /// Returns the error response in the JSON format that clients of the requested API parse:
    /// OpenAI's, Anthropic's or Ollama's.
    pub(crate) fn into_response(self, dialect: Dialect, id: &HeaderValue) -> Response<Full<Bytes>> {
        let body = match dialect {
            Dialect::Anthropic => json!({
                "type": "error",
                "error": {
                    "type": self.anthropic_type(),
                    "message": self.message,
                    // Anthropic's clients read the code of an error from this field.
                    "details": { "error_code": self.code },
                },
                "request_id": id.to_str().ok(),
            }),
            Dialect::Ollama => json!({ "error": self.message }),
            Dialect::OpenAi => json!({
                "error": {
                    "message": self.message,
                    "type": self.openai_type(),
                    "param": self.param,
                    "code": self.code,
                }
            }),
        };
        let mut response = json_response(self.status, body.to_string());
        let headers = response.headers_mut();
        headers.insert(ERROR_CODE, HeaderValue::from_static(self.code));
        if dialect == Dialect::Anthropic {
            // Anthropic's clients read the request id from this field.
            headers.insert("request-id", id.clone());
        }
        if let Some(value) = self.retry_after {
            headers.insert(header::RETRY_AFTER, value.into());
        }
        if let Some(limit) = &self.rate_limit {
            limit.add_to(headers);
        }
        if let Some(value) = self.allow {
            headers.insert(header::ALLOW, HeaderValue::from_static(value));
        }
        if let Some(value) = self.upgrade {
            headers.insert(header::UPGRADE, HeaderValue::from_static(value));
        }
        if self.asks_for_key {
            let scheme = HeaderValue::from_static("Bearer");
            headers.insert(header::WWW_AUTHENTICATE, scheme);
        }
        response
    }

    fn openai_type(&self) -> &'static str {
        if let Some(limit) = &self.rate_limit {
            return limit.kind;
        }
        match self.status {
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }

    fn anthropic_type(&self) -> &'static str {
        match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            StatusCode::GATEWAY_TIMEOUT => "timeout_error",
            status if status.is_server_error() => "api_error",
            _ => "invalid_request_error",
        }
    }
}

impl RateLimit {
    /// Adds the header fields with the time to wait before a retry. Official clients read
    /// `retry-after-ms` first, and do not retry after `x-should-retry: false`.
    fn add_to(self, headers: &mut HeaderMap) {
        if let Some(wait) = self.wait_ms {
            headers.insert(header::RETRY_AFTER, wait.div_ceil(1000).into());
            headers.insert("retry-after-ms", wait.into());
        }
        if !self.is_worth_retrying {
            let never = HeaderValue::from_static("false");
            headers.insert("x-should-retry", never);
        }
    }
}

/// Error response for a client whose request failed because the backend rejected llmlb's own
/// credential. It shows that the client's key is not at fault.
pub(crate) fn backend_auth(status: StatusCode) -> Refusal {
    Refusal::new(
        StatusCode::BAD_GATEWAY,
        "backend_auth",
        format!(
            "The backend rejected this server's own key ({}). Your key is not at fault; the \
             operator has to check `api_key_env` of the backend, which the log names.",
            status.as_u16()
        ),
    )
}

/// Error response to a WebSocket handshake on a path that is served over HTTP only. Clients such as
/// Codex then use HTTP.
pub(crate) fn no_websocket(path: &str) -> Refusal {
    Refusal::new(
        StatusCode::UPGRADE_REQUIRED,
        "websocket_not_supported",
        format!("{path} is not served over WebSocket; send an HTTP request."),
    )
    .upgrade("websocket")
}

/// Value of the header field `Server`. The discovery of another llmlb recognizes by it that this
/// server is no LLM backend.
const SERVER: &str = concat!("llmlb/", env!("CARGO_PKG_VERSION"));

/// Returns a JSON response that llmlb sends itself.
pub(crate) fn json_response(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    let json = HeaderValue::from_static("application/json");
    headers.insert(header::CONTENT_TYPE, json);
    headers.insert(header::SERVER, HeaderValue::from_static(SERVER));
    response
}

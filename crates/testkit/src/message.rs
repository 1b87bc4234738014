//! Heads of HTTP/1.1 messages, requests to send and responses received.

use std::borrow::Cow;

use serde_json::Value;

/// Start line and fields of a request or a response, as they were received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Request line or status line, without its line end.
    pub line: String,
    /// Field names and values in the order of arrival. Bytes that are not UTF-8 are replaced.
    pub fields: Vec<(String, String)>,
}

impl Head {
    /// Parses the bytes up to the empty line. A line without a colon becomes a field without value.
    pub fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let mut lines = text.split("\r\n");
        let line = lines.next().unwrap_or_default().to_owned();
        let field = |line: &str| {
            let (name, value) = line.split_once(':').unwrap_or((line, ""));
            (name.to_owned(), value.trim().to_owned())
        };
        Self {
            line,
            fields: lines.filter(|line| !line.is_empty()).map(field).collect(),
        }
    }

    /// Returns the value of the first field of this name (case-insensitive).
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields_named(name).next()
    }

    /// Returns the values of all fields of this name (case-insensitive).
    pub fn fields_named<'a, 'b>(
        &'a self,
        name: &'b str,
    ) -> impl Iterator<Item = &'a str> + use<'a, 'b> {
        self.fields
            .iter()
            .filter(move |(own, _)| own.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    /// Returns the values of all fields of this name (case-insensitive), joined by commas.
    pub fn header(&self, name: &str) -> Option<String> {
        let values: Vec<_> = self.fields_named(name).collect();
        (!values.is_empty()).then(|| values.join(", "))
    }

    /// True if a field of this name contains the comma-separated token (case-insensitive).
    pub fn has_token(&self, name: &str, token: &str) -> bool {
        self.fields_named(name)
            .flat_map(|value| value.split(','))
            .any(|own| own.trim().eq_ignore_ascii_case(token))
    }

    /// Method of a request.
    pub fn method(&self) -> &str {
        self.line.split(' ').next().unwrap_or_default()
    }

    /// Target of a request, with its query.
    pub fn target(&self) -> &str {
        self.line.split(' ').nth(1).unwrap_or_default()
    }

    /// Path of a request, without its query.
    pub fn path(&self) -> &str {
        let target = self.target();
        target.split('?').next().unwrap_or(target)
    }

    /// Status of a response; 0 if the status line has none.
    pub fn status(&self) -> u16 {
        let status = self.line.split(' ').nth(1);
        status.and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    /// Announced length of the body.
    pub fn content_length(&self) -> Option<usize> {
        self.field("content-length")?.parse().ok()
    }

    /// True if the body is sent in chunks.
    pub fn is_chunked(&self) -> bool {
        self.has_token("transfer-encoding", "chunked")
    }
}

/// An HTTP/1.1 request to send. Nothing is checked, so that invalid requests can be built.
#[derive(Clone, Debug)]
pub struct Request {
    method: String,
    target: String,
    fields: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
    has_host: bool,
    has_length: bool,
}

impl Request {
    /// Returns a request without a body, to the host `localhost`.
    pub fn new(method: &str, target: &str) -> Self {
        Self {
            method: method.to_owned(),
            target: target.to_owned(),
            fields: Vec::new(),
            body: Vec::new(),
            has_host: true,
            has_length: true,
        }
    }

    /// Returns a GET.
    pub fn get(target: &str) -> Self {
        Self::new("GET", target)
    }

    /// Returns a POST of a JSON body.
    pub fn post(target: &str, body: impl Into<Vec<u8>>) -> Self {
        Self::new("POST", target)
            .field("content-type", "application/json")
            .body(body)
    }

    /// Returns a POST of a chat completion for this model with this prompt.
    pub fn chat(model: &str, prompt: &str) -> Self {
        let body = serde_json::json!({
            "model": model,
            "messages": [{ "role": "user", "content": prompt }],
        });
        Self::post("/v1/chat/completions", body.to_string())
    }

    /// Returns a GET that asks for a WebSocket.
    pub fn websocket(target: &str) -> Self {
        Self::get(target)
            .field("connection", "upgrade")
            .field("upgrade", "websocket")
            .field("sec-websocket-version", "13")
            .field("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
    }

    /// Adds a field. A field `host` replaces the default one.
    #[must_use]
    pub fn field(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.has_host &= !name.eq_ignore_ascii_case("host");
        self.fields.push((name.to_owned(), value.as_ref().to_vec()));
        self
    }

    /// Sets the body. Its `Content-Length` is added when the request is sent.
    #[must_use]
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// Leaves out the `Content-Length` field, so that another framing can be added.
    #[must_use]
    pub fn without_length(mut self) -> Self {
        self.has_length = false;
        self
    }

    /// Returns the request as it is sent.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = format!("{} {} HTTP/1.1\r\n", self.method, self.target).into_bytes();
        if self.has_host {
            out.extend_from_slice(b"host: localhost\r\n");
        }
        for (name, value) in &self.fields {
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(b": ");
            out.extend_from_slice(value);
            out.extend_from_slice(b"\r\n");
        }
        if self.has_length && !(self.body.is_empty() && self.method == "GET") {
            let length = format!("content-length: {}\r\n", self.body.len());
            out.extend_from_slice(length.as_bytes());
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(&self.body);
        out
    }
}

/// A response received by a client.
#[derive(Clone, Debug)]
pub struct Response {
    /// Status line and header fields of the response.
    pub head: Head,
    /// Body without its framing.
    pub body: Vec<u8>,
    /// True if the body ended as its framing says.
    pub is_complete: bool,
}

impl Response {
    /// Status of the response.
    pub fn status(&self) -> u16 {
        self.head.status()
    }

    /// Body as text. Bytes that are not UTF-8 are replaced.
    pub fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.body)
    }

    /// Body as JSON; `null` if it is not JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// Error code of an OpenAI-shaped error; empty if there is none.
    pub fn error_code(&self) -> String {
        let body = self.json();
        body["error"]["code"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }
}

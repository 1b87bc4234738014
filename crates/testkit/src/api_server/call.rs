//! A request to the fake LLM server, and the functions that send its response.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::State;
use super::gzip::Gzip;
use super::ledger::End;
use super::words::{self, Words};
use crate::server::Received;

/// A request to which a response is being sent.
pub(super) struct Call<'a> {
    pub(super) state: &'a State,
    pub(super) request: &'a Received,
    stream: &'a mut TcpStream,
    /// Compressor, if the prompt has the command `[gzip]` and the client accepts gzip.
    gzip: Option<Gzip>,
    /// True if the stream is split into chunks at arbitrary bytes, within events and characters.
    /// The command `[ragged]` sets this, to test clients that expect whole events in a chunk.
    is_ragged: bool,
    /// Pause in front of each token of a stream, set by the command `[pace N]`.
    pace: Option<Duration>,
}

impl<'a> Call<'a> {
    pub(super) fn new(state: &'a State, request: &'a Received, stream: &'a mut TcpStream) -> Self {
        let mut call = Self {
            state,
            request,
            stream,
            gzip: None,
            is_ragged: false,
            pace: None,
        };
        let text = call.text();
        let accepted = call.header("accept-encoding").unwrap_or_default();
        if words::has(&text, "gzip") && accepted.contains("gzip") {
            call.gzip = Some(Gzip::new());
        }
        call.is_ragged = words::has(&text, "ragged");
        call.pace = words::number(&text, "pace").map(Duration::from_millis);
        call
    }

    pub(super) fn method(&self) -> &'a str {
        self.request.head.method()
    }

    pub(super) fn path(&self) -> &'a str {
        self.request.path()
    }

    pub(super) fn header(&self, name: &str) -> Option<String> {
        self.request.head.header(name)
    }

    pub(super) fn text(&self) -> String {
        self.request.text()
    }

    pub(super) fn params(&self) -> Value {
        self.request.json()
    }

    /// Returns a new id for a response, a file or another object that the fake server creates: the
    /// prefix `kind`, the server's name and a number.
    pub(super) fn id(&self, kind: &str) -> String {
        let number = self.state.ids.fetch_add(1, Ordering::SeqCst);
        format!("{kind}{}_{number}", self.state.sort.name.replace('-', "_"))
    }

    /// True if the server has the model. If not, this function sends a 404 response.
    pub(super) fn require_model(&mut self, model: &str) -> bool {
        let known = self.state.serves(model);
        if !known {
            let name = self.state.sort.name;
            let message =
                format!("`{name}` was asked for the model `{model}`, which it does not have.");
            self.error(404, Some("model_not_found"), &message);
        }
        known
    }

    pub(super) fn json(&mut self, status: u16, body: &Value) {
        self.send(status, "application/json", body.to_string().as_bytes());
    }

    /// Sends an error response in the format of the API to which the request's path belongs.
    pub(super) fn error(&mut self, status: u16, code: Option<&str>, message: &str) {
        let body = if self.path().starts_with("/v1/messages") {
            let kind = match status {
                400 => "invalid_request_error",
                401 => "authentication_error",
                404 => "not_found_error",
                429 => "rate_limit_error",
                529 => "overloaded_error",
                _ => "api_error",
            };
            json!({
                "type": "error",
                "error": { "type": kind, "message": message },
                "request_id": "req_of_the_backend",
            })
        } else {
            let kind = if status >= 500 {
                "server_error"
            } else {
                "invalid_request_error"
            };
            json!({ "error": { "message": message, "type": kind, "param": null, "code": code } })
        };
        self.json(status, &body);
    }

    /// Sends a complete response. Returns true if the connection accepted it, false if the client
    /// has disconnected.
    pub(super) fn send(&mut self, status: u16, kind: &str, body: &[u8]) -> bool {
        let packed = self.gzip.as_mut().map(|gzip| {
            let mut bytes = gzip.pack(body);
            bytes.extend(gzip.end());
            bytes
        });
        let body = packed.as_deref().unwrap_or(body);
        let head = self.head(status, kind, &format!("content-length: {}", body.len()));
        self.stream
            .write_all(&[head.as_bytes(), body].concat())
            .is_ok()
    }

    fn head(&self, status: u16, kind: &str, length: &str) -> String {
        let id = self.id("req_");
        let mut lines = vec![
            format!("HTTP/1.1 {status} X"),
            format!("content-type: {kind}"),
            length.to_owned(),
            format!("x-request-id: {id}"),
            "x-ratelimit-remaining-requests: 59".to_owned(),
        ];
        if self.path().starts_with("/v1/messages") {
            lines.push(format!("request-id: {id}"));
        }
        if self.gzip.is_some() {
            lines.push("content-encoding: gzip".to_owned());
        }
        if status == 429 {
            lines.push("retry-after: 7".to_owned());
        }
        lines.join("\r\n") + "\r\n\r\n"
    }

    /// Sends the head of a streamed response: its status line and header fields. The events follow
    /// in chunks. Returns true if the connection accepted the head.
    pub(super) fn begin(&mut self) -> bool {
        let kind = "text/event-stream; charset=utf-8";
        let head = self.head(200, kind, "transfer-encoding: chunked");
        self.stream.write_all(head.as_bytes()).is_ok()
    }

    /// Sends a part of a stream. Returns true if the connection accepted it, false if the client
    /// has disconnected.
    pub(super) fn piece(&mut self, text: &str) -> bool {
        let packed = self.gzip.as_mut().map(|gzip| gzip.pack(text.as_bytes()));
        let bytes = packed.as_deref().unwrap_or(text.as_bytes());
        let size = if self.is_ragged { 7 } else { bytes.len() };
        let chunks = bytes.chunks(size).map(chunk);
        self.stream
            .write_all(&chunks.collect::<Vec<_>>().concat())
            .is_ok()
    }

    /// Sends an event with JSON data. Events of Anthropic's API and of the Responses API have a name.
    pub(super) fn event(&mut self, name: Option<&str>, data: &Value) -> bool {
        let name = name.map_or_else(String::new, |name| format!("event: {name}\n"));
        self.piece(&format!("{name}data: {data}\n\n"))
    }

    /// Sends a response that is not a stream and adds its tokens to the ledger. A response with the
    /// command `[cut]` ends after half of its body.
    pub(super) fn send_whole(&mut self, words: &Words, body: &Value) {
        let ledger = &self.state.ledger;
        let line = ledger.open(self, false, words);
        ledger.add(&line, words.count());
        if words.breaks_after.is_some() {
            let body = body.to_string();
            let head = self.head(
                200,
                "application/json",
                &format!("content-length: {}", body.len()),
            );
            let half = &body.as_bytes()[..body.len() / 2];
            let _ = self.stream.write_all(&[head.as_bytes(), half].concat());
            ledger.close(&line, End::Broken);
            return self.cut();
        }
        ledger.close(&line, End::Whole);
        if !self.send(200, "application/json", body.to_string().as_bytes()) {
            ledger.close(&line, End::Broken);
        }
    }

    /// Sends a stream token by token. `send_token` sends one token and gets the number of tokens so
    /// far; `finish` sends the events after the last token. Both return true if the connection
    /// accepted the bytes.
    pub(super) fn stream_tokens(
        &mut self,
        words: &Words,
        mut send_token: impl FnMut(&mut Self, &str, u64) -> bool,
        finish: impl FnOnce(&mut Self) -> bool,
    ) {
        let ledger = &self.state.ledger;
        let line = ledger.open(self, true, words);
        for (count, token) in (1..).zip(words.tokens()) {
            if words.breaks_after == Some(count - 1) {
                ledger.close(&line, End::Broken);
                return self.cut();
            }
            self.pace.into_iter().for_each(thread::sleep);
            ledger.add(&line, 1);
            if !send_token(self, token, count) {
                return ledger.close(&line, End::Broken);
            }
        }
        ledger.close(&line, End::Whole);
        if !finish(self) {
            return ledger.close(&line, End::Broken);
        }
        self.end();
    }

    /// Sends the end of a stream. A failure is ignored: a client that disconnects after the last event
    /// has the whole response.
    fn end(&mut self) {
        let rest = self.gzip.as_mut().map(|gzip| chunk(&gzip.end()));
        let rest = rest.unwrap_or_default();
        let _ = (self.stream).write_all(&[&rest, b"0\r\n\r\n".as_slice()].concat());
    }

    /// Closes the connection.
    fn cut(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

fn chunk(bytes: &[u8]) -> Vec<u8> {
    let head = format!("{:x}\r\n", bytes.len());
    [head.as_bytes(), bytes, b"\r\n"].concat()
}

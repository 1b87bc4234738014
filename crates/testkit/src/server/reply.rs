//! Replies of a scripted server: sequences of steps that send bytes, pause, or end the connection.

use std::time::Duration;

use crate::gate::Gate;

/// One step of a scripted reply.
#[derive(Clone, Debug)]
pub enum Step {
    /// Sends these bytes.
    Send(Vec<u8>),
    /// Sends these bytes again and again, with a pause between, until the connection fails.
    SendForever(Vec<u8>, Duration),
    /// Waits.
    Pause(Duration),
    /// Waits until the test opens the gate.
    WaitFor(Gate),
    /// Reads and logs bytes until the peer closes the connection.
    ReadToEnd,
    /// Closes the connection.
    Close,
    /// Closes the connection with a TCP reset.
    Reset,
}

/// Steps that a scripted server performs for one request.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    pub(super) steps: Vec<Step>,
}

impl Reply {
    /// Returns a reply without steps: the request gets no response, and the connection stays open.
    pub fn nothing() -> Self {
        Self::default()
    }

    /// Returns a reply of these bytes.
    pub fn raw(bytes: impl Into<Vec<u8>>) -> Self {
        Self::nothing().then(Step::Send(bytes.into()))
    }

    /// Returns a response with a `Content-Length`.
    pub fn response(status: u16, fields: &[(&str, &str)], body: impl AsRef<[u8]>) -> Self {
        let body = body.as_ref();
        let mut bytes = head(status, fields);
        let length = format!("content-length: {}\r\n\r\n", body.len());
        bytes.extend_from_slice(length.as_bytes());
        bytes.extend_from_slice(body);
        Self::raw(bytes)
    }

    /// Returns a JSON response.
    pub fn json(status: u16, body: impl AsRef<[u8]>) -> Self {
        Self::response(status, &[("content-type", "application/json")], body)
    }

    /// Returns the head of an event stream whose body is sent with chunked transfer encoding.
    /// [`Reply::event`] adds events, and [`Reply::end`] ends the body.
    pub fn stream() -> Self {
        let mut bytes = head(200, &[("content-type", "text/event-stream")]);
        bytes.extend_from_slice(b"transfer-encoding: chunked\r\n\r\n");
        Self::raw(bytes)
    }

    /// Adds an event with this data, in a chunk of its own.
    #[must_use]
    pub fn event(self, data: &str) -> Self {
        self.chunk(format!("data: {data}\n\n"))
    }

    /// Adds a chunk.
    #[must_use]
    pub fn chunk(self, data: impl AsRef<[u8]>) -> Self {
        let data = data.as_ref();
        let mut bytes = format!("{:x}\r\n", data.len()).into_bytes();
        bytes.extend_from_slice(data);
        bytes.extend_from_slice(b"\r\n");
        self.then(Step::Send(bytes))
    }

    /// Adds the last chunk, which has no data and ends the body of a chunked response.
    #[must_use]
    pub fn end(self) -> Self {
        self.then(Step::Send(b"0\r\n\r\n".to_vec()))
    }

    /// Adds the steps of another reply.
    #[must_use]
    pub fn then_reply(mut self, other: Self) -> Self {
        self.steps.extend(other.steps);
        self
    }

    /// Adds a step.
    #[must_use]
    pub fn then(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    /// Delays the whole reply by this time.
    #[must_use]
    pub fn after(mut self, pause: Duration) -> Self {
        self.steps.insert(0, Step::Pause(pause));
        self
    }

    /// Delays the whole reply until the gate is open.
    #[must_use]
    pub fn after_gate(mut self, gate: &Gate) -> Self {
        self.steps.insert(0, Step::WaitFor(gate.clone()));
        self
    }
}

fn head(status: u16, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut text = format!("HTTP/1.1 {status} Scripted\r\n");
    for (name, value) in fields {
        text.push_str(name);
        text.push_str(": ");
        text.push_str(value);
        text.push_str("\r\n");
    }
    text.into_bytes()
}

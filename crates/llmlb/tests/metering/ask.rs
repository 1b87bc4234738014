//! Requests with a name, so that their records are found.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use testkit::{Answer, Connection, LlmlbServer};

pub(crate) const CHAT: &str = "/v1/chat/completions";

/// Sends a request with this id.
pub(crate) fn send(connection: &mut Connection, id: &str, path: &str, body: &str) {
    send_with(
        connection,
        "POST",
        id,
        path,
        "content-type: application/json\r\n",
        body,
    );
}

/// Sends a request with these further fields, each with its end.
pub(crate) fn send_with(
    connection: &mut Connection,
    method: &str,
    id: &str,
    path: &str,
    fields: &str,
    body: &str,
) {
    connection.send(format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nx-request-id: {id}\r\n{fields}\
         content-length: {}\r\n\r\n{body}",
        body.len()
    ));
}

/// Asks, on a connection of its own, and waits for the answer.
pub(crate) fn ask(server: &LlmlbServer, id: &str, path: &str, body: &Value) -> Answer {
    let mut connection = Connection::open(server.address);
    send(&mut connection, id, path, &body.to_string());
    connection.answer()
}

/// A question for a chat.
pub(crate) fn chat(text: &str, is_stream: bool) -> Value {
    serde_json::json!({
        "model": "m",
        "stream": is_stream,
        "messages": [{ "role": "user", "content": text }],
    })
}

/// Tells the other threads of a test that it is over, however it ends: nobody waits for a client that
/// goes on for ever.
pub(crate) struct Over<'a>(pub(crate) &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

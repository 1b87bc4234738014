//! Requests with an id (`x-request-id`), by which tests find their records.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use testkit::{Answer, Connection, LlmlbServer};

pub(crate) use testkit::backends::CHAT;

/// Sends a POST of a JSON body with this id.
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

/// Sends a request with this id and these further header fields, each with its line end.
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

pub(crate) fn post(server: &LlmlbServer, id: &str, path: &str, body: &Value) -> Answer {
    let mut connection = Connection::open(server.address);
    send(&mut connection, id, path, &body.to_string());
    connection.answer()
}

pub(crate) fn chat(text: &str, is_stream: bool) -> Value {
    serde_json::json!({
        "model": "m",
        "stream": is_stream,
        "messages": [{ "role": "user", "content": text }],
    })
}

/// Sets a flag when the test ends, even by a panic. The client threads stop then, so that the scope
/// that joins them does not block forever.
pub(crate) struct SetOnDrop<'a>(pub(crate) &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

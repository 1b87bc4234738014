//! No text of requests or responses is in a record, in another file or in the log.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;

use serde_json::{Value, json};

use crate::records;
use crate::requests::{CHAT, chat, send, send_with};
use crate::stream::{self, DONE, STOP, Scripted, USAGE, WORD};
use testkit::{
    Connection, LlmlbServer, Sandbox,
    backends::{UNPROBED, close, serve},
    until, wire,
};

/// Word that only requests contain.
const ASKED: &str = "xylograph";
/// Word that only responses contain.
const ANSWERED: &str = "quixotry";

/// Sends a request with [`ASKED`] in its header fields, and reads the response, which may be cut.
fn send_one(server: &LlmlbServer, id: &str, path: &str, body: &str) {
    let mut client = Connection::open(server.address);
    let fields = format!(
        "content-type: application/json\r\nauthorization: Bearer {ASKED}\r\n\
         cookie: {ASKED}\r\nx-api-key: {ASKED}\r\nuser-agent: {ASKED}\r\n"
    );
    send_with(&mut client, "POST", id, path, &fields, body);
    let _ = client.answer();
}

/// Collects the names and contents of all files below a directory.
fn files(dir: &Path, found: &mut Vec<(String, Vec<u8>)>) {
    for file in fs::read_dir(dir).unwrap() {
        let path = file.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else {
            found.push((path.display().to_string(), fs::read(&path).unwrap()));
        }
    }
}

/// Stops the server and checks that neither [`ASKED`] nor [`ANSWERED`] is in its log or in a file of its data
/// directory.
fn assert_no_text_is_stored(sandbox: &Sandbox, server: &LlmlbServer) {
    let stopped = sandbox.run(&format!("stop -p {}", server.port()));
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    let mut found = vec![("stderr".to_owned(), server.process.stderr().into_bytes())];
    files(&sandbox.path("data"), &mut found);
    assert!(found.len() > 1, "the data directory is empty");
    for (name, bytes) in found {
        let text = String::from_utf8_lossy(&bytes);
        for word in [ASKED, ANSWERED] {
            assert!(!text.contains(word), "{word} is in {name}:\n{text}");
        }
    }
}

/// Returns a chat request with [`ASKED`] in every field that has text.
fn request_body(is_stream: bool) -> Value {
    let mut request_body = chat(ASKED, is_stream);
    request_body["system"] = json!(ASKED);
    request_body["user"] = json!(ASKED);
    request_body["metadata"] = json!({ ASKED: ASKED });
    request_body["tools"] = json!([{ "type": "function", "function": { "name": ASKED } }]);
    request_body["stop"] = json!([ASKED]);
    request_body
}

#[test]
fn text_of_requests_and_responses_is_never_stored() {
    let sandbox = testkit::sandbox!();
    let scripted = Scripted::start();
    let mut command = sandbox.command(&format!("serve -v -p 0 --backend {}", scripted.mock.url()));
    let server = sandbox.serve_with(command.envs(UNPROBED.iter().copied()));
    let word = WORD.replace("Hi", ANSWERED);
    let mut count = 0;
    let mut send_both = |name: &str| {
        for is_stream in [false, true] {
            let id = format!("{name}-{is_stream}");
            send_one(
                &server,
                &id,
                &format!("{CHAT}?q={ASKED}"),
                &request_body(is_stream).to_string(),
            );
            records::eventually(&sandbox, &id);
            count += 1;
        }
    };
    let whole = [&word, STOP, USAGE, DONE].concat();
    scripted.next(move |_, stream| {
        let fields = "content-type: text/event-stream\r\nx-quixotry: quixotry\r\n";
        stream::send(stream, fields, whole.as_bytes());
    });
    send_both("whole");
    for status in [400, 422, 429, 500, 503] {
        let body = json!({ "error": { "message": format!("{ASKED} {ANSWERED}") } }).to_string();
        scripted.next(move |_, stream| wire::json(stream, status, &body));
        send_both(&format!("status-{status}"));
    }
    let event = word.clone();
    scripted.next(move |_, stream| {
        wire::begin_stream(stream);
        wire::chunk(stream, &event);
        wire::chunk(stream, &event[..event.len() / 2]);
        close(stream);
    });
    send_both("cut");
    // Errors about invalid responses must not quote them.
    for (number, garbage) in [
        format!("{ANSWERED}\r\n\r\n"),
        format!("HTTP/1.1 {ANSWERED} X\r\n\r\n"),
        format!("HTTP/1.1 200 OK\r\n{ANSWERED}\r\n\r\n"),
        format!("HTTP/1.1 200 OK\r\ncontent-length: {ANSWERED}\r\n\r\n"),
        format!("HTTP/1.1 200 OK\r\ntransfer-encoding: {ANSWERED}\r\n\r\n"),
        format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{ANSWERED}\r\n"),
        format!("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n{{}}{ANSWERED}"),
    ]
    .into_iter()
    .enumerate()
    {
        scripted.next(move |_, stream| {
            let _ = stream.write_all(garbage.as_bytes());
            close(stream);
        });
        send_both(&format!("garbage-{number}"));
    }
    // Errors about invalid requests must not quote the request.
    for (number, body) in [
        format!("{{\"model\":\"m\",\"messages\":\"{ASKED}"),
        format!("{{\"model\":\"m\",\"{ASKED}\" 7}}"),
        format!("{{\"model\":{{\"{ASKED}\":1}}}}"),
        format!("{{\"model\":\"m\",\"stream_options\":\"{ASKED}\",\"stream\":true}}"),
        ASKED.to_owned(),
    ]
    .into_iter()
    .enumerate()
    {
        let id = format!("odd-{number}");
        send_one(&server, &id, CHAT, &body);
        records::eventually(&sandbox, &id);
        count += 1;
    }
    // The record and the log of a client that disconnects within the response must not contain its
    // text.
    let event = word.clone();
    scripted.next(move |_, stream| {
        wire::begin_stream(stream);
        wire::chunk(stream, &event);
        let _ = stream.read(&mut [0]);
        close(stream);
    });
    let mut client = Connection::open(server.address);
    send(&mut client, "leaves", CHAT, &request_body(true).to_string());
    assert_eq!(client.head().status(), 200);
    drop(client);
    records::eventually(&sandbox, "leaves");
    count += 1;
    server.until_in_flight(0);
    until("the log has every line", || {
        server.process.stderr().matches(" id=").count() >= count
    });
    assert_eq!(records::all(&sandbox).len(), count);
    assert_no_text_is_stored(&sandbox, &server);
}

#[test]
fn files_and_forms_are_never_stored() {
    let sandbox = testkit::sandbox!();
    let scripted = Scripted::start();
    let server = serve(&sandbox, &[&scripted.mock], UNPROBED);
    scripted.next(|_, stream| {
        let fields = "content-type: application/octet-stream\r\n";
        stream::send(stream, fields, ANSWERED.as_bytes());
    });
    let form = format!(
        "--x\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\nm\r\n\
         --x\r\ncontent-disposition: form-data; name=\"file\"; filename=\"{ASKED}\"\r\n\r\n\
         {ASKED}\r\n--x--\r\n"
    );
    for path in ["/v1/files", "/v1/audio/transcriptions", "/v1/images/edits"] {
        let mut client = Connection::open(server.address);
        let fields = "content-type: multipart/form-data; boundary=x\r\n";
        send_with(&mut client, "POST", "form", path, fields, &form);
        assert_eq!(client.answer().status(), 200);
    }
    let mut client = Connection::open(server.address);
    let fields = "content-type: application/octet-stream\r\n";
    send_with(&mut client, "PUT", "bytes", "/v1/files", fields, ASKED);
    assert_eq!(client.answer().status(), 200);
    until("the log has every line", || {
        server.process.stderr().matches(" id=").count() >= 4
    });
    assert_eq!(records::all(&sandbox).len(), 4);
    assert_no_text_is_stored(&sandbox, &server);
}

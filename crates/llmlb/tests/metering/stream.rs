//! Fake backends for the tests of metering. Some count the tokens of each request; others send
//! exactly the bytes and chunks that a test chooses.

use std::io::Write;
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use testkit::{
    Connection, FakeLlm, Received,
    api_server::{Backend, Reports, Sort},
    backends::backend,
    read_chunk, wire,
};

/// Event with one word of a chat.
pub(crate) const WORD: &str = "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hi\"},\"finish_reason\":null}]}\n\n";
/// Event with the finish reason.
pub(crate) const STOP: &str =
    "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
/// Event with the usage, which is forwarded only to clients that asked for it.
pub(crate) const USAGE: &str = "data: {\"id\":\"c\",\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":3,\"total_tokens\":12,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n";
pub(crate) const DONE: &str = "data: [DONE]\n\n";

/// Starts a backend for the model `m` that implements every API and counts tokens.
pub(crate) fn counting_backend(reports: Reports) -> Backend {
    Backend::start(Sort {
        name: "b",
        models: &["m"],
        reports,
        key: None,
    })
}

/// Starts a backend for the model `m` that responds with these pieces, each in a chunk of its own.
pub(crate) fn streaming(pieces: &[&str]) -> FakeLlm {
    let pieces: Vec<_> = pieces.iter().map(|&piece| piece.to_owned()).collect();
    backend(move |_, stream| {
        wire::begin_stream(stream);
        for piece in &pieces {
            wire::chunk(stream, piece);
        }
        wire::end_stream(stream);
    })
}

/// Backend for the model `m` whose script a test can replace between requests.
pub(crate) struct Scripted {
    pub(crate) mock: FakeLlm,
    script: Arc<Mutex<Box<Script>>>,
}

type Script = dyn Fn(&Received, &mut TcpStream) + Send;

impl Scripted {
    pub(crate) fn start() -> Self {
        let script: Arc<Mutex<Box<Script>>> = Arc::new(Mutex::new(Box::new(|_, stream| {
            wire::json(stream, 200, "{}");
        })));
        let current = Arc::clone(&script);
        let mock = backend(move |request, stream| {
            (current.lock().expect("the script"))(request, stream);
        });
        Self { mock, script }
    }

    pub(crate) fn next(&self, script: impl Fn(&Received, &mut TcpStream) + Send + 'static) {
        *self.script.lock().expect("the script") = Box::new(script);
    }
}

/// Sends a response with these header fields, this body and its `Content-Length`.
pub(crate) fn send(stream: &mut TcpStream, fields: &str, body: &[u8]) {
    let head = format!(
        "HTTP/1.1 200 OK\r\n{fields}content-length: {}\r\n\r\n",
        body.len()
    );
    let _ = stream.write_all(&[head.as_bytes(), body].concat());
}

/// Reads this number of bytes of a streamed response, whatever the size of its chunks.
pub(crate) fn read(connection: &mut Connection, length: usize) -> Vec<u8> {
    let mut found = Vec::new();
    while found.len() < length {
        let chunk = read_chunk(&mut connection.reader).expect("the response goes on");
        found.extend(chunk.expect("this is not the last chunk"));
    }
    found
}

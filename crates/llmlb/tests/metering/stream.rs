//! A backend that sends exactly what a test wants, cut where the test wants it.

use std::io::Write;
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use testkit::{Connection, FakeLlm, Received, backends::backend, read_chunk, wire};

/// A word of a chat.
pub(crate) const WORD: &str = "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hi\"},\"finish_reason\":null}]}\n\n";
/// The reason for which it ends.
pub(crate) const STOP: &str =
    "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
/// Usage, which only those see who asked for it.
pub(crate) const USAGE: &str = "data: {\"id\":\"c\",\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":3,\"total_tokens\":12,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n";
pub(crate) const DONE: &str = "data: [DONE]\n\n";

/// A backend for the model `m` that answers with these pieces, each a chunk of its own.
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

/// A backend for the model `m` of which a test decides anew before each request what it says.
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
        let played = Arc::clone(&script);
        let mock = backend(move |request, stream| {
            (played.lock().expect("the script"))(request, stream);
        });
        Self { mock, script }
    }

    pub(crate) fn next(&self, script: impl Fn(&Received, &mut TcpStream) + Send + 'static) {
        *self.script.lock().expect("the script") = Box::new(script);
    }
}

/// An answer of these bytes after a head of this kind, with its length told.
pub(crate) fn send(stream: &mut TcpStream, fields: &str, body: &[u8]) {
    let head = format!(
        "HTTP/1.1 200 OK\r\n{fields}content-length: {}\r\n\r\n",
        body.len()
    );
    let _ = stream.write_all(&[head.as_bytes(), body].concat());
}

/// Reads so much of a streamed answer, whatever its chunks are.
pub(crate) fn read(connection: &mut Connection, length: usize) -> Vec<u8> {
    let mut found = Vec::new();
    while found.len() < length {
        let chunk = read_chunk(&mut connection.reader).expect("more of the answer");
        found.extend(chunk.expect("it is not over"));
    }
    found
}

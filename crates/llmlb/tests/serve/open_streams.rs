//! A backend whose streams stay open until a test ends them.

use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use testkit::backends::CHAT;
use testkit::{Connection, FakeLlm, LlmlbServer, read_chunk, wire};

const ASK: &str = r#"{"model":"m","stream":true}"#;

/// Backend whose streams begin at once and end when [`OpenStreams::finish`] is called.
pub(crate) struct OpenStreams {
    pub(crate) mock: FakeLlm,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl OpenStreams {
    pub(crate) fn new() -> Self {
        let streams = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&streams);
        let mock = FakeLlm::handling(&["m"], move |_, stream| {
            wire::begin_stream(stream);
            wire::chunk(stream, "first");
            kept.lock().unwrap().push(stream.try_clone().unwrap());
        });
        Self { mock, streams }
    }

    /// Opens `count` clients, each of which has received the first chunk of its stream.
    pub(crate) fn clients(&self, server: &LlmlbServer, count: usize) -> Vec<Connection> {
        let mut clients: Vec<_> = (0..count)
            .map(|_| {
                let mut client = Connection::open(server.address);
                client.send_post(CHAT, ASK);
                client
            })
            .collect();
        for client in &mut clients {
            assert_eq!(client.head().status(), 200);
            assert_eq!(
                read_chunk(&mut client.reader),
                Some(Some(b"first".to_vec()))
            );
        }
        clients
    }

    /// Ends all streams.
    pub(crate) fn finish(&self) {
        for stream in self.streams.lock().unwrap().iter_mut() {
            wire::chunk(stream, "last");
            wire::end_stream(stream);
        }
    }
}

/// Checks that the client receives the end of its stream and that the server then closes the connection.
pub(crate) fn assert_complete(client: &mut Connection) {
    assert_eq!(read_chunk(&mut client.reader), Some(Some(b"last".to_vec())));
    assert_eq!(read_chunk(&mut client.reader), Some(None));
    assert!(client.is_closed());
}

/// True if the server refuses new connections.
pub(crate) fn refuses_connections(server: &LlmlbServer) -> bool {
    TcpStream::connect(server.address).is_err()
}

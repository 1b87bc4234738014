//! Detects the protocol of a client connection from its first bytes, unless TLS has negotiated it.

use std::time::Duration;

use tokio::net::TcpStream;

/// Protocol of a client connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    /// HTTP/2: agreed on in the TLS handshake, or without TLS and without an upgrade ("prior knowledge").
    Http2,
    /// The client closed the connection.
    Closed,
}

/// Connection preface of HTTP/2. No HTTP/1.1 request begins with it.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// First pause before the bytes of a new connection are peeked at again, if they are only the
/// beginning of the HTTP/2 preface. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// Maximum pause between two peeks at a connection that sends the HTTP/2 preface byte by byte.
const MAX_PAUSE: Duration = Duration::from_millis(250);

/// Determines the protocol by the first bytes of a connection with TLS whose client did not name one. An empty
/// slice is the end of the connection. No HTTP/1.1 method begins with `PRI`, so that part suffices.
pub(crate) fn by_first_bytes(first: &[u8]) -> Protocol {
    match first {
        [] => Protocol::Closed,
        [b'P', b'R', b'I', ..] => Protocol::Http2,
        _ => Protocol::Http1,
    }
}

/// Detects the protocol. The bytes stay in the socket for the HTTP library.
pub(crate) async fn detect(stream: &TcpStream) -> Protocol {
    let mut first = [0; PREFACE.len()];
    let mut pause = FIRST_PAUSE;
    loop {
        match stream.peek(&mut first).await {
            Ok(0) | Err(_) => return Protocol::Closed,
            Ok(count) if first[..count] != PREFACE[..count] => return Protocol::Http1,
            Ok(count) if count == PREFACE.len() => return Protocol::Http2,
            Ok(_) => {
                // Peeked bytes stay in the socket, so waiting for readability would return at once.
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(MAX_PAUSE);
            }
        }
    }
}

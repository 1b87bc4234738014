//! Detects the protocol of a client connection from its first bytes, unless TLS has negotiated it.

use std::time::Duration;

use tokio::net::TcpStream;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    /// HTTP/2, either negotiated in the TLS handshake, or begun without TLS and without an upgrade
    /// ("prior knowledge").
    Http2,
    Closed,
}

/// Connection preface of HTTP/2. No HTTP/1.1 request begins with it, so it identifies the protocol.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// First pause before the bytes of a new connection are peeked at anew, if they are only the
/// beginning of the HTTP/2 preface. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// Maximum pause between two peeks at a connection that sends the HTTP/2 preface byte by byte.
const MAX_PAUSE: Duration = Duration::from_millis(250);

/// Returns the protocol of a connection whose TLS handshake negotiated none, from its first bytes.
/// No HTTP/1.1 method begins with `PRI`, so the first three bytes suffice. An empty slice is the
/// end of the connection.
pub(crate) fn by_first_bytes(first: &[u8]) -> Protocol {
    match first {
        [] => Protocol::Closed,
        [b'P', b'R', b'I', ..] => Protocol::Http2,
        _ => Protocol::Http1,
    }
}

/// Returns the protocol of a connection without TLS. Its first bytes are only peeked at, so that
/// the HTTP library reads them.
pub(crate) async fn detect(stream: &TcpStream) -> Protocol {
    let mut first = [0; PREFACE.len()];
    let mut pause = FIRST_PAUSE;
    loop {
        match stream.peek(&mut first).await {
            Ok(0) | Err(_) => return Protocol::Closed,
            Ok(count) if first[..count] != PREFACE[..count] => return Protocol::Http1,
            Ok(count) if count == PREFACE.len() => return Protocol::Http2,
            Ok(_) => {
                // Pause before the next peek. Peeked bytes stay in the socket, so waiting for
                // readability would return at once.
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(MAX_PAUSE);
            }
        }
    }
}

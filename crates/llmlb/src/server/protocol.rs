//! Which protocol a client speaks, by its first bytes.

use std::time::Duration;

use tokio::net::TcpStream;

/// What a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    /// Without TLS, and without asking first ("prior knowledge").
    Http2,
    /// Nothing: it left.
    None,
}

/// How HTTP/2 begins. No method of HTTP/1.1 does.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// How soon to look again at a client that sends byte by byte, at first and at last.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
const LOOK_SELDOM: Duration = Duration::from_millis(250);

/// Looks at what a client sends first, and leaves it there.
pub(crate) async fn detect(stream: &TcpStream) -> Protocol {
    let mut first = [0; PREFACE.len()];
    let mut pause = LOOK_AGAIN;
    loop {
        match stream.peek(&mut first).await {
            Ok(0) | Err(_) => return Protocol::None,
            Ok(count) if first[..count] != PREFACE[..count] => return Protocol::Http1,
            Ok(count) if count == PREFACE.len() => return Protocol::Http2,
            Ok(_) => {
                // What is there stays there: waiting for the socket would not wait.
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LOOK_SELDOM);
            }
        }
    }
}

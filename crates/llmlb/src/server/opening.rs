//! Opens a client connection: performs the TLS handshake, if the port serves https, and detects the
//! protocol.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;

use super::client_stream::{ClientStream, MAX_UNSENT, TlsSocket};
use super::protocol::{self, Protocol};
use super::raw_response;
use crate::tls::TlsConfig;

/// Maximum time of a TLS handshake. A shorter `server.idle_timeout` takes precedence.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// First byte of a TLS record with a handshake message. No HTTP request begins with it, so it
/// distinguishes the two.
const HANDSHAKE_RECORD: u8 = 22;
/// Maximum time for which the rest of a request without TLS is read and discarded. If a socket is closed with
/// unread data, the kernel resets the connection and the client might not receive the response.
const DISCARD_WITHIN: Duration = Duration::from_secs(1);
/// Maximum number of bytes of a request without TLS that are read and discarded.
const MAX_DISCARDED: u64 = 1 << 20;

pub(super) struct Opened {
    pub(super) stream: ClientStream,
    pub(super) protocol: Protocol,
    /// True if the port requires client certificates and the client has presented none. Only health
    /// checks are then served.
    pub(super) lacks_certificate: bool,
}

/// Opens a client connection. Returns `None` if the client disconnected, was too slow, or made a
/// mistake for which it has received an error.
pub(super) async fn open(
    stream: TcpStream,
    peer: SocketAddr,
    tls: Option<&TlsConfig>,
    idle: Duration,
) -> Option<Opened> {
    // Disable Nagle's algorithm, which would delay tokens. If that fails, the connection is served
    // nevertheless.
    let _ = stream.set_nodelay(true);
    let Some(tls) = tls else {
        let protocol = timeout(idle, protocol::detect(&stream)).await.ok()?;
        return Some(Opened {
            stream: ClientStream::Plain(stream),
            protocol,
            lacks_certificate: false,
        });
    };
    let began = timeout(idle.min(HANDSHAKE_WITHIN), shake_hands(stream, tls)).await;
    let began = began.unwrap_or_else(|_| Err(Failed::Tls(io::ErrorKind::TimedOut.into())));
    match began {
        Ok(stream) => {
            count(&tls.handshakes.completed);
            let stream = Box::new(stream);
            timeout(idle, secured(stream, tls)).await.ok()?
        }
        Err(Failed::Disconnected) => None,
        Err(Failed::Tls(error)) => {
            count(&tls.handshakes.failed);
            tracing::debug!(%peer, %error, "a TLS handshake failed");
            None
        }
        Err(Failed::PlainHttp(stream)) => {
            count(&tls.handshakes.plain_http);
            tracing::debug!(%peer, "a client sent a request without TLS");
            let _ = timeout(DISCARD_WITHIN, refuse(stream)).await;
            None
        }
    }
}

/// Reason why a TLS handshake failed.
enum Failed {
    /// The client closed the connection before it sent a byte, as health checks over TCP do. No
    /// warning is logged.
    Disconnected,
    Tls(io::Error),
    PlainHttp(TcpStream),
}

async fn shake_hands(stream: TcpStream, tls: &TlsConfig) -> Result<TlsStream<TlsSocket>, Failed> {
    let mut first = [0];
    match stream.peek(&mut first).await {
        Ok(0) | Err(_) => return Err(Failed::Disconnected),
        // Every HTTP method begins with a letter, so this is an HTTP request without TLS, which
        // gets an error in plain HTTP.
        Ok(_) if first[0] != HANDSHAKE_RECORD && first[0].is_ascii_alphabetic() => {
            return Err(Failed::PlainHttp(stream));
        }
        Ok(_) => {}
    }
    let socket = TlsSocket::new(stream);
    let accepting = tls.acceptor().accept_with(socket, |session| {
        session.set_buffer_limit(Some(MAX_UNSENT));
    });
    Box::pin(accepting).await.map_err(Failed::Tls)
}

/// Returns the protocol of a connection with TLS: the one that was negotiated in the handshake,
/// else the one that the first bytes show.
async fn secured(mut stream: Box<TlsStream<TlsSocket>>, tls: &TlsConfig) -> Option<Opened> {
    let session = stream.get_ref().1;
    let lacks_certificate =
        tls.needs_client_certificates() && session.peer_certificates().is_none();
    let protocol = match session.alpn_protocol() {
        Some(b"h2") => Protocol::Http2,
        Some(_) => Protocol::Http1,
        // Peek at the first bytes with `fill_buf`, which does not consume them: the HTTP library
        // must read them.
        None => protocol::by_first_bytes(stream.fill_buf().await.ok()?),
    };
    Some(Opened {
        stream: ClientStream::Tls(stream),
        protocol,
        lacks_certificate,
    })
}

/// Responds with an error to a request that was sent without TLS, and closes the connection.
async fn refuse(mut stream: TcpStream) -> io::Result<()> {
    stream
        .write_all(raw_response::https_required().as_bytes())
        .await?;
    stream.shutdown().await?;
    let mut rest = stream.take(MAX_DISCARDED);
    tokio::io::copy(&mut rest, &mut tokio::io::sink()).await?;
    Ok(())
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

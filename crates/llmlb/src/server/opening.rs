//! The beginning of a client connection: the TLS handshake, if the port serves https, and the protocol.

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

/// Maximum time of a TLS handshake, if `server.idle_timeout` is not shorter.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// First byte of a TLS record with a handshake message. No HTTP request begins with it.
const HANDSHAKE_RECORD: u8 = 22;
/// Maximum time for which the rest of a request without TLS is read and discarded. If a socket is closed with
/// unread data, the kernel resets the connection and the client might not receive the response.
const DISCARD_WITHIN: Duration = Duration::from_secs(1);
/// Maximum number of bytes that are discarded.
const MAX_DISCARDED: u64 = 1 << 20;

/// A connection that is ready for requests.
pub(super) struct Opened {
    pub(super) stream: ClientStream,
    pub(super) protocol: Protocol,
    /// The port requires client certificates, and the client has presented none.
    pub(super) lacks_certificate: bool,
}

/// Opens a connection. Returns `None` if the client disconnected, was too slow, or made a mistake that it was
/// informed of.
pub(super) async fn open(
    stream: TcpStream,
    peer: SocketAddr,
    tls: Option<&TlsConfig>,
    idle: Duration,
) -> Option<Opened> {
    // Nagle's algorithm would delay tokens. A connection is served even if the option cannot be set.
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

/// Reason why a connection has no TLS.
enum Failed {
    /// The client closed the connection before it sent a byte, as health checks over TCP do.
    Disconnected,
    Tls(io::Error),
    PlainHttp(TcpStream),
}

async fn shake_hands(stream: TcpStream, tls: &TlsConfig) -> Result<TlsStream<TlsSocket>, Failed> {
    let mut first = [0];
    match stream.peek(&mut first).await {
        Ok(0) | Err(_) => return Err(Failed::Disconnected),
        // Every method of HTTP begins with a letter, so this is a request without TLS.
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

/// Determines the protocol of a connection with TLS: the one that was agreed on in the handshake, else by the
/// first bytes.
async fn secured(mut stream: Box<TlsStream<TlsSocket>>, tls: &TlsConfig) -> Option<Opened> {
    let session = stream.get_ref().1;
    let lacks_certificate =
        tls.needs_client_certificates() && session.peer_certificates().is_none();
    let protocol = match session.alpn_protocol() {
        Some(b"h2") => Protocol::Http2,
        Some(_) => Protocol::Http1,
        // `fill_buf` does not consume the bytes: the HTTP library reads them again.
        None => protocol::by_first_bytes(stream.fill_buf().await.ok()?),
    };
    Some(Opened {
        stream: ClientStream::Tls(stream),
        protocol,
        lacks_certificate,
    })
}

/// Answers a request that was sent without TLS, and closes the connection.
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

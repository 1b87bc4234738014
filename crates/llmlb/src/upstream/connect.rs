//! Opening a connection to a backend.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustls_platform_verifier::BuilderVerifierExt;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{self, ClientConfig};

use super::limit::{CountedStream, Permit};
use super::resolve::Resolver;
use super::{BackendConnections, Stream, UpstreamError};
use crate::config::BackendUrl;
use crate::descriptors::Division;
use crate::sys;

/// After how long a silence the system asks whether the other end is still there, and how often.
const ASK_AFTER: Duration = Duration::from_secs(15);
const ASK_EVERY: Duration = Duration::from_secs(5);

/// Connects within a limit, which counts from the first question to a name server to the end of
/// the TLS handshake.
#[derive(Clone)]
pub(crate) struct Connector {
    limit: Duration,
    connections: Arc<BackendConnections>,
    resolver: Arc<Resolver>,
    /// Made when the first backend wants it: reading the system's authorities takes a while.
    tls: Arc<OnceLock<Result<TlsConnector, rustls::Error>>>,
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector").finish_non_exhaustive()
    }
}

impl Connector {
    pub(crate) fn new(limit: Duration, division: &Division) -> Self {
        Self {
            limit,
            connections: Arc::new(BackendConnections::new(division)),
            resolver: Arc::new(Resolver::new(division)),
            tls: Arc::default(),
        }
    }

    /// All connections that it has opened.
    pub(crate) fn connections(&self) -> &Arc<BackendConnections> {
        &self.connections
    }

    /// Gets ready for TLS, which takes a while: before anybody waits for it.
    pub(crate) fn prepare_tls(&self) {
        let _ = self.tls.get_or_init(tls);
    }

    /// Opens a connection for a request.
    pub(crate) async fn connect(&self, url: &BackendUrl) -> Result<Stream, UpstreamError> {
        let permit = self
            .connections
            .acquire()
            .map_err(UpstreamError::LocalExhausted)?;
        self.connect_with(url, permit).await
    }

    /// The right to a connection for a probe, which other probes may have to give back first.
    pub(crate) async fn permit_for_probe(&self) -> Result<Permit, UpstreamError> {
        let permit = self.connections.acquire_for_probe().await;
        permit.map_err(UpstreamError::LocalExhausted)
    }

    pub(super) async fn connect_with(
        &self,
        url: &BackendUrl,
        permit: Permit,
    ) -> Result<Stream, UpstreamError> {
        match timeout(self.limit, self.open(url, permit)).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(UpstreamError::from_connect(&error)),
            Err(_) => Err(UpstreamError::HostUnreachable(format!(
                "no connection within {} s",
                self.limit.as_secs_f32()
            ))),
        }
    }

    async fn open(&self, url: &BackendUrl, permit: Permit) -> io::Result<Stream> {
        let stream = CountedStream::new(self.tcp(url).await?, permit);
        // A request must not wait for the acknowledgement of the one before.
        stream.set_nodelay(true)?;
        // A machine that lost its power says nothing more.
        let alive = TcpKeepalive::new()
            .with_time(ASK_AFTER)
            .with_interval(ASK_EVERY);
        SockRef::from(&*stream).set_tcp_keepalive(&alive)?;
        if !url.is_https() {
            return Ok(Stream::Plain(stream));
        }
        let tls = match self.tls.get_or_init(tls) {
            Ok(tls) => tls,
            Err(error) => return Err(io::Error::other(format!("no TLS: {error}"))),
        };
        let name = ServerName::try_from(host(url).to_owned()).map_err(io::Error::other)?;
        let stream = tls.connect(name, stream).await?;
        Ok(Stream::Tls(Box::new(stream)))
    }

    async fn tcp(&self, url: &BackendUrl) -> io::Result<TcpStream> {
        let port = url.authority().port_u16().unwrap_or_default();
        if let Ok(address) = host(url).parse::<IpAddr>() {
            return connect(SocketAddr::new(address, port)).await;
        }
        let addresses = self.resolver.lookup(host(url), port).await?;
        let mut failed = None;
        // One address that swallows packets must not use up the time of the others.
        let share = self.limit / u32::try_from(addresses.len().max(1)).unwrap_or(1);
        for address in addresses {
            match timeout_at(Instant::now() + share, connect(address)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => note(&mut failed, error),
                Err(_) => note(&mut failed, io::ErrorKind::TimedOut.into()),
            }
        }
        Err(failed.unwrap_or_else(|| io::Error::other("its name has no address")))
    }
}

/// Connects. Whenever the connection is dropped from then on, also before it is established, it is
/// reset: its port is free at once, and not in TIME_WAIT. Otherwise a client that cancels requests
/// would use up all ports. The backend has nothing left to read then, or is not to go on with it;
/// [`Stream::close_in_order`] is for connections of which neither is true.
async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    SockRef::from(&socket).set_linger(Some(Duration::ZERO))?;
    socket.connect(address).await
}

/// Of several addresses that fail, one where the other end is at fault says more than one that this
/// machine cannot even try, such as `::1` where there is no IPv6.
fn note(failed: &mut Option<io::Error>, error: io::Error) {
    if failed.as_ref().is_none_or(sys::limits::is_shortage) {
        *failed = Some(error);
    }
}

/// A name or an address, without the brackets that a URL needs.
fn host(url: &BackendUrl) -> &str {
    url.authority().host().trim_matches(['[', ']'])
}

/// The system's authorities are trusted, so that a company's own count.
fn tls() -> Result<TlsConnector, rustls::Error> {
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_platform_verifier()?
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_cannot_be_tried_here_does_not_hide_what_another_said() {
        let none = || io::Error::from(rustix::io::Errno::ADDRNOTAVAIL);
        let refused = || io::Error::from(rustix::io::Errno::CONNREFUSED);
        for errors in [[none(), refused()], [refused(), none()]] {
            let mut failed = None;
            for error in errors {
                note(&mut failed, error);
            }
            let kind = failed.map(|error| error.kind());
            assert_eq!(kind, Some(io::ErrorKind::ConnectionRefused));
        }
    }
}

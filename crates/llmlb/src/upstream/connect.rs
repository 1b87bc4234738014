//! Opens connections to backends.

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
use crate::atomic_duration::AtomicDuration;
use crate::config::BackendUrl;
use crate::descriptors::Division;
use crate::sys;

/// Idle time of a backend connection before the first TCP keep-alive probe, and interval of further
/// probes. They detect a host that has vanished.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// Opens connections within a time limit, which includes the DNS lookup and the TLS handshake.
#[derive(Clone)]
pub(crate) struct Connector {
    limit: Arc<AtomicDuration>,
    connections: Arc<BackendConnections>,
    resolver: Arc<Resolver>,
    /// TLS configuration, created only for the first backend with an `https` URL: loading the
    /// system's root certificates is slow.
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
            limit: Arc::new(AtomicDuration::new(limit)),
            connections: Arc::new(BackendConnections::new(division)),
            resolver: Arc::new(Resolver::new(division)),
            tls: Arc::default(),
        }
    }

    /// Applies `upstream.connect_timeout` of a reloaded configuration to connections that begin
    /// from now on.
    pub(crate) fn set_limit(&self, limit: Duration) {
        self.limit.set(limit);
    }

    pub(crate) fn connections(&self) -> &Arc<BackendConnections> {
        &self.connections
    }

    /// Loads the root certificates for TLS, so that no request waits for it.
    pub(crate) fn prepare_tls(&self) {
        let _ = self.tls.get_or_init(tls);
    }

    /// Opens a connection to a backend for a request. Fails if all permitted connections are in
    /// use.
    pub(crate) async fn connect(&self, url: &BackendUrl) -> Result<Stream, UpstreamError> {
        let permit = self
            .connections
            .acquire()
            .map_err(UpstreamError::LocalExhausted)?;
        self.connect_with(url, permit).await
    }

    /// Acquires the permit to open a connection for a probe. If requests use all connections, the
    /// probe uses a permit that is reserved for probes, and waits while other probes hold all of
    /// these.
    pub(crate) async fn permit_for_probe(&self) -> Result<Permit, UpstreamError> {
        let permit = self.connections.acquire_for_probe().await;
        permit.map_err(UpstreamError::LocalExhausted)
    }

    pub(super) async fn connect_with(
        &self,
        url: &BackendUrl,
        permit: Permit,
    ) -> Result<Stream, UpstreamError> {
        let limit = self.limit.get();
        match timeout(limit, self.open(url, permit)).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(UpstreamError::from_connect(&error)),
            Err(_) => Err(UpstreamError::HostUnreachable(format!(
                "no connection within {} s",
                limit.as_secs_f32()
            ))),
        }
    }

    async fn open(&self, url: &BackendUrl, permit: Permit) -> io::Result<Stream> {
        let stream = CountedStream::new(self.tcp(url).await?, permit);
        // Disable Nagle's algorithm, which would delay a request until the packet sent earlier is
        // acknowledged.
        stream.set_nodelay(true)?;
        // Enable TCP keep-alive: a host that lost power sends no FIN, and its connection would stay
        // open forever.
        let alive = TcpKeepalive::new()
            .with_time(KEEPALIVE_AFTER)
            .with_interval(KEEPALIVE_INTERVAL);
        SockRef::from(&*stream).set_tcp_keepalive(&alive)?;
        if !url.is_https() {
            return Ok(Stream::Plain(stream));
        }
        let tls = match self.tls.get_or_init(tls) {
            Ok(tls) => tls,
            Err(error) => {
                let why = format!("cannot set up TLS on this machine: {error}");
                return Err(io::Error::other(why));
            }
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
        // Divide the time limit among the addresses of the host. Otherwise one address that drops
        // packets would use up the whole time, and the remaining addresses would not be tried.
        let share = self.limit.get() / u32::try_from(addresses.len().max(1)).unwrap_or(1);
        for address in addresses {
            match timeout_at(Instant::now() + share, connect(address)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => keep_best_error(&mut failed, error),
                Err(_) => keep_best_error(&mut failed, io::ErrorKind::TimedOut.into()),
            }
        }
        Err(failed.unwrap_or_else(|| io::Error::other("the host name has no address")))
    }
}

/// Opens a connection that is reset when it is dropped, also before it is established. So its local port is
/// free at once and does not stay in TIME_WAIT. Otherwise a client that cancels requests could use up all
/// ports. A reset discards data that the backend has not read; [`Stream::close_in_order`] avoids that.
async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    SockRef::from(&socket).set_linger(Some(Duration::ZERO))?;
    socket.connect(address).await
}

/// Keeps the more useful one of two connection errors, since a host may have several addresses. An
/// error of the backend replaces a local one, such as that of `::1` on a host without IPv6.
fn keep_best_error(failed: &mut Option<io::Error>, error: io::Error) {
    if failed.as_ref().is_none_or(sys::limits::is_shortage) {
        *failed = Some(error);
    }
}

/// Returns the host name or address of a URL, without the brackets of IPv6 addresses.
fn host(url: &BackendUrl) -> &str {
    url.authority().host().trim_matches(['[', ']'])
}

/// Configures TLS with the root certificates of the system, so that private certificate authorities work.
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
    fn local_error_of_one_address_does_not_hide_the_backends_error() {
        let none = || io::Error::from(rustix::io::Errno::ADDRNOTAVAIL);
        let refused = || io::Error::from(rustix::io::Errno::CONNREFUSED);
        for errors in [[none(), refused()], [refused(), none()]] {
            let mut failed = None;
            for error in errors {
                keep_best_error(&mut failed, error);
            }
            let kind = failed.map(|error| error.kind());
            assert_eq!(kind, Some(io::ErrorKind::ConnectionRefused));
        }
    }
}

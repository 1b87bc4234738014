//! Tunnel from a port without TLS to a server with TLS.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use testkit::certificates::Issued;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_util::task::TaskTracker;

#[derive(Clone)]
pub(crate) struct Options<'a> {
    /// Protocols that the client offers. Empty: no ALPN.
    pub(crate) alpn: &'a [&'a str],
    /// Certificate that the client presents.
    pub(crate) certificate: Option<&'a Issued>,
}

pub(crate) const H1: Options<'_> = Options {
    alpn: &["http/1.1"],
    certificate: None,
};
pub(crate) const H2: Options<'_> = Options {
    alpn: &["h2"],
    certificate: None,
};

/// Returns the configuration of a client that trusts one authority.
pub(crate) fn client_config(authority: &Path, options: &Options<'_>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    let root = CertificateDer::from_pem_file(authority).unwrap();
    roots.add(root).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match options.certificate {
        None => builder.with_no_client_auth(),
        Some(issued) => {
            let chain = vec![CertificateDer::from_pem_file(&issued.cert).unwrap()];
            let key = PrivateKeyDer::from_pem_file(&issued.key).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    };
    config.alpn_protocols = options
        .alpn
        .iter()
        .map(|name| name.as_bytes().to_vec())
        .collect();
    Arc::new(config)
}

/// Opens a port whose connections are passed to the server over TLS. It stays open until the test program ends.
pub(crate) fn open(server: SocketAddr, config: Arc<ClientConfig>) -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let listener = TcpListener::from_std(listener).unwrap();
            let connector = TlsConnector::from(config);
            let tunnels = TaskTracker::new();
            while let Ok((client, _)) = listener.accept().await {
                tunnels.spawn(pass(client, server, connector.clone()));
            }
        });
    });
    address
}

async fn pass(mut client: TcpStream, server: SocketAddr, connector: TlsConnector) {
    let name = ServerName::try_from("localhost").unwrap();
    let Ok(stream) = TcpStream::connect(server).await else {
        return;
    };
    let _ = (stream.set_nodelay(true), client.set_nodelay(true));
    // If the handshake fails, the client sees its connection closed.
    if let Ok(mut secured) = connector.connect(name, stream).await {
        let _ = tokio::io::copy_bidirectional(&mut client, &mut secured).await;
    }
}

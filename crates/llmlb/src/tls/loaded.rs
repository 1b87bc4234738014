//! The server's certificate and key, loaded and ready for handshakes.

use std::sync::Arc;
use std::time::SystemTime;

use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio_rustls::rustls::{self, RootCertStore, ServerConfig};

use super::certificate::CertificateInfo;
use super::error::TlsError;
use super::files::{Checksum, TlsFiles};

/// Protocols that the server offers to clients during the handshake, the preferred one first.
pub(super) const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Certificate, key and authorities of client certificates, as they were in their files at one time.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) config: Arc<ServerConfig>,
    pub(super) certificate: CertificateInfo,
    pub(super) checksum: Checksum,
    pub(super) at: SystemTime,
}

impl Loaded {
    pub(super) fn parse(files: &TlsFiles<'_>) -> Result<Self, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let chain = files.chain()?;
        let certificate = CertificateInfo::parse(&chain[0]).map_err(|why| files.bad_chain(why))?;
        let key = files.private_key()?;
        let certified = CertifiedKey::from_der(chain, key, &provider);
        let certified = certified.map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => files.mismatch(),
            rustls::Error::InvalidCertificate(_) => files.bad_chain(error),
            _ => files.bad_key(format!("the private key cannot be used: {error}")),
        })?;
        let authorities = files.client_authorities()?;
        let config = server_config(certified, authorities, files, provider)?;
        Ok(Self {
            config: Arc::new(config),
            certificate,
            checksum: files.checksum(),
            at: SystemTime::now(),
        })
    }
}

fn server_config(
    certified: CertifiedKey,
    authorities: Option<Vec<CertificateDer<'static>>>,
    files: &TlsFiles<'_>,
    provider: Arc<CryptoProvider>,
) -> Result<ServerConfig, TlsError> {
    let failed = |error: rustls::Error| TlsError::new(format!("cannot set up TLS: {error}"));
    let asks_clients = authorities.is_some();
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(failed)?;
    let builder = match authorities {
        None => builder.with_no_client_auth(),
        Some(authorities) => {
            let mut roots = RootCertStore::empty();
            for (number, authority) in authorities.into_iter().enumerate() {
                roots.add(authority).map_err(|error| {
                    files.bad_client_ca(format!("certificate {}: {error}", number + 1))
                })?;
            }
            // Accept clients without a certificate in the handshake, so that their requests get a
            // readable error and health checks work. `server/serve.rs` rejects all other requests
            // of such clients.
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .allow_unauthenticated()
                .build()
                .map_err(|error| files.bad_client_ca(error))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
    config.alpn_protocols = ALPN.map(<[u8]>::to_vec).into();
    // Resume sessions with tickets, which clients store: a store on the server would be shared by
    // all threads. A resumed session is not checked against the authorities again, so servers that
    // require client certificates resume none.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    if asks_clients {
        config.send_tls13_tickets = 0;
    } else {
        config.ticketer = ring::Ticketer::new().map_err(failed)?;
        // Send one ticket for each handshake: a client that opens several connections may reuse it.
        config.send_tls13_tickets = 1;
    }
    Ok(config)
}

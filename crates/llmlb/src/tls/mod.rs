//! TLS for clients: certificate, key and authorities of client certificates, and their replacement while
//! the server runs.
//!
//! The files are read again every second. New content replaces the old one only if all files can be used
//! together. Otherwise the old certificate stays in use, and the problem is logged and shown in `/status`
//! until it is fixed. Open connections keep the certificate with which they began.

mod certificate;
mod error;
mod files;
mod loaded;
mod pem;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use serde_json::Value;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub(crate) use certificate::{CertificateInfo, Validity};
pub(crate) use error::TlsError;
pub(crate) use files::TlsPaths;

use crate::config::ServerConfig;
use crate::episode::{Episode, Event};
use crate::lock::rfc3339;
use files::TlsFiles;
use loaded::Loaded;

/// Interval at which the certificate and key files are read again.
const CHECK_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct TlsConfig {
    paths: TlsPaths,
    current: ArcSwap<Loaded>,
    /// Problem of the last attempt to load the files; `None` if the content of the files is in use.
    failure: Mutex<Option<TlsError>>,
    failures: Episode,
    /// True after the expiry of the current certificate was logged, so that it is logged once.
    is_expiry_logged: AtomicBool,
    pub(crate) handshakes: Handshakes,
}

/// Numbers of TLS handshakes since the start of the server, for `/status`.
#[derive(Debug, Default)]
pub(crate) struct Handshakes {
    pub(crate) completed: AtomicU64,
    /// Number of handshakes that failed or took too long.
    pub(crate) failed: AtomicU64,
    /// Number of connections whose client sent plain HTTP to the https port.
    pub(crate) plain_http: AtomicU64,
}

/// Result of reading the certificate and key files again.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reload {
    /// The content of the files is already in use.
    Unchanged,
    Replaced,
}

impl TlsConfig {
    /// Loads the certificate and key files that the settings name. Returns `None` if they name
    /// none.
    pub(crate) fn load(settings: &ServerConfig) -> Result<Option<Arc<Self>>, TlsError> {
        let Some(paths) = paths(settings) else {
            return Ok(None);
        };
        let loaded = Loaded::parse(&TlsFiles::read(&paths)?)?;
        Ok(Some(Arc::new(Self {
            paths,
            current: ArcSwap::from_pointee(loaded),
            failure: Mutex::default(),
            failures: Episode::default(),
            is_expiry_logged: AtomicBool::new(false),
            handshakes: Handshakes::default(),
        })))
    }

    /// Returns the acceptor for the handshake of a new connection, with the current certificate.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.current.load().config))
    }

    /// True if requests need a client certificate. Health checks never need one.
    pub(crate) fn needs_client_certificates(&self) -> bool {
        self.paths.client_ca.is_some()
    }

    /// Returns the certificate that new connections get.
    pub(crate) fn certificate(&self) -> CertificateInfo {
        self.current.load().certificate.clone()
    }

    /// Reads the certificate and key files again, and uses them for new connections if they fit
    /// together. Blocks while the disk is read.
    ///
    /// Called on SIGHUP: unlike the periodic check, it reports a problem at once.
    pub(crate) fn reload(&self) -> Result<Reload, TlsError> {
        let result = self.replace();
        match &result {
            Ok(_) => self.succeeded(),
            Err(error) => {
                *self.failure() = Some(error.clone());
                self.log(self.failures.occurred(Instant::now()));
            }
        }
        result
    }

    fn replace(&self) -> Result<Reload, TlsError> {
        let files = TlsFiles::read(&self.paths)?;
        let current = self.current.load();
        if files.checksum() == current.checksum {
            return Ok(Reload::Unchanged);
        }
        let loaded = Loaded::parse(&files)?;
        let is_expired = |one: &Loaded| one.certificate.validity(loaded.at) == Validity::Expired;
        if is_expired(&loaded) && !is_expired(&current) {
            let end = rfc3339(loaded.certificate.not_after);
            return Err(files.bad_chain(format!("the new certificate expired at {end}")));
        }
        tracing::info!(
            "loaded the new certificate for {}",
            loaded.certificate.summary()
        );
        if let Some(warning) = loaded.certificate.warning(loaded.at) {
            tracing::warn!("{warning}");
        }
        self.is_expiry_logged
            .store(is_expired(&loaded), Ordering::Relaxed);
        self.current.store(Arc::new(loaded));
        Ok(Reload::Replaced)
    }

    /// Reads the certificate and key files again, and logs problems. A problem is logged only if
    /// the next check finds it too: the program that renews the certificate writes one file after
    /// the other.
    fn check(&self) {
        match self.replace() {
            Ok(_) => self.succeeded(),
            Err(error) => {
                let before = self.failure().replace(error.clone());
                if before.is_some_and(|before| before == error) {
                    self.log(self.failures.occurred(Instant::now()));
                }
            }
        }
        let certificate = self.certificate();
        if certificate.validity(SystemTime::now()) == Validity::Expired
            && !self.is_expiry_logged.swap(true, Ordering::Relaxed)
            && let Some(warning) = certificate.warning(SystemTime::now())
        {
            tracing::warn!("{warning}");
        }
    }

    fn succeeded(&self) {
        *self.failure() = None;
        self.log(self.failures.end(Instant::now()));
    }

    fn log(&self, event: Option<Event>) {
        let why = || {
            let failure = self.failure();
            failure
                .as_ref()
                .map(TlsError::with_hint)
                .unwrap_or_default()
        };
        match event {
            None => {}
            Some(Event::Began) => tracing::warn!(
                "cannot load the new certificate, the old one stays in use: {}",
                why()
            ),
            Some(Event::Continues { since, .. }) => tracing::warn!(
                "still cannot load the new certificate after {} s, the old one stays in use: {}",
                since.as_secs(),
                why()
            ),
            Some(Event::Ended { .. }) => {
                tracing::info!("the files of the certificate can be used again");
            }
        }
    }

    /// Logs problems of the certificate, such as its expiry, when the server starts.
    pub(crate) fn log_warnings(&self) {
        let now = SystemTime::now();
        let certificate = self.certificate();
        if let Some(warning) = certificate.warning(now) {
            tracing::warn!("{warning}");
        }
        let is_expired = certificate.validity(now) == Validity::Expired;
        self.is_expiry_logged.store(is_expired, Ordering::Relaxed);
    }

    /// True while the files on disk cannot be used and an older certificate stays in use.
    pub(crate) fn is_failing(&self) -> bool {
        self.failure().is_some()
    }

    /// Returns the object `tls` of `/status` (docs/status-json.md).
    pub(crate) fn json(&self) -> Value {
        let current = self.current.load();
        let mut json = current.certificate.json();
        let count = |counter: &AtomicU64| Value::from(counter.load(Ordering::Relaxed));
        json["loaded_at"] = rfc3339(current.at).into();
        json["error"] = self.failure().as_ref().map(ToString::to_string).into();
        json["client_certificates"] = self.needs_client_certificates().into();
        json["handshakes"] = count(&self.handshakes.completed);
        json["failed_handshakes"] = count(&self.handshakes.failed);
        json["plain_http"] = count(&self.handshakes.plain_http);
        json
    }

    fn failure(&self) -> MutexGuard<'_, Option<TlsError>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks the certificate and key files every second until `stop` is cancelled.
pub(crate) async fn watch(tls: Arc<TlsConfig>, stop: CancellationToken) {
    // Read the files on a thread of their own: a file system that does not respond must not block
    // the thread that handles signals.
    let blocking = TaskTracker::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(CHECK_EVERY) => {}
        }
        let tls = Arc::clone(&tls);
        let check = blocking.spawn_blocking(move || tls.check());
        tokio::select! {
            () = stop.cancelled() => return,
            _ = check => {}
        }
    }
}

fn paths(settings: &ServerConfig) -> Option<TlsPaths> {
    let given = |path: &Option<PathBuf>| path.clone();
    let (cert, key) = given(&settings.tls_cert).zip(given(&settings.tls_key))?;
    Some(TlsPaths {
        cert,
        key,
        client_ca: settings.tls_client_ca.clone(),
    })
}

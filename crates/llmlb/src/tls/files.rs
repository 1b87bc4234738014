//! Reads the certificate and key files of a TLS configuration.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::error::TlsError;
use super::pem::{self, Section};
use crate::sys;

/// Maximum size of a certificate or key file. A chain has a few KiB, and all authorities that
/// browsers trust 250 KiB.
const MAX_FILE: u64 = 1 << 20;

const CERT: &str = "server.tls_cert";
const KEY: &str = "server.tls_key";
const CLIENT_CA: &str = "server.tls_client_ca";

/// Paths of the certificate and key files, as the settings name them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TlsPaths {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) client_ca: Option<PathBuf>,
}

/// Content of the certificate and key files at one time.
pub(super) struct TlsFiles<'a> {
    paths: &'a TlsPaths,
    cert: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

/// Checksum of the content of all certificate and key files, by which a change is detected.
pub(super) type Checksum = [u8; 32];

impl<'a> TlsFiles<'a> {
    pub(super) fn read(paths: &'a TlsPaths) -> Result<Self, TlsError> {
        let client_ca = paths.client_ca.as_deref();
        Ok(Self {
            paths,
            cert: read(CERT, &paths.cert)?.0,
            key: read_key(&paths.key)?,
            client_ca: client_ca
                .map(|path| Ok(read(CLIENT_CA, path)?.0))
                .transpose()?,
        })
    }

    pub(super) fn checksum(&self) -> Checksum {
        let mut sum = Sha256::new();
        let client_ca = self.client_ca.as_deref().unwrap_or_default();
        for part in [&self.cert, &self.key, client_ca] {
            sum.update((part.len() as u64).to_le_bytes());
            sum.update(part);
        }
        sum.finalize().into()
    }

    /// Returns the certificates of the server's chain, the server's own first. Never empty.
    pub(super) fn chain(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        certificates(CERT, &self.paths.cert, &self.cert)
    }

    /// Returns the certificates of the authorities that sign client certificates.
    pub(super) fn client_authorities(
        &self,
    ) -> Result<Option<Vec<CertificateDer<'static>>>, TlsError> {
        let pair = self.paths.client_ca.as_ref().zip(self.client_ca.as_ref());
        pair.map(|(path, text)| certificates(CLIENT_CA, path, text))
            .transpose()
    }

    pub(super) fn private_key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        let path = &self.paths.key;
        let sections = sections(KEY, path, &self.key)?;
        let Some(key) = sections.iter().find(|section| section.is_private_key()) else {
            let what = if sections.iter().any(Section::is_certificate) {
                "the file contains a certificate and no private key"
            } else {
                "the file contains no private key"
            };
            return Err(TlsError::in_file(KEY, path, what).hint(
                "name the file that begins with `-----BEGIN PRIVATE KEY-----`: --tls-key FILE",
            ));
        };
        if key.is_encrypted() {
            let (line, shown) = (key.line, path.display());
            let what = format!("line {line}: the private key is protected by a passphrase");
            return Err(TlsError::in_file(KEY, path, what).hint(format!(
                "remove the passphrase: (umask 077; openssl pkey -in {shown} -out {shown}.plain)"
            )));
        }
        key.decode()
            .map_err(|why| TlsError::in_file(KEY, path, why))
    }

    /// Returns the error for a certificate chain that can be parsed but not used.
    pub(super) fn bad_chain(&self, what: impl std::fmt::Display) -> TlsError {
        TlsError::in_file(CERT, &self.paths.cert, what)
    }

    pub(super) fn bad_key(&self, what: impl std::fmt::Display) -> TlsError {
        TlsError::in_file(KEY, &self.paths.key, what)
    }

    pub(super) fn bad_client_ca(&self, what: impl std::fmt::Display) -> TlsError {
        let none = Path::new("");
        TlsError::in_file(
            CLIENT_CA,
            self.paths.client_ca.as_deref().unwrap_or(none),
            what,
        )
    }

    /// Returns the error for a key that does not belong to the certificate.
    pub(super) fn mismatch(&self) -> TlsError {
        let (cert, key) = (self.paths.cert.display(), self.paths.key.display());
        TlsError::new(format!(
            "the key {key} ({KEY}) does not belong to the first certificate of {cert} ({CERT})"
        ))
        .hint(format!(
            "compare the public keys: openssl x509 -in {cert} -noout -pubkey; openssl pkey -in {key} \
             -pubout"
        ))
    }
}

/// Reads a file. The second value is the mode of the file, if other users may access it.
fn read(setting: &str, path: &Path) -> Result<(Vec<u8>, Option<u32>), TlsError> {
    let read = || -> io::Result<_> {
        let (file, exposed) = sys::secret_file::open(path)?;
        let mut content = Vec::new();
        file.take(MAX_FILE + 1).read_to_end(&mut content)?;
        Ok((content, exposed))
    };
    let (content, exposed) = read().map_err(|error| {
        let failed = TlsError::in_file(setting, path, format!("cannot read the file: {error}"));
        match error.kind() {
            io::ErrorKind::PermissionDenied => failed.hint(format!(
                "let the user of the server read the file: ls -lL {}",
                path.display()
            )),
            _ => failed,
        }
    })?;
    if content.len() as u64 > MAX_FILE {
        let limit = MAX_FILE >> 20;
        let what = format!("the file is larger than {limit} MiB");
        return Err(TlsError::in_file(setting, path, what));
    }
    Ok((content, exposed))
}

/// Reads the private key. Rejects a file of this user that other users may access, as ssh does, apart from
/// root's file that a group may read.
fn read_key(path: &Path) -> Result<Vec<u8>, TlsError> {
    let (content, exposed) = read(KEY, path)?;
    if let Some(mode) = exposed {
        let what = format!("other users may access the private key (mode {mode:04o})");
        let hint = format!("chmod 600 {}", path.display());
        return Err(TlsError::in_file(KEY, path, what).hint(hint));
    }
    Ok(content)
}

fn sections<'a>(
    setting: &str,
    path: &Path,
    content: &'a [u8],
) -> Result<Vec<Section<'a>>, TlsError> {
    let sections = pem::sections(content).map_err(|why| TlsError::in_file(setting, path, why))?;
    if !sections.is_empty() {
        return Ok(sections);
    }
    let shown = path.display();
    let command = if setting == KEY { "pkey" } else { "x509" };
    Err(
        TlsError::in_file(setting, path, "the file is empty or not PEM").hint(format!(
            "convert the file to PEM: (umask 077; openssl {command} -inform der -in {shown} -out {shown}.pem)"
        )),
    )
}

/// Decodes all certificates of a PEM file. Other sections are ignored: some tools write the private
/// key into the same file.
fn certificates(
    setting: &str,
    path: &Path,
    content: &[u8],
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let sections = sections(setting, path, content)?;
    let found = sections.iter().filter(|section| section.is_certificate());
    let found: Vec<_> = found
        .map(Section::decode)
        .collect::<Result<_, String>>()
        .map_err(|why| TlsError::in_file(setting, path, why))?;
    if !found.is_empty() {
        return Ok(found);
    }
    let first = &sections[0];
    let what = format!(
        "the file contains no certificate; line {} begins `{}`",
        first.line, first.label
    );
    Err(TlsError::in_file(setting, path, what).hint(format!(
        "name the file that begins with `-----BEGIN CERTIFICATE-----`: {setting} = \"FILE\""
    )))
}

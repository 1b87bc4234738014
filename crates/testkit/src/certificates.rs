//! Certificates for tests, created by openssl.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::requirements::skip;

/// Names of a certificate for a server on this machine.
pub const LOCAL: &str = "DNS:localhost,IP:127.0.0.1";

/// Certificate authority whose files are in one directory.
#[derive(Debug)]
pub struct Authority {
    directory: PathBuf,
    name: String,
    /// Certificate of the authority, in PEM.
    pub certificate: PathBuf,
}

/// Certificate with its key, both in PEM.
#[derive(Clone, Debug)]
pub struct Issued {
    /// Certificate, signed by the authority.
    pub cert: PathBuf,
    /// Private key without a passphrase, in PKCS#8.
    pub key: PathBuf,
}

impl Authority {
    /// Creates an authority. Returns `None` if there is no openssl, and the calling test is skipped.
    pub fn create(directory: &Path, name: &str) -> Option<Self> {
        let is_created = openssl(
            directory,
            &format!(
                "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN={name} \
                 -addext basicConstraints=critical,CA:TRUE -out {name}.pem -keyout {name}.key"
            ),
        );
        if !is_created {
            skip("openssl").expect("openssl");
            return None;
        }
        Some(Self {
            directory: directory.to_owned(),
            name: name.to_owned(),
            certificate: directory.join(format!("{name}.pem")),
        })
    }

    /// Issues a certificate with these alternative names, in the notation of openssl. Negative days make an
    /// expired one.
    pub fn issue(&self, name: &str, names: &str, days: i32) -> Issued {
        let extensions = format!("subjectAltName={names}\nbasicConstraints=CA:FALSE\n");
        fs::write(self.directory.join(format!("{name}.ext")), extensions).expect("a file");
        self.openssl(&format!(
            "req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN={name} -out {name}.csr \
             -keyout {name}.key"
        ));
        let ca = &self.name;
        self.openssl(&format!(
            "x509 -req -in {name}.csr -CA {ca}.pem -CAkey {ca}.key -CAcreateserial -days {days} \
             -extfile {name}.ext -out {name}.pem"
        ));
        Issued {
            cert: self.directory.join(format!("{name}.pem")),
            key: self.directory.join(format!("{name}.key")),
        }
    }

    /// Runs openssl in the directory of the authority, where its relative paths are resolved.
    pub fn openssl(&self, arguments: &str) {
        assert!(openssl(&self.directory, arguments), "openssl is gone");
    }
}

fn openssl(directory: &Path, arguments: &str) -> bool {
    let mut command = Command::new("openssl");
    command
        .args(arguments.split_whitespace())
        .current_dir(directory)
        .stdin(Stdio::null());
    let Ok(outcome) = command.output() else {
        return false;
    };
    assert!(outcome.status.success(), "{outcome:?}");
    true
}

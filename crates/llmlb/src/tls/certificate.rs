//! Names and validity of the server's certificate, for the log, `/status` and `llmlb check`.

use std::net::IpAddr;
use std::time::SystemTime;

use serde_json::{Value, json};
use x509_cert::der::Decode;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

use crate::lock::rfc3339;
use crate::text;

/// Maximum number of a certificate's names that are kept. Certificates of large sites have
/// thousands.
const MAX_NAMES: usize = 100;
/// Maximum length of a certificate's name that is kept. DNS allows 253 characters.
const MAX_NAME: usize = 253;

/// Names and validity of the server's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CertificateInfo {
    /// DNS names and IP addresses for which the certificate is valid. If it has none, the list
    /// contains its subject.
    pub(super) names: Vec<String>,
    /// True if the certificate has neither DNS names nor addresses. Clients then reject it for
    /// every host.
    pub(super) is_nameless: bool,
    pub(super) not_before: SystemTime,
    pub(super) not_after: SystemTime,
}

/// State of a certificate's validity at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Validity {
    Valid,
    NotYetValid,
    Expired,
}

impl CertificateInfo {
    /// Parses a certificate in DER. The error is the reason, for display.
    pub(super) fn parse(der: &[u8]) -> Result<Self, String> {
        let certificate = x509_cert::Certificate::from_der(der)
            .map_err(|error| format!("not a valid certificate: {error}"))?;
        let content = certificate.tbs_certificate;
        let alternative = content
            .get::<SubjectAltName>()
            .map_err(|error| format!("the names of the certificate are invalid: {error}"))?;
        let mut names: Vec<String> = alternative
            .map(|(_, names)| names.0)
            .unwrap_or_default()
            .iter()
            .filter_map(name)
            .take(MAX_NAMES)
            .collect();
        let is_nameless = names.is_empty();
        if is_nameless {
            names.push(shown(&content.subject.to_string()));
        }
        Ok(Self {
            names,
            is_nameless,
            not_before: content.validity.not_before.to_system_time(),
            not_after: content.validity.not_after.to_system_time(),
        })
    }

    /// End of the validity.
    pub(crate) fn not_after(&self) -> SystemTime {
        self.not_after
    }

    pub(crate) fn validity(&self, now: SystemTime) -> Validity {
        if now > self.not_after {
            Validity::Expired
        } else if now < self.not_before {
            Validity::NotYetValid
        } else {
            Validity::Valid
        }
    }

    /// Returns the certificate's names and the end of its validity as text.
    pub(crate) fn summary(&self) -> String {
        let names = match self.names.as_slice() {
            [names @ .., last] if names.len() > 4 => {
                format!("{}, … {last}", names[..3].join(", "))
            }
            names => names.join(", "),
        };
        format!("{names}, valid until {}", rfc3339(self.not_after))
    }

    /// Returns a warning if the certificate has expired, is not valid yet or has no names, since
    /// clients reject it then.
    pub(crate) fn warning(&self, now: SystemTime) -> Option<String> {
        match self.validity(now) {
            Validity::Expired => Some(format!(
                "the certificate for {} expired at {}: clients reject it",
                self.names.join(", "),
                rfc3339(self.not_after)
            )),
            Validity::NotYetValid => Some(format!(
                "the certificate for {} is not valid before {}: clients reject it until then",
                self.names.join(", "),
                rfc3339(self.not_before)
            )),
            Validity::Valid if self.is_nameless => Some(format!(
                "the certificate ({}) has no subject alternative names: clients reject it",
                self.names.join(", ")
            )),
            Validity::Valid => None,
        }
    }

    /// Returns the fields of `tls` in `/status` (docs/status-json.md) that describe the certificate.
    pub(super) fn json(&self) -> Value {
        json!({
            "names": self.names,
            "not_before": rfc3339(self.not_before),
            "not_after": rfc3339(self.not_after),
        })
    }
}

/// Returns a certificate's DNS name or address as text. `None` for other names, which HTTP does not
/// use.
fn name(name: &GeneralName) -> Option<String> {
    match name {
        GeneralName::DnsName(name) => Some(shown(name.as_str())),
        GeneralName::IpAddress(bytes) => {
            let bytes = bytes.as_bytes();
            let four = |bytes: &[u8]| <[u8; 4]>::try_from(bytes).map(IpAddr::from);
            let sixteen = |bytes: &[u8]| <[u8; 16]>::try_from(bytes).map(IpAddr::from);
            let address = four(bytes).or_else(|_| sixteen(bytes)).ok()?;
            Some(address.to_string())
        }
        _ => None,
    }
}

fn shown(name: &str) -> String {
    text::plain(&text::shortened(name, MAX_NAME)).into_owned()
}

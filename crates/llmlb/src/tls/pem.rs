//! Parser of PEM files, which keeps the line of each section so that errors can name it.

use tokio_rustls::rustls::pki_types::pem::{self, PemObject};

const BEGIN: &[u8] = b"-----BEGIN ";
const END: &[u8] = b"-----END ";
const DASHES: &[u8] = b"-----";

/// One section of a PEM file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Section<'a> {
    /// Label of the section, such as `CERTIFICATE`.
    pub(super) label: String,
    /// Number of the line at which the section begins, from 1.
    pub(super) line: usize,
    /// The text of the section, with its first and last line.
    text: &'a [u8],
}

impl Section<'_> {
    pub(super) fn is_certificate(&self) -> bool {
        self.label == "CERTIFICATE"
    }

    pub(super) fn is_private_key(&self) -> bool {
        self.label.ends_with("PRIVATE KEY")
    }

    /// True for a private key that is protected by a passphrase, in PKCS#8 or in the older format
    /// of OpenSSL. Such a key cannot be used.
    pub(super) fn is_encrypted(&self) -> bool {
        let marks: [&[u8]; 2] = [b"ENCRYPTED", b"Proc-Type: 4"];
        self.label.starts_with("ENCRYPTED")
            || (self.text.windows(9).any(|part| part == marks[0])
                && self.text.windows(12).any(|part| part == marks[1]))
    }

    /// Decodes the content of the section. The error names the line of the section.
    pub(super) fn decode<T: PemObject>(&self) -> Result<T, String> {
        T::from_pem_slice(self.text).map_err(|error| {
            let line = self.line;
            match error {
                pem::Error::NoItemsFound => {
                    format!("line {line}: `{}` is not a supported format", self.label)
                }
                _ => format!(
                    "line {line}: the section `{}` is not valid base64",
                    self.label
                ),
            }
        })
    }
}

/// Returns all sections of a PEM file. Text between sections is ignored, as in files that `openssl
/// x509 -text` writes. The error names the line of a section that is not complete.
pub(super) fn sections(file: &[u8]) -> Result<Vec<Section<'_>>, String> {
    let mut found = Vec::new();
    let mut open: Option<(String, usize, usize)> = None;
    let mut at = 0;
    for (number, line) in file.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let (start, text) = (at, line.trim_ascii_end());
        at += line.len();
        if let Some(label) = label(text, BEGIN) {
            if let Some((label, line, _)) = open {
                return Err(no_end(&label, line));
            }
            open = Some((label, number + 1, start));
        } else if let Some(ended) = label(text, END)
            && let Some((label, line, start)) = open.take()
        {
            if ended != label {
                return Err(no_end(&label, line));
            }
            let text = &file[start..at];
            found.push(Section { label, line, text });
        }
    }
    match open {
        Some((label, line, _)) => Err(no_end(&label, line)),
        None => Ok(found),
    }
}

fn label(line: &[u8], mark: &[u8]) -> Option<String> {
    let label = line.strip_prefix(mark)?.strip_suffix(DASHES)?;
    Some(String::from_utf8_lossy(label).into_owned())
}

fn no_end(label: &str, line: usize) -> String {
    format!("line {line}: the section `{label}` has no line `-----END {label}-----`")
}

#[cfg(test)]
mod tests {
    use tokio_rustls::rustls::pki_types::CertificateDer;

    use super::*;

    #[test]
    fn sections_have_their_labels_and_lines() {
        let file =
            b"Subject: x\r\n-----BEGIN CERTIFICATE-----\r\nAAAA\r\n-----END CERTIFICATE-----\r\n\n\
            -----BEGIN EC PRIVATE KEY-----\nAQID\n-----END EC PRIVATE KEY-----";
        let found = sections(file).unwrap();
        let seen: Vec<_> = found.iter().map(|one| (&*one.label, one.line)).collect();
        assert_eq!(seen, [("CERTIFICATE", 2), ("EC PRIVATE KEY", 6)]);
        assert!(found[0].is_certificate() && found[1].is_private_key());
        let decoded: CertificateDer<'_> = found[0].decode().unwrap();
        assert_eq!(decoded.as_ref(), [0, 0, 0]);
        assert_eq!(sections(b"\x30\x82\x01\x0a"), Ok(Vec::new()));
    }

    #[test]
    fn incomplete_section_is_an_error_with_its_line() {
        for file in [
            "\n-----BEGIN CERTIFICATE-----\nAAAA\n",
            "\n-----BEGIN CERTIFICATE-----\nAAAA\n-----BEGIN CERTIFICATE-----\n",
            "\n-----BEGIN CERTIFICATE-----\nAAAA\n-----END PRIVATE KEY-----\n",
        ] {
            let why = sections(file.as_bytes()).unwrap_err();
            assert!(
                why.starts_with("line 2: the section `CERTIFICATE` has no"),
                "{why}"
            );
        }
    }

    #[test]
    fn invalid_base64_is_an_error_with_its_line() {
        let file = b"\n\n-----BEGIN CERTIFICATE-----\nA*A\n-----END CERTIFICATE-----\n";
        let found = sections(file).unwrap();
        let why = found[0].decode::<CertificateDer<'_>>().unwrap_err();
        assert_eq!(why, "line 3: the section `CERTIFICATE` is not valid base64");
    }

    #[test]
    fn both_formats_of_encrypted_keys_are_recognized() {
        let new =
            b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nAQID\n-----END ENCRYPTED PRIVATE KEY-----\n";
        let old =
            b"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES\n\nAQID\n\
            -----END RSA PRIVATE KEY-----\n";
        let plain = b"-----BEGIN PRIVATE KEY-----\nAQID\n-----END PRIVATE KEY-----\n";
        for (file, is_encrypted) in [(&new[..], true), (&old[..], true), (&plain[..], false)] {
            let found = sections(file).unwrap();
            assert!(found[0].is_private_key());
            assert_eq!(found[0].is_encrypted(), is_encrypted);
        }
    }
}

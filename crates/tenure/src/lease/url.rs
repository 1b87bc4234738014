//! URLs of lease stores: which store they name, and how they are shown without credentials.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use super::backend::Backend;
use crate::error::{Error, Kind};

/// Parts of a store's URL: `scheme://user:password@address/path?options`.
#[derive(Clone)]
pub(super) struct StoreUrl {
    pub(super) scheme: String,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    pub(super) address: String,
    pub(super) path: String,
    pub(super) options: BTreeMap<String, String>,
}

/// Connects to the store that the URL names. Also returns the URL without credentials, for
/// messages.
pub(super) fn connect(url: &str) -> Result<(Arc<dyn Backend>, String), Error> {
    let parsed = StoreUrl::parse(url)?;
    let shown = parsed.shown();
    let backend: Arc<dyn Backend> = match parsed.scheme.as_str() {
        #[cfg(feature = "redis")]
        "redis" | "rediss" | "redis+unix" => Arc::new(super::redis::Redis::connect(&parsed)?),
        #[cfg(feature = "etcd")]
        "etcd" | "etcds" => Arc::new(super::etcd::Etcd::connect(&parsed)?),
        #[cfg(feature = "dynamodb")]
        "dynamodb" => Arc::new(super::dynamodb::DynamoDb::connect(&parsed)?),
        _ => return Err(crate::store_url::unknown_scheme(&parsed.scheme, &shown)),
    };
    Ok((backend, shown))
}

impl StoreUrl {
    pub(super) fn parse(url: &str) -> Result<Self, Error> {
        let bad = |why: &str| bad_url(&without_credentials(url), why);
        let (scheme, rest) = url
            .split_once("://")
            .ok_or_else(|| bad("the URL has no scheme, such as redis://"))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (credentials, address) = authority
            .rsplit_once('@')
            .map_or((None, authority), |(user, address)| (Some(user), address));
        let (user, password) = match credentials {
            None => (None, None),
            Some(credentials) => {
                let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
                (
                    Some(decode(user)).filter(|user| !user.is_empty()),
                    Some(decode(password)).filter(|password| !password.is_empty()),
                )
            }
        };
        if credentials.is_none() && (path.contains('@') || query.contains('@')) {
            return Err(bad(
                "the URL has an `@` behind the host; write `/`, `?` and `@` in a password as %2F, %3F \
                 and %40",
            ));
        }
        if address.is_empty() && scheme != "redis+unix" {
            return Err(bad("the URL names no host or table"));
        }
        let mut options = BTreeMap::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair
                .split_once('=')
                .ok_or_else(|| bad("an option after `?` has no value"))?;
            if options.insert(decode(name), decode(value)).is_some() {
                return Err(bad("an option after `?` is given twice"));
            }
        }
        let mut parsed = Self {
            scheme: scheme.to_owned(),
            user,
            password,
            address: address.to_owned(),
            path: decode(path),
            options,
        };
        parsed.read_password_file()?;
        Ok(parsed)
    }

    /// Removes an option and returns its value. [`finish`](Self::finish) then rejects the options
    /// that were not taken.
    pub(super) fn take(&mut self, option: &str) -> Option<String> {
        self.options.remove(option)
    }

    /// Fails if the URL has an option that the store does not support.
    pub(super) fn finish(&self, known: &str) -> Result<(), Error> {
        match self.options.keys().next() {
            None => Ok(()),
            Some(option) => Err(self.bad(&format!(
                "this store has no option `{}`; its options are {known}",
                crate::text::sanitize_name(option.clone())
            ))),
        }
    }

    pub(super) fn bad(&self, why: &str) -> Error {
        bad_url(&self.shown(), why)
    }

    /// Returns the URL without credentials, for messages.
    pub(super) fn shown(&self) -> String {
        let slash = if self.path.is_empty() { "" } else { "/" };
        let shown = format!("{}://{}{slash}{}", self.scheme, self.address, self.path);
        crate::text::sanitize_name(shown)
    }

    /// Reads the password from the file that the option `password_file` names. A password in the URL
    /// would be visible in the list of processes.
    fn read_password_file(&mut self) -> Result<(), Error> {
        let Some(path) = self.take("password_file") else {
            return Ok(());
        };
        let text = std::fs::read_to_string(&path).map_err(|error| {
            Error::io("read the password file", std::path::Path::new(&path), error)
        })?;
        self.password = Some(text.trim_end_matches(['\r', '\n']).to_owned());
        Ok(())
    }
}

fn bad_url(url: &str, why: &str) -> Error {
    Error::new(Kind::BadStore {
        store: url.to_owned(),
        why: why.to_owned(),
    })
}

/// Returns the URL without its credentials and without its options, for messages.
fn without_credentials(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    // Credentials end at the last `@`, because a password may contain any other character.
    let rest = rest.rsplit_once('@').map_or(rest, |(_, address)| address);
    let rest = rest.split('?').next().unwrap_or_default();
    let shown = if scheme.is_empty() {
        rest.to_owned()
    } else {
        format!("{scheme}://{rest}")
    };
    crate::text::sanitize_name(shown)
}

/// Returns the URL without credentials, with the options that decide in which store a key is. Two
/// stores with different identities do not exclude each other's owners.
pub(super) fn identity(shown: &str, scope: &[(&'static str, String)]) -> String {
    let mut identity = shown.to_owned();
    for (index, (name, value)) in scope.iter().enumerate() {
        identity.push(if index == 0 { '?' } else { '&' });
        identity.push_str(name);
        identity.push('=');
        for byte in value.bytes() {
            if byte.is_ascii_alphanumeric() || b"-_.:/[]".contains(&byte) {
                identity.push(char::from(byte));
            } else {
                // The result is ignored, because writing to a `String` never fails.
                let _ = write!(identity, "%{byte:02X}");
            }
        }
    }
    identity
}

/// Decodes `%XX`. An incomplete escape stays as it is.
fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let escape = (*first == b'%')
            .then(|| tail.get(..2))
            .flatten()
            .and_then(|digits| str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        if let Some(byte) = escape {
            bytes.push(byte);
            rest = &tail[2..];
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_is_shown_without_user_password_and_options() {
        let url = StoreUrl::parse("redis://joe:s3c%40ret@db.example:6380/2?prefix=x").unwrap();
        assert_eq!(url.user.as_deref(), Some("joe"));
        assert_eq!(url.password.as_deref(), Some("s3c@ret"));
        assert_eq!(url.shown(), "redis://db.example:6380/2");
        for bad in [
            "redis://:secret@h?x",
            "redis://:secret@?a=1",
            "redis://:secret?secret@h",
            "redis://:secret/secret@h:1",
            "x:secret@host",
        ] {
            let error = StoreUrl::parse(bad).map(|_| ()).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn identity_has_the_options_that_select_a_store() {
        assert_eq!(identity("redis://h/2", &[]), "redis://h/2");
        let scope = [
            ("region", "eu-west-1".to_owned()),
            ("endpoint", "http://127.0.0.1:8000".to_owned()),
        ];
        assert_eq!(
            identity("dynamodb://table", &scope),
            "dynamodb://table?region=eu-west-1&endpoint=http://127.0.0.1:8000"
        );
        let prefix = |value: &str| identity("redis://h", &[("prefix", value.to_owned())]);
        assert_eq!(prefix("a b&c%"), "redis://h?prefix=a%20b%26c%25");
    }

    #[test]
    fn unknown_and_repeated_options_are_rejected() {
        let url = StoreUrl::parse("redis://h?prefixx=a").unwrap();
        let error = url.finish("`prefix`").unwrap_err().to_string();
        assert!(error.contains("`prefixx`"), "{error}");
        assert!(StoreUrl::parse("redis://h?a=1&a=2").is_err());
    }

    #[test]
    fn password_is_read_from_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("password");
        std::fs::write(&path, "geheim\n").unwrap();
        let text = format!("redis://h?password_file={}", path.display());
        let url = StoreUrl::parse(&text).unwrap();
        assert_eq!(url.password.as_deref(), Some("geheim"));
        let missing = StoreUrl::parse("redis://h?password_file=/nowhere/x");
        assert!(
            missing
                .map(|_| ())
                .unwrap_err()
                .to_string()
                .contains("/nowhere/x")
        );
    }
}

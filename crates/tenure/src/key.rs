//! Keys, and the names of their lock files.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Kind};

/// Maximum length of a name, in bytes.
const MAX_NAME: usize = 100;

/// A key that a process can own: a port, a name, a file or a directory.
///
/// Keys are validated on creation, so every key is safe as a file name and as the key of a remote
/// store.
///
/// ```
/// use tenure::Key;
///
/// assert_eq!(Key::name("nightly-backup")?.to_string(), "nightly-backup");
/// assert_eq!(Key::port(8080).to_string(), "port 8080");
/// assert!(Key::name("../etc/passwd").is_err());
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key(Repr);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Repr {
    Name(String),
    Port { service: String, port: u16 },
    File(PathBuf),
    Directory(PathBuf),
}

impl Key {
    /// Returns the key of a name, which all programs that use the same store share.
    ///
    /// A name has at most 100 of the characters `a-z A-Z 0-9 . _ -` and begins with a letter or a
    /// digit. Names that differ only in case are the same key on file systems that ignore case.
    pub fn name(name: impl Into<String>) -> Result<Self, Error> {
        let name = name.into();
        check_name(&name)?;
        Ok(Self(Repr::Name(name)))
    }

    /// Returns the key of a port number. Owning the key does not bind a socket.
    pub fn port(port: u16) -> Self {
        Self(Repr::Port {
            service: "port".to_owned(),
            port,
        })
    }

    /// Returns the key of a service's port number. The lock file is `{service}_{port}.lock`.
    pub fn service(service: impl Into<String>, port: u16) -> Result<Self, Error> {
        let service = service.into();
        check_name(&service)?;
        if service == "name" || service.starts_with("name_") {
            return Err(Error::new(Kind::BadKey {
                key: service,
                why: "`name_` is reserved for the lock files of named keys",
            }));
        }
        Ok(Self(Repr::Port { service, port }))
    }

    /// Returns the key whose lock file is at exactly this path. Its directory must exist.
    pub fn file(path: impl Into<PathBuf>) -> Result<Self, Error> {
        let path = path.into();
        if path.file_name().is_none() || ends_with_separator(&path) {
            return Err(Error::new(Kind::BadKey {
                key: path.display().to_string(),
                why: "it does not end in a file name",
            }));
        }
        Ok(Self(Repr::File(absolute(path))))
    }

    /// Returns the key of a directory, whose lock file is `.tenure.lock` in it. The directory must
    /// exist.
    pub fn directory(path: impl Into<PathBuf>) -> Self {
        Self(Repr::Directory(absolute(path.into())))
    }

    /// Port number, if the key is a port.
    pub fn port_number(&self) -> Option<u16> {
        match self.0 {
            Repr::Port { port, .. } => Some(port),
            _ => None,
        }
    }

    /// Directory and file name of the lock file, for a key that is the path of a file or directory.
    /// `None` for names and ports: their lock file is in the lock directory of the
    /// [`Store`](crate::Store).
    pub(crate) fn own_path(&self) -> Option<(PathBuf, OsString)> {
        match &self.0 {
            Repr::File(path) => {
                let name = path.file_name().unwrap_or_default().to_owned();
                let dir = match path.parent() {
                    Some(dir) if !dir.as_os_str().is_empty() => dir.to_owned(),
                    _ => PathBuf::from("."),
                };
                Some((dir, name))
            }
            Repr::Directory(dir) => Some((dir.clone(), OsString::from(".tenure.lock"))),
            _ => None,
        }
    }

    /// Name of the lock file inside a lock directory.
    pub(crate) fn file_name(&self) -> OsString {
        match &self.0 {
            Repr::Name(name) => format!("name_{name}.lock").into(),
            Repr::Port { service, port } => format!("{service}_{port}.lock").into(),
            Repr::File(_) | Repr::Directory(_) => {
                self.own_path().map(|(_, name)| name).unwrap_or_default()
            }
        }
    }

    /// Returns the key of a lock file in a lock directory, or `None` for files that are not lock
    /// files.
    pub(crate) fn from_file_name(name: &str) -> Option<Self> {
        let stem = name.strip_suffix(".lock")?;
        if let Some(name) = stem.strip_prefix("name_") {
            return Self::name(name).ok();
        }
        let (service, port) = stem.rsplit_once('_')?;
        Self::service(service, port.parse().ok()?).ok()
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Repr::Name(name) => f.write_str(name),
            Repr::Port { service, port } if service == "port" => write!(f, "port {port}"),
            Repr::Port { service, port } => write!(f, "{service} port {port}"),
            Repr::File(path) => write!(f, "{}", path.display()),
            Repr::Directory(path) => write!(f, "directory {}", path.display()),
        }
    }
}

fn check_name(name: &str) -> Result<(), Error> {
    let bad = |why| {
        Err(Error::new(Kind::BadKey {
            key: name.chars().take(MAX_NAME).collect(),
            why,
        }))
    };
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if name.is_empty() {
        return bad("it is empty");
    }
    if name.len() > MAX_NAME {
        return bad("it is longer than 100 characters");
    }
    if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return bad("it must begin with one of a-z, A-Z, 0-9");
    }
    if !name.chars().all(allowed) {
        return bad("only a-z, A-Z, 0-9, '.', '_' and '-' are allowed");
    }
    Ok(())
}

/// Makes a path absolute, so that the same key results from every working directory. Links are not
/// resolved.
pub(crate) fn absolute(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}

fn ends_with_separator(path: &Path) -> bool {
    path.as_os_str()
        .as_encoded_bytes()
        .last()
        .is_some_and(|last| std::path::is_separator(char::from(*last)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_with_a_path_in_it_is_rejected() {
        for bad in [
            "", ".", "..", "a/b", "a\\b", "/etc", "-x", "a b", "a\0b", "é", "C:x",
        ] {
            assert!(Key::name(bad).is_err(), "{bad:?} was accepted");
        }
        assert!(Key::name("x".repeat(101)).is_err());
        assert!(Key::name("x".repeat(100)).is_ok());
    }

    #[test]
    fn different_keys_have_different_lock_files() {
        let keys = [
            Key::name("port_80").unwrap(),
            Key::port(80),
            Key::service("serve", 80).unwrap(),
            Key::name("80").unwrap(),
        ];
        assert!(Key::service("name", 80).is_err());
        assert!(Key::service("name_x", 80).is_err());
        for (i, a) in keys.iter().enumerate() {
            assert_eq!(
                Key::from_file_name(a.file_name().to_str().unwrap()).as_ref(),
                Some(a)
            );
            for b in &keys[i + 1..] {
                assert_ne!(a.file_name(), b.file_name());
            }
        }
    }

    #[test]
    fn file_key_is_the_path_as_given() {
        let (dir, name) = Key::file("a.lock").unwrap().own_path().unwrap();
        assert_eq!(
            (dir, name),
            (std::env::current_dir().unwrap(), OsString::from("a.lock"))
        );
        assert!(Key::file("dir/").is_err());
        assert!(Key::file("/").is_err());
        assert!(Key::file("..").is_err());
    }
}

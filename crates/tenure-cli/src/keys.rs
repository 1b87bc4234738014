//! Converts arguments of the command line to the key and the store (where the lock files or leases
//! are), and a key back to a command line for hints.

use std::ffi::OsString;
use std::path::Path;

use tenure::{Error, Key, Store};

use crate::args::OneKey;
use crate::exit::{self, Failure};
use crate::sys::{self, shell};

/// Location of the keys that a command line names.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) store: Store,
    /// URL of a lease store, if hints may repeat it. A URL with credentials is never printed.
    printable_url: Option<String>,
}

impl Place {
    /// Connects to the store of `--store` or `TENURE_STORE`, or opens the lock files. An empty URL
    /// stands for lock files. The key of `--file` is always a lock file.
    pub(crate) fn open(url: Option<&String>, is_file: bool) -> Result<Self, Failure> {
        let from_environment = || {
            let url = std::env::var_os("TENURE_STORE").filter(|_| !is_file)?;
            Some(url.into_string().map_err(|_| {
                Failure::new(exit::USAGE, "TENURE_STORE is not valid UTF-8")
                    .hint("set it to the URL of a store, such as `redis://127.0.0.1:6379`")
            }))
        };
        let url = match url {
            Some(url) => Some(url.clone()),
            None => from_environment().transpose()?,
        };
        let Some(url) = url.filter(|url| !url.is_empty()) else {
            return Ok(Self {
                store: lock_files(),
                printable_url: None,
            });
        };
        sys::open_standard_descriptors().map_err(|error| {
            let message = format!("cannot open /dev/null for a closed standard stream: {error}");
            Failure::new(exit::FAILED, message)
        })?;
        Ok(Self {
            store: Store::connect(&url)?,
            printable_url: Some(url).filter(|url| !has_credentials(url)),
        })
    }

    /// Returns a note for hints about a store whose URL cannot be printed: the suggested command
    /// needs the same `TENURE_STORE`.
    pub(crate) fn requirement(&self) -> &'static str {
        if self.store.is_lease() && self.printable_url.is_none() {
            " (with the same TENURE_STORE)"
        } else {
            ""
        }
    }
}

/// True if a URL may contain a password. Passwords with unescaped characters are recognized too.
fn has_credentials(url: &str) -> bool {
    url.contains('@')
}

fn lock_files() -> Store {
    match std::env::var_os("TENURE_DIR") {
        Some(dir) if !dir.is_empty() => Store::in_dir(dir),
        _ => Store::default(),
    }
}

pub(crate) fn named(typed: &OneKey) -> Result<Option<Key>, Error> {
    Ok(match typed {
        OneKey {
            port: Some(port), ..
        } => Some(Key::port(*port)),
        OneKey {
            file: Some(path), ..
        } => Some(Key::file(path)?),
        OneKey {
            name: Some(name), ..
        } => Some(Key::name(name)?),
        _ => None,
    })
}

/// Returns the key for a command line without a key: the name of its program and a hash of all
/// words. The arguments themselves may be secret and are stored nowhere.
pub(crate) fn from_command(command: &[OsString]) -> Result<Key, Error> {
    let program: String = command
        .first()
        .map(|program| Path::new(program).file_name().unwrap_or_default())
        .unwrap_or_default()
        .to_string_lossy()
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
        .skip_while(|c| !c.is_ascii_alphanumeric())
        .take(60)
        .collect();
    // 64-bit FNV-1a over the words. Each word ends in a zero byte, so that `a "b c"` and `a b c`
    // differ.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for word in command {
        for byte in word.as_encoded_bytes().iter().chain(&[0]) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    let program = if program.is_empty() {
        "command"
    } else {
        &program
    };
    Key::name(format!("{program}-{hash:016x}"))
}

/// Returns the arguments of a `tenure` command that acts on this key from any working directory.
/// Credentials are left out.
pub(crate) fn command_line(verb: &str, key: &Key, given: &OneKey, place: &Place) -> String {
    // The text of a file key is the absolute path of its lock file, so the command works from any
    // directory. File keys do not depend on the lock directory, so `TENURE_DIR` is left out.
    if given.file.is_some() {
        return format!("tenure {verb} --file {}", shell::quoted(&key.to_string()));
    }
    let store = place
        .printable_url
        .as_ref()
        .map_or_else(String::new, |url| {
            format!(" --store {}", shell::quoted(url))
        });
    let line = match given.port {
        Some(port) => format!("tenure {verb}{store} --port {port}"),
        None => format!("tenure {verb}{store} {key}"),
    };
    if place.store.is_lease() {
        return line;
    }
    match std::env::var_os("TENURE_DIR") {
        Some(dir) if !dir.is_empty() => {
            let dir = std::path::absolute(&dir).unwrap_or_else(|_| dir.into());
            shell::with_variable("TENURE_DIR", &dir.display().to_string(), &line)
        }
        _ => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_with_a_password_is_recognized() {
        assert!(has_credentials("redis://:secret@db"));
        assert!(has_credentials("redis://joe:se/cret@db:6379/0?prefix=a"));
        assert!(!has_credentials(
            "redis://db:6379/0?password_file=/run/secret"
        ));
    }

    #[test]
    fn command_line_key_is_stable_and_hides_the_arguments() {
        let line = |words: &[&str]| {
            from_command(&words.iter().map(Into::into).collect::<Vec<_>>()).unwrap()
        };
        let key = line(&["/usr/bin/psql", "--password=hunter2"]);
        assert_eq!(key, line(&["/usr/bin/psql", "--password=hunter2"]));
        assert!(key.to_string().starts_with("psql-"), "{key}");
        assert!(!key.to_string().contains("hunter2"));
        assert_ne!(line(&["a", "b c"]), line(&["a", "b", "c"]));
        assert!(line(&["--"]).to_string().starts_with("command-"));
        assert!(line(&["é/ü"]).to_string().starts_with("command-"));
    }
}

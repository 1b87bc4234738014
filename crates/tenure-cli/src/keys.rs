//! Converts arguments of the command line to the key and the store (where the lock files are), and
//! a key back to a command line for hints.

use std::ffi::OsString;
use std::path::Path;

use tenure::{Error, Key, Store};

use crate::args::OneKey;
use crate::sys::shell;

/// Store that `TENURE_DIR` names, or the default store.
pub(crate) fn store() -> Store {
    match std::env::var_os("TENURE_DIR") {
        Some(dir) if !dir.is_empty() => Store::in_dir(dir),
        _ => Store::default(),
    }
}

/// Returns the key that the arguments name; `None` if they name no key.
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

/// Key of a command line: the name of its program and a hash of all words. The arguments themselves
/// may be secret and are stored nowhere.
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

/// Command line that acts on this key from any working directory.
pub(crate) fn command_line(verb: &str, key: &Key, given: &OneKey) -> String {
    // The text of a file key is the absolute path of its lock file, so the command works from any
    // directory. File keys do not depend on the lock directory, so `TENURE_DIR` is left out.
    if given.file.is_some() {
        return format!("tenure {verb} --file {}", shell::quoted(&key.to_string()));
    }
    let line = match given.port {
        Some(port) => format!("tenure {verb} --port {port}"),
        None => format!("tenure {verb} {key}"),
    };
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

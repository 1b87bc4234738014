//! From what was typed to keys.

use std::ffi::OsString;
use std::path::Path;

use tenure::{Error, Key, Store};

use crate::args::OneKey;
use crate::sys::shell;

/// The store that `TENURE_DIR` names, or the default one.
pub(crate) fn store() -> Store {
    match std::env::var_os("TENURE_DIR") {
        Some(dir) if !dir.is_empty() => Store::in_dir(dir),
        _ => Store::default(),
    }
}

/// The key that was named, if one was.
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

/// A key for a command line: its program, and a hash of all of it. The arguments themselves may
/// be secret and are written nowhere.
pub(crate) fn of_command(command: &[OsString]) -> Result<Key, Error> {
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
    // 64-bit FNV-1a over the words, each with its end marked.
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

/// What to type to act on this key, from wherever that is typed.
pub(crate) fn command_line(verb: &str, key: &Key, given: &OneKey) -> String {
    // The text of a file's key is its absolute path.
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
    fn the_same_command_line_is_the_same_key_and_hides_its_words() {
        let line =
            |words: &[&str]| of_command(&words.iter().map(Into::into).collect::<Vec<_>>()).unwrap();
        let key = line(&["/usr/bin/psql", "--password=hunter2"]);
        assert_eq!(key, line(&["/usr/bin/psql", "--password=hunter2"]));
        assert!(key.to_string().starts_with("psql-"), "{key}");
        assert!(!key.to_string().contains("hunter2"));
        assert_ne!(line(&["a", "b c"]), line(&["a", "b", "c"]));
        assert!(line(&["--"]).to_string().starts_with("command-"));
        assert!(line(&["é/ü"]).to_string().starts_with("command-"));
    }
}

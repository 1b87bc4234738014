//! Which file, and its text.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use super::env::Environment;
use super::problems::{Gathered, one_line};
use super::{Flags, settings};

/// The file of a directory, if none is named.
pub(super) const USUAL: &str = "llmlb.toml";

const LARGEST: u64 = 1 << 20;

/// A file that was read.
pub(super) struct Source {
    /// As it was named: that is how a person knows it.
    pub(super) name: PathBuf,
    pub(super) text: String,
}

/// The file that is named, or the usual one if it is there.
pub(super) fn find(
    flags: &Flags,
    env: &Environment,
    directory: &Path,
    problems: &mut Gathered,
) -> Option<Source> {
    let (name, named_by) = if let Some(name) = &flags.config {
        (name.clone(), Some(settings::CONFIG_FLAG))
    } else if let Some(name) = env.path(settings::CONFIG) {
        (name, Some(settings::CONFIG))
    } else {
        (PathBuf::from(USUAL), None)
    };
    let path = directory.join(&name);
    // A dangling link is there, though opening it says that it is not.
    let absent = || fs::symlink_metadata(&path).is_err_and(|e| e.kind() == ErrorKind::NotFound);
    if named_by.is_none() && absent() {
        return None;
    }
    match read(&path) {
        Ok(text) => Some(Source { name, text }),
        Err(why) => {
            let by = named_by.map_or_else(String::new, |by| format!(" (named by {by})"));
            let name = one_line(&name.to_string_lossy());
            problems.add_file(&name, &format!("{why}{by}"));
            None
        }
    }
}

fn read(path: &Path) -> Result<String, String> {
    let mut bytes = Vec::new();
    File::open(path)
        // One byte more tells a file that is too large, also one that never ends.
        .and_then(|file| file.take(LARGEST + 1).read_to_end(&mut bytes))
        .map_err(|error| in_words(&error, path))?;
    if bytes.len() as u64 > LARGEST {
        return Err("the file is too large; allowed: up to 1 MiB".into());
    }
    String::from_utf8(bytes).map_err(|error| {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = good.split(|byte| *byte == b'\n').count();
        format!("line {line} is not UTF-8 text")
    })
}

/// Without numbers that mean something to few.
fn in_words(error: &io::Error, path: &Path) -> String {
    match error.kind() {
        _ if path.is_dir() => "this is a directory, not a file".into(),
        ErrorKind::NotFound if path.is_symlink() => "this links to a file that is not there".into(),
        ErrorKind::NotFound => "there is no such file".into(),
        ErrorKind::PermissionDenied => "you may not read this file".into(),
        kind => format!("the file cannot be read: {kind}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_system_are_told_in_plain_words() {
        // EACCES, ENOTDIR, ELOOP by their numbers on Linux; elsewhere other words, but still words.
        let path = Path::new("llmlb.toml");
        for number in [13, 20, 40] {
            let words = in_words(&io::Error::from_raw_os_error(number), path);
            assert!(!words.contains("os error"), "{words}");
        }
        let words = in_words(&ErrorKind::PermissionDenied.into(), path);
        assert_eq!(words, "you may not read this file");
    }
}

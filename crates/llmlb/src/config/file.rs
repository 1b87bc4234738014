//! Which file, and its text.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use super::env::Environment;
use super::problems::{Gathered, one_line};
use super::{Flags, settings};
use crate::sys::{self, Exposed};

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
    let is_allowed = flags.config.is_some() && flags.allow_shared_config;
    let shown = one_line(&name.to_string_lossy());
    match open(&path, &shown, is_allowed).and_then(|file| read(file, &path)) {
        Ok(text) => Some(Source { name, text }),
        Err(why) => {
            let by = named_by.map_or_else(String::new, |by| format!(" (named by {by})"));
            problems.add_file(&shown, &format!("{why}{by}"));
            None
        }
    }
}

/// Opens the file if only this user and root can have written it. A backend that it names gets any
/// variable of the environment that it names as well.
fn open(path: &Path, name: &str, is_shared_allowed: bool) -> Result<File, String> {
    if is_shared_allowed {
        return File::open(path).map_err(|error| in_words(&error, path));
    }
    let opened = sys::config_file::open(path).map_err(|error| in_words(&error, path))?;
    opened.map_err(|exposed| {
        let (why, advice) = refusal(&exposed, name);
        format!(
            "{why}, and so choose where keys and prompts are sent; {advice}, or use it as it is: \
             --config {name} --allow-shared-config"
        )
    })
}

/// What others may do with the file, and what to type against it.
fn refusal(exposed: &Exposed, name: &str) -> (String, String) {
    match exposed {
        Exposed::Owner(user) => (
            format!(
                "it belongs to {user}, neither to this user nor to root: its owner may write it"
            ),
            format!("take it over: `cp {name} own.toml`, then --config own.toml"),
        ),
        Exposed::Others => (
            "every user may write it".to_owned(),
            format!("`chmod go-w {name}` prevents that"),
        ),
        Exposed::Group(group) => (
            format!("its group (gid {group}) may write it"),
            format!("`chmod go-w {name}` prevents that"),
        ),
        Exposed::Directory(directory) => {
            let directory = one_line(&directory.to_string_lossy());
            (
                format!("every user may replace it in {directory}"),
                format!("`chmod o-w {directory}` prevents that"),
            )
        }
        Exposed::Replaced => (
            "others may replace it, as happened while it was opened".to_owned(),
            "try again".to_owned(),
        ),
    }
}

fn read(file: File, path: &Path) -> Result<String, String> {
    let mut bytes = Vec::new();
    // One byte more tells a file that is too large, also one that never ends.
    file.take(LARGEST + 1)
        .read_to_end(&mut bytes)
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

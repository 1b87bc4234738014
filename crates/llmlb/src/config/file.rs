//! Selection and reading of the configuration file.

use std::fmt::Write;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::env::Environment;
use super::problems::{ProblemList, one_line};
use super::{Flags, settings};
use crate::sys::{self, Exposed};

/// Name of the configuration file that is read from the current directory by default.
pub(super) const DEFAULT_NAME: &str = "llmlb.toml";

const MAX_SIZE: u64 = 1 << 20;

/// Text and path of a configuration file that was read.
pub(super) struct ConfigFile {
    /// Path of the configuration file as the flag or variable names it, for messages.
    pub(super) name: PathBuf,
    pub(super) text: String,
}

impl ConfigFile {
    /// Returns the start of the SHA-256 of the file's content in hexadecimal digits, by which
    /// operators compare the files of servers.
    pub(super) fn hash(&self) -> String {
        let hash = Sha256::digest(self.text.as_bytes());
        hash.iter().take(6).fold(String::new(), |mut text, byte| {
            // Ignore the result: writing into memory cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
    }
}

/// Returns the path of the configuration file, and the flag or variable that names it. `None` for a
/// demo without `--config`, which reads no file.
pub(super) fn path(flags: &Flags, env: &Environment) -> Option<(PathBuf, Option<&'static str>)> {
    if let Some(name) = &flags.config {
        Some((name.clone(), Some(settings::CONFIG_FLAG)))
    } else if let Some(name) = env.path(settings::CONFIG) {
        Some((name, Some(settings::CONFIG)))
    } else if flags.demo {
        None
    } else {
        Some((PathBuf::from(DEFAULT_NAME), None))
    }
}

/// Reads the configuration file that `--config` or `LLMLB_CONFIG` names, else `llmlb.toml` if it
/// exists. The demo does not read `llmlb.toml`: it must start in any directory.
pub(super) fn find(
    flags: &Flags,
    env: &Environment,
    directory: &Path,
    problems: &mut ProblemList,
) -> Option<ConfigFile> {
    let (name, named_by) = path(flags, env)?;
    let path = directory.join(&name);
    // Report a symbolic link to a missing file as an error, and not as an absent configuration: the
    // operator expects its settings to apply.
    let absent = || fs::symlink_metadata(&path).is_err_and(|e| e.kind() == ErrorKind::NotFound);
    if named_by.is_none() && absent() {
        return None;
    }
    let is_allowed = flags.config.is_some() && flags.allow_shared_config;
    let shown = one_line(&name.to_string_lossy());
    match open(&path, &shown, is_allowed).and_then(|file| read(file, &path)) {
        Ok(text) => Some(ConfigFile { name, text }),
        Err(why) => {
            let by = named_by.map_or_else(String::new, |by| format!(" (named by {by})"));
            problems.add_file(&shown, &format!("{why}{by}"));
            None
        }
    }
}

/// Opens the configuration file if only this user and root can have written it. Another author
/// could have prompts, and any environment variable as a key, sent to a server of their own.
fn open(path: &Path, name: &str, is_shared_allowed: bool) -> Result<File, String> {
    if is_shared_allowed {
        return File::open(path).map_err(|error| in_words(&error, path));
    }
    let opened = sys::config_file::open(path).map_err(|error| in_words(&error, path))?;
    opened.map_err(|exposed| {
        let (why, advice) = refusal(&exposed, name);
        format!(
            "{why}, and so choose where keys and prompts are sent; {advice}, or accept the file as it is: \
             --config {name} --allow-shared-config"
        )
    })
}

/// Returns the reason why a configuration file is rejected, and advice on how to make the file
/// acceptable.
fn refusal(exposed: &Exposed, name: &str) -> (String, String) {
    match exposed {
        Exposed::Owner(user) => (
            format!(
                "the file belongs to {user}, neither to this user nor to root: its owner may write it"
            ),
            format!(
                "make a copy that belongs to this user with `cp {name} own.toml` and use --config own.toml"
            ),
        ),
        Exposed::Others => (
            "every user may write the file".to_owned(),
            format!("prevent that with `chmod go-w {name}`"),
        ),
        Exposed::Group(group) => (
            format!("the file's group (gid {group}) may write it"),
            format!("prevent that with `chmod go-w {name}`"),
        ),
        Exposed::Directory(directory) => {
            let directory = one_line(&directory.to_string_lossy());
            (
                format!("every user may replace the file in {directory}"),
                format!("prevent that with `chmod o-w {directory}`"),
            )
        }
        Exposed::Replaced => (
            "the file was replaced while llmlb opened it: another user may be able to replace it"
                .to_owned(),
            "run llmlb again to check the new file".to_owned(),
        ),
    }
}

fn read(file: File, path: &Path) -> Result<String, String> {
    let mut bytes = Vec::new();
    // Read one byte more than the maximum, so that a larger file is detected without reading all of
    // a possibly endless one.
    file.take(MAX_SIZE + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| in_words(&error, path))?;
    if bytes.len() as u64 > MAX_SIZE {
        return Err("the file is too large; allowed: up to 1 MiB".into());
    }
    String::from_utf8(bytes).map_err(|error| {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = good.split(|byte| *byte == b'\n').count();
        format!("line {line} is not UTF-8 text")
    })
}

/// Formats the error of reading the configuration file, without the operating system's error
/// number.
fn in_words(error: &io::Error, path: &Path) -> String {
    match error.kind() {
        _ if path.is_dir() => "this is a directory, not a file".into(),
        ErrorKind::NotFound if path.is_symlink() => "the link points to a missing file".into(),
        ErrorKind::NotFound => "the file does not exist".into(),
        ErrorKind::PermissionDenied => "this user may not read the file".into(),
        kind => format!("the file cannot be read: {kind}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_errors_have_no_error_number() {
        // Error numbers of EACCES, ENOTDIR and ELOOP on Linux; other systems assign them to other
        // errors.
        let path = Path::new("llmlb.toml");
        for number in [13, 20, 40] {
            let words = in_words(&io::Error::from_raw_os_error(number), path);
            assert!(!words.contains("os error"), "{words}");
        }
        let words = in_words(&ErrorKind::PermissionDenied.into(), path);
        assert_eq!(words, "this user may not read the file");
    }
}

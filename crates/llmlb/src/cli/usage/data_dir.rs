//! The data directory of the `usage` verbs, and commands that name it in hints.

use std::path::{Path, PathBuf};

use super::counted;
use crate::cli::exit::{self, Failure};
use crate::cli::output;
use crate::data_dir;
use crate::meter::loss;

/// A data directory.
#[derive(Clone, Debug)]
pub(super) struct DataDir {
    dir: PathBuf,
    /// True if `--data` named the directory, so that the commands in hints need `--data` too.
    is_named: bool,
}

impl DataDir {
    pub(super) fn find(asked: Option<&Path>, demo: bool) -> Result<Self, Failure> {
        let dir = data_dir::find(asked, demo).ok_or_else(|| {
            Failure::new(
                exit::FAILED,
                "no data directory: this user has no home directory",
            )
            .hint("name a data directory: `--data DIR`, or LLMLB_DATA_DIR=DIR")
        })?;
        Ok(Self {
            dir,
            is_named: asked.is_some(),
        })
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the path of a file or subdirectory of the data directory, for display.
    pub(super) fn shown(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    /// Prints the number of lost records. They were never staged, so no total includes them.
    pub(super) fn report_lost(&self) {
        let lost = loss::total(&self.dir);
        if lost > 0 {
            let (count, file) = (counted(lost, "record"), self.shown(loss::FILE));
            output::message(&format!(
                "{count} could not be staged, so all totals are too low; see {file}"
            ));
        }
    }

    /// Rejects a directory that does not exist. Its name may be misspelt, which an empty result would
    /// hide.
    pub(super) fn require(&self) -> Result<(), Failure> {
        let dir = self.dir.display();
        if self.dir.is_dir() {
            return Ok(());
        }
        if self.dir.exists() {
            let message = format!("{dir} is not a directory");
            return Err(Failure::new(exit::FAILED, message)
                .hint("name a directory instead of it: `--data DIR`, or LLMLB_DATA_DIR=DIR"));
        }
        let message = format!("no usage data: the data directory {dir} does not exist");
        Err(Failure::new(exit::FAILED, message).hint(
            "name another data directory: `--data DIR`, or LLMLB_DATA_DIR=DIR; or create it with \
             `llmlb usage stage`",
        ))
    }

    /// Rejects a missing directory only if `--data` named it. A missing default directory means that
    /// no record was staged yet.
    pub(super) fn require_if_named(&self) -> Result<(), Failure> {
        if self.is_named {
            self.require()
        } else {
            Ok(())
        }
    }

    /// Rejects a path that exists but is not a directory.
    pub(super) fn reject_non_directory(&self) -> Result<(), Failure> {
        if self.dir.exists() {
            self.require()
        } else {
            Ok(())
        }
    }

    /// Returns the command line of another verb for the same data directory.
    pub(super) fn command(&self, words: &str) -> String {
        if self.is_named {
            let dir = quoted(&self.dir.display().to_string());
            format!("`llmlb usage --data {dir} {words}`")
        } else {
            format!("`llmlb usage {words}`")
        }
    }
}

/// Quotes a text for a shell, if that is necessary.
pub(in crate::cli) fn quoted(text: &str) -> String {
    let is_plain = |char: char| char.is_alphanumeric() || "/\\:._-".contains(char);
    if !text.is_empty() && text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_includes_the_data_flag_if_it_was_given() {
        let mut data = DataDir::find(Some(Path::new("/my data")), false).unwrap();
        let named = "`llmlb usage --data '/my data' pending`";
        assert_eq!(data.command("pending"), named);
        data.is_named = false;
        assert_eq!(data.command("pending"), "`llmlb usage pending`");
        assert_eq!(quoted("/d/a-b_c.d"), "/d/a-b_c.d");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }

    #[test]
    fn missing_directory_is_rejected_and_not_created() {
        let dir = tempfile::tempdir().unwrap();
        assert!(
            DataDir::find(Some(dir.path()), false)
                .unwrap()
                .require()
                .is_ok()
        );
        let gone = dir.path().join("gone");
        let failure = DataDir::find(Some(&gone), false)
            .unwrap()
            .require()
            .unwrap_err();
        assert_eq!(failure.code, exit::FAILED);
        assert!(!gone.exists());
    }
}

//! The data directory, and how to name it in what to type next.

use std::path::{Path, PathBuf};

use super::counted;
use crate::cli::exit::{self, Failure};
use crate::cli::output;
use crate::data_dir;
use crate::meter::loss;

/// Where the data lies.
#[derive(Clone, Debug)]
pub(super) struct Place {
    dir: PathBuf,
    /// It was named by a flag, so that other commands must name it too.
    is_named: bool,
}

impl Place {
    pub(super) fn find(asked: Option<&Path>, demo: bool) -> Result<Self, Failure> {
        let dir = data_dir::find(asked, demo).ok_or_else(|| {
            Failure::new(exit::FAILED, "this user has no home directory for data")
                .hint("name a directory: `--data DIR`, or LLMLB_DATA_DIR")
        })?;
        Ok(Self {
            dir,
            is_named: asked.is_some(),
        })
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// A directory within it, as people see it.
    pub(super) fn shown(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    /// Says what no book knows of, since it could not be kept.
    pub(super) fn tell_lost(&self) {
        let lost = loss::total(&self.dir);
        if lost > 0 {
            let (count, file) = (counted(lost, "record"), self.shown(loss::FILE));
            output::say(&format!(
                "{count} could not be kept and are in no total: {file} says when and why"
            ));
        }
    }

    /// Refuses to look at a directory that is not there: it may be misspelt, and making it would
    /// hide that.
    pub(super) fn must_exist(&self) -> Result<(), Failure> {
        let dir = self.dir.display();
        if self.dir.is_dir() {
            return Ok(());
        }
        if self.dir.exists() {
            let message = format!("{dir} is not a directory");
            return Err(Failure::new(exit::FAILED, message)
                .hint("`--data DIR` or LLMLB_DATA_DIR names the directory of the usage data"));
        }
        let message = format!("there is no usage data: {dir} does not exist");
        Err(Failure::new(exit::FAILED, message)
            .hint("`llmlb usage stage` makes it; `--data DIR` or LLMLB_DATA_DIR names another one"))
    }

    /// One that nobody named is not misspelt: nothing was recorded yet.
    pub(super) fn must_exist_if_named(&self) -> Result<(), Failure> {
        if self.is_named {
            self.must_exist()
        } else {
            Ok(())
        }
    }

    /// Refuses what is there and cannot be a data directory.
    pub(super) fn may_exist(&self) -> Result<(), Failure> {
        if self.dir.exists() {
            self.must_exist()
        } else {
            Ok(())
        }
    }

    /// What to type for another verb about the same data.
    pub(super) fn command(&self, words: &str) -> String {
        if self.is_named {
            let dir = quoted(&self.dir.display().to_string());
            format!("`llmlb usage --data {dir} {words}`")
        } else {
            format!("`llmlb usage {words}`")
        }
    }
}

/// As a shell takes it.
fn quoted(text: &str) -> String {
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
    fn what_to_type_names_the_directory_if_it_was_named() {
        let mut place = Place::find(Some(Path::new("/my data")), false).unwrap();
        let named = "`llmlb usage --data '/my data' pending`";
        assert_eq!(place.command("pending"), named);
        place.is_named = false;
        assert_eq!(place.command("pending"), "`llmlb usage pending`");
        assert_eq!(quoted("/d/a-b_c.d"), "/d/a-b_c.d");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }

    #[test]
    fn a_directory_that_is_not_there_is_not_looked_at() {
        let dir = tempfile::tempdir().unwrap();
        assert!(
            Place::find(Some(dir.path()), false)
                .unwrap()
                .must_exist()
                .is_ok()
        );
        let gone = dir.path().join("gone");
        let failure = Place::find(Some(&gone), false)
            .unwrap()
            .must_exist()
            .unwrap_err();
        assert_eq!(failure.code, exit::FAILED);
        assert!(!gone.exists());
    }
}

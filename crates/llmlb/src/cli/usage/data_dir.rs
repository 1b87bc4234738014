//! The data directory on which a `usage` verb works, and commands that name it in hints.

use std::path::{Path, PathBuf};

use super::counted;
use crate::cli::data_args::{DataArgs, WAYS};
use crate::cli::exit::{self, Failure};
use crate::cli::output;
use crate::config::data::DataConfig;
use crate::meter::loss;

/// A data directory.
#[derive(Clone, Debug)]
pub(super) struct DataDir {
    dir: PathBuf,
    /// True if `--data` named the directory.
    is_named: bool,
    /// Flags that named the directory or its configuration, for the commands in hints.
    words: Vec<String>,
}

impl DataDir {
    /// Returns the data directory for a verb that needs no setting except its path.
    pub(super) fn find(args: &DataArgs) -> Result<Self, Failure> {
        Self::new(args.directory()?, args)
    }

    /// Returns the data directory from the flags, or from a configuration that was read before.
    pub(super) fn of(args: &DataArgs, config: &DataConfig) -> Result<Self, Failure> {
        Self::new(args.directory_of(config)?, args)
    }

    /// Returns an error if the path exists but is not a directory.
    fn new(dir: PathBuf, args: &DataArgs) -> Result<Self, Failure> {
        let data = Self {
            dir,
            is_named: args.data.is_some(),
            words: args.words(),
        };
        if data.dir.exists() {
            data.require()?;
        }
        Ok(data)
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the path of a file or subdirectory of the data directory, for display.
    pub(super) fn shown(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    /// Prints the number of lost records, which were never staged: no total includes them.
    pub(super) fn report_lost(&self) {
        let lost = loss::total(&self.dir);
        if lost > 0 {
            let (count, file) = (counted(lost, "record"), self.shown(loss::FILE));
            output::message(&format!(
                "{count} could not be staged, so all totals are too low; see {file}"
            ));
        }
    }

    /// Returns an error if the data directory does not exist. Its name may be misspelt, which an
    /// empty result would hide.
    pub(super) fn require(&self) -> Result<(), Failure> {
        let dir = self.dir.display();
        if self.dir.is_dir() {
            return Ok(());
        }
        if self.dir.exists() {
            let message = format!("{dir} is not a directory");
            return Err(Failure::new(exit::FAILED, message)
                .hint(format!("name a directory instead of it: {WAYS}")));
        }
        let message = format!("no usage data: the data directory {dir} does not exist");
        let failure = Failure::new(exit::FAILED, message);
        Err(failure
            .hint(format!("name another data directory: {WAYS}"))
            .hint(format!("or create it with {}", self.command("stage"))))
    }

    /// Returns an error if `--data` named a directory that does not exist. A missing default
    /// directory only means that no record was staged yet.
    pub(super) fn require_if_named(&self) -> Result<(), Failure> {
        if self.is_named {
            self.require()
        } else {
            Ok(())
        }
    }

    /// Returns the command line of another `usage` verb for the same data directory, for hints.
    pub(super) fn command(&self, verb: &str) -> String {
        let words = self.words.iter().map(|word| format!(" {word}"));
        format!("`llmlb usage{} {verb}`", words.collect::<String>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(dir: &Path) -> Result<DataDir, Failure> {
        DataDir::find(&DataArgs {
            data: Some(dir.to_owned()),
            ..DataArgs::default()
        })
    }

    #[test]
    fn command_includes_the_data_flag_if_it_was_given() {
        let mut data = data(Path::new("/my data")).unwrap();
        let named = "`llmlb usage --data '/my data' pending`";
        assert_eq!(data.command("pending"), named);
        data.words.clear();
        assert_eq!(data.command("pending"), "`llmlb usage pending`");
    }

    #[test]
    fn missing_directory_is_rejected_and_not_created() {
        let dir = tempfile::tempdir().unwrap();
        assert!(data(dir.path()).unwrap().require().is_ok());
        let gone = dir.path().join("gone");
        let failure = data(&gone).unwrap().require().unwrap_err();
        assert_eq!(failure.code, exit::FAILED);
        assert!(!gone.exists());
    }
}

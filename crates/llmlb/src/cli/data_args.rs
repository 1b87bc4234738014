//! Flags that choose the data directory and its configuration, for the `usage` and `key` verbs.

use std::path::{Path, PathBuf};

use super::check::refused;
use super::exit::{self, Failure};
use crate::config::Flags;
use crate::config::data::{self, DataConfig};
use crate::data_dir;

#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct DataArgs {
    /// Data directory [default: LLMLB_DATA_DIR, usage.data_dir of llmlb.toml, or llmlb in the user's
    /// data directory]
    #[arg(long, global = true, value_name = "DIR", display_order = 800)]
    pub(super) data: Option<PathBuf>,

    /// Use the data directory of `serve --demo`
    #[arg(long, global = true, conflicts_with = "data", display_order = 801)]
    pub(super) demo: bool,

    /// Configuration file [default: llmlb.toml, if there is one]
    #[arg(long, global = true, value_name = "FILE", display_order = 802)]
    pub(super) config: Option<PathBuf>,

    /// Accept a configuration file that other users can write
    #[arg(long, global = true, display_order = 803)]
    pub(super) allow_shared_config: bool,
}

impl DataArgs {
    /// Returns the data directory. If `--data` or `LLMLB_DATA_DIR` names the directory and
    /// `--config` is not given, the configuration file is not read: a broken file must not stop a
    /// command that needs only the directory.
    pub(super) fn directory(&self) -> Result<PathBuf, Failure> {
        if let Some(dir) = &self.data {
            return Ok(dir.clone());
        }
        let in_environment = data::directory_in_environment();
        if let Some(dir) = in_environment.filter(|_| self.config.is_none()) {
            return self.find(Some(&dir));
        }
        let config = self.config().map_err(|failure| {
            failure
                .hint("name the data directory to run this command without the file: `--data DIR`")
        })?;
        self.find(config.usage.data_dir.as_deref())
    }

    /// Returns the data directory from `--data`, or from a configuration that was read before.
    pub(super) fn directory_of(&self, config: &DataConfig) -> Result<PathBuf, Failure> {
        match &self.data {
            Some(dir) => Ok(dir.clone()),
            None => self.find(config.usage.data_dir.as_deref()),
        }
    }

    /// Reads the sections `[usage]` and `[fleet]` from the same file and environment as `serve`, so
    /// that a command works on the data of the server.
    pub(super) fn config(&self) -> Result<DataConfig, Failure> {
        let config = data::load(&self.flags()).map_err(|problems| refused(&problems))?;
        Ok(self.without_delivery(config))
    }

    /// Like [`Self::config`], and also returns the token for the receiver of usage records.
    pub(super) fn config_with_token(&self) -> Result<(DataConfig, Option<spool::Token>), Failure> {
        let config = self.config()?;
        // Add a hint about the token: the configuration was read without problems above, so only
        // the token can be wrong.
        let (_, token) = data::load_with_token(&self.flags()).map_err(|problems| {
            refused(&problems).hint(
                "correct the token in that variable, or read it from a file: `--token-file FILE`",
            )
        })?;
        Ok((config, token))
    }

    /// Returns the given flags as words, so that a suggested command works on the same data
    /// directory.
    pub(super) fn words(&self) -> Vec<String> {
        let path = |flag: &str, path: &Path| format!("{flag} {}", quoted(&path.to_string_lossy()));
        let mut words = Vec::new();
        words.extend(self.config.as_deref().map(|file| path("--config", file)));
        words.extend(self.data.as_deref().map(|dir| path("--data", dir)));
        for (flag, is_given) in [
            ("--allow-shared-config", self.allow_shared_config),
            ("--demo", self.demo),
        ] {
            words.extend(is_given.then(|| flag.to_owned()));
        }
        words
    }

    fn flags(&self) -> Flags {
        Flags {
            config: self.config.clone(),
            allow_shared_config: self.allow_shared_config,
            demo: self.demo,
            ..Flags::default()
        }
    }

    fn find(&self, configured: Option<&Path>) -> Result<PathBuf, Failure> {
        data_dir::find(configured, self.demo).ok_or_else(|| {
            Failure::new(
                exit::FAILED,
                "no data directory: this user has no home directory",
            )
            .hint(format!("name a data directory: {WAYS}"))
        })
    }

    /// Removes receiver and fleet from the configuration of a demo, as `serve --demo` does: records
    /// of a demo must never be delivered to the real receiver.
    fn without_delivery(&self, mut config: DataConfig) -> DataConfig {
        if self.demo {
            config.usage.url = None;
            config.fleet.store = None;
        }
        config
    }
}

/// Ways to name a data directory, for hints that end in something to type.
pub(super) const WAYS: &str =
    "`--data DIR`, LLMLB_DATA_DIR=DIR, or data_dir = \"DIR\" below [usage] in llmlb.toml";

/// Quotes a text so that a shell takes it as one word, if that is necessary.
pub(super) fn quoted(text: &str) -> String {
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
    fn words_repeat_the_given_flags() {
        let mut args = DataArgs {
            data: Some("/my data".into()),
            ..DataArgs::default()
        };
        assert_eq!(args.words(), ["--data '/my data'"]);
        args.data = None;
        assert_eq!(args.words(), [""; 0]);
        (args.config, args.demo) = (Some("/etc/a.toml".into()), true);
        assert_eq!(args.words(), ["--config /etc/a.toml", "--demo"]);
        assert_eq!(quoted("/d/a-b_c.d"), "/d/a-b_c.d");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}

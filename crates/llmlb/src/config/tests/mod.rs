//! Tests of the configuration: effective values, and messages about problems.

mod backends;
mod files;
mod layers;
mod mistakes;
mod reference;
mod secrets;
mod usage;

use std::ffi::OsString;
use std::fs;

use tempfile::TempDir;

use super::env::Environment;
use super::{Config, Flags, Problems, read};

/// Inputs of a load: a directory that may have an `llmlb.toml`, an environment and flags.
struct LoadCase {
    directory: TempDir,
    variables: Vec<(String, OsString)>,
    flags: Flags,
}

impl LoadCase {
    fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
            variables: Vec::new(),
            flags: Flags::default(),
        }
    }

    fn with_file(text: &str) -> Self {
        Self::new().file("llmlb.toml", text.as_bytes())
    }

    fn file(self, name: &str, bytes: &[u8]) -> Self {
        fs::write(self.directory.path().join(name), bytes).unwrap();
        self
    }

    fn env(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.into(), value.into()));
        self
    }

    fn flags(mut self, flags: Flags) -> Self {
        self.flags = flags;
        self
    }

    fn read(&self) -> Result<Config, Problems> {
        let env = Environment::new(self.variables.clone());
        read(&self.flags, &env, self.directory.path())
    }

    #[track_caller]
    fn good(&self) -> Config {
        self.read().unwrap_or_else(|problems| panic!("{problems}"))
    }

    /// Returns the problems of a configuration that must be rejected, one per line.
    #[track_caller]
    fn problems(&self) -> String {
        let problems = self.read().expect_err("nothing was found to be wrong");
        let text = problems.to_string();
        assert_eq!(text.lines().count(), problems.len(), "{text}");
        text
    }
}

fn flags_with_backends(urls: &[&str]) -> Flags {
    Flags {
        backends: urls.iter().map(|url| (*url).to_owned()).collect(),
        ..Flags::default()
    }
}

//! The configuration that a server uses, for `/status` and `llmlb status`.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use super::{Config, Problems};

#[derive(Debug)]
pub(crate) struct ConfigStatus(Mutex<RunningConfig>);

/// The configuration that the server uses, and the last one that it refused.
#[derive(Clone, Debug)]
pub(crate) struct RunningConfig {
    /// Path of the configuration file; `None` if there is no file.
    pub(crate) path: Option<PathBuf>,
    /// Short hash of the configuration file's content.
    pub(crate) hash: Option<String>,
    /// Time at which the server began to use this configuration.
    pub(crate) since: SystemTime,
    /// Number of reloads since the start of the server, without refused ones.
    pub(crate) reloads: u64,
    /// Settings whose changed value takes effect after a restart.
    pub(crate) after_restart: Vec<String>,
    /// The last refused configuration, until a valid one is read.
    pub(crate) refused: Option<RefusedConfig>,
}

/// A changed configuration that the server refused, because it has errors.
#[derive(Clone, Debug)]
pub(crate) struct RefusedConfig {
    pub(crate) at: SystemTime,
    pub(crate) problems: Problems,
}

impl ConfigStatus {
    pub(crate) fn new(config: &Config) -> Self {
        Self(Mutex::new(RunningConfig {
            path: config.file.clone(),
            hash: config.file_hash.clone(),
            since: SystemTime::now(),
            reloads: 0,
            after_restart: Vec::new(),
            refused: None,
        }))
    }

    pub(crate) fn get(&self) -> RunningConfig {
        self.lock().clone()
    }

    /// Notes that a configuration was read and is used from now on, for `/status`.
    pub(crate) fn note_reload(&self, config: &Config, after_restart: Vec<String>) {
        let mut running = self.lock();
        running.path.clone_from(&config.file);
        running.hash.clone_from(&config.file_hash);
        running.since = SystemTime::now();
        running.reloads += 1;
        running.after_restart = after_restart;
        running.refused = None;
    }

    /// Notes that a file was read whose settings are in use already: nothing changed but comments, or other
    /// content was refused before, or settings changed that need a restart.
    pub(crate) fn note_reload_without_changes(&self, config: &Config, after_restart: Vec<String>) {
        let mut running = self.lock();
        running.path.clone_from(&config.file);
        running.hash.clone_from(&config.file_hash);
        running.after_restart = after_restart;
        running.refused = None;
    }

    /// Notes a refused configuration. Returns true if the problems are new, so that they are logged once for
    /// each content of the file.
    pub(crate) fn note_refused(&self, problems: &Problems) -> bool {
        let mut running = self.lock();
        let is_new = (running.refused.as_ref()).is_none_or(|last| last.problems != *problems);
        running.refused = Some(RefusedConfig {
            at: SystemTime::now(),
            problems: problems.clone(),
        });
        is_new
    }

    fn lock(&self) -> MutexGuard<'_, RunningConfig> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! `llmlb key`: creates, lists, revokes and rotates API keys. One verb per file.

mod add;
mod args;
mod list;
mod revoke;
mod rotate;

use std::path::Path;

pub(super) use args::KeyArgs;

use super::check;
use super::exit::{self, Failure};
use super::output;
use super::server_keys;
use crate::config::{self, Flags, KeyRights, Origin};
use crate::data_dir;
use crate::keys::{KeyFileError, KeyStore, NewSecret};
use args::KeyVerb;

pub(super) fn key(args: &KeyArgs, quiet: bool) -> Result<u8, Failure> {
    let keys = Keys::open(args)?;
    match &args.verb {
        KeyVerb::Add(add) => add::add(add, &keys, quiet),
        KeyVerb::List(list) => list::list(list, &keys),
        KeyVerb::Revoke(name) => revoke::revoke(name, &keys, quiet),
        KeyVerb::Rotate(rotate) => rotate::rotate(rotate, &keys, quiet),
    }
}

/// The keys of a data directory, and those that the configuration file declares.
struct Keys {
    store: KeyStore,
    declared: Vec<(KeyRights, Origin)>,
    /// Flags with which another command finds the same keys.
    flags: String,
}

impl Keys {
    fn open(args: &KeyArgs) -> Result<Self, Failure> {
        let dir = data_dir::find(args.data.as_deref(), false).ok_or_else(|| {
            Failure::new(
                exit::FAILED,
                "no data directory: this user has no home directory",
            )
            .hint("name a data directory: `--data DIR`, or LLMLB_DATA_DIR=DIR")
        })?;
        let flags = Flags {
            config: args.config.clone(),
            ..Flags::default()
        };
        let declared =
            config::declared_keys(&flags).map_err(|problems| check::refused(&problems))?;
        let named = [("--data", &args.data), ("--config", &args.config)];
        let words = named.into_iter().filter_map(|(flag, path)| {
            let path = path.as_ref()?.display().to_string();
            Some(format!(" {flag} {}", super::usage::quoted(&path)))
        });
        Ok(Self {
            store: KeyStore::new(&dir),
            declared,
            flags: words.collect(),
        })
    }

    /// Returns the origin of a key that the configuration file declares.
    fn declared(&self, name: &str) -> Option<&Origin> {
        let mut declared = self.declared.iter();
        let found = declared.find(|(rights, _)| rights.name == name);
        found.map(|(_, origin)| origin)
    }

    /// Returns the command line of another verb for the same keys.
    fn command(&self, words: &str) -> String {
        format!("`llmlb key{} {words}`", self.flags)
    }

    /// Rejects a change of a key that the configuration file declares.
    fn reject_declared(&self, name: &str, how: &str) -> Result<(), Failure> {
        let Some(origin) = self.declared(name) else {
            return Ok(());
        };
        let message = format!("the API key `{name}` is declared in {origin}");
        Err(Failure::new(exit::FAILED, message).hint(how.to_owned()))
    }

    /// Returns the error for a key that does not exist.
    fn unknown(&self, name: &str) -> Failure {
        let path = self.store.path();
        let message = format!("{} has no API key `{name}`", path.display());
        Failure::new(exit::FAILED, message).hint(format!("show all keys: {}", self.command("list")))
    }
}

/// Returns a new secret.
fn new_secret() -> Result<NewSecret, Failure> {
    NewSecret::generate().map_err(|error| Failure::new(exit::FAILED, error.to_string()))
}

/// Prints a new secret, the only output on stdout.
fn print_secret(secret: &NewSecret) -> Result<(), Failure> {
    output::data(secret.expose())
}

fn failure(error: &KeyFileError) -> Failure {
    server_keys::failure(error)
}

/// Returns a path as a message shows it.
fn shown(path: &Path) -> String {
    path.display().to_string()
}

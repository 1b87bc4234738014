//! `llmlb key`: creates, lists, revokes and rotates API keys. One verb per file.

mod add;
mod args;
mod list;
mod revoke;
mod rotate;

use std::path::Path;

pub(super) use args::KeyArgs;

use super::check;
use super::data_args::DataArgs;
use super::exit::{self, Failure};
use super::output;
use super::server_keys;
use crate::config::{self, Flags, KeyRights, Origin};
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

/// API keys of a data directory, and those that the configuration file declares.
struct Keys {
    store: KeyStore,
    declared: Vec<(KeyRights, Origin)>,
    /// Flags of this command, so that a suggested command finds the same keys.
    flags: String,
}

impl Keys {
    fn open(args: &KeyArgs) -> Result<Self, Failure> {
        // Use no demo directory: a demo has no keys of its own, but honours those of the data
        // directory.
        let data = DataArgs {
            data: args.data.clone(),
            demo: false,
            config: args.config.clone(),
            allow_shared_config: args.allow_shared_config,
        };
        let dir = data.directory()?;
        let flags = Flags {
            config: args.config.clone(),
            allow_shared_config: args.allow_shared_config,
            ..Flags::default()
        };
        let declared =
            config::declared_keys(&flags).map_err(|problems| check::refused(&problems))?;
        let words = data.words().into_iter().map(|word| format!(" {word}"));
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

    /// Returns an error if the configuration file declares the key: a command cannot change that
    /// file.
    fn reject_declared(&self, name: &str, how: &str) -> Result<(), Failure> {
        let Some(origin) = self.declared(name) else {
            return Ok(());
        };
        let message = format!("the API key `{name}` is declared in {origin}");
        Err(Failure::new(exit::FAILED, message).hint(how.to_owned()))
    }

    /// Returns the error for a name of which `keys.json` has no key.
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

/// Prints a new secret as the only output on stdout, so that `KEY=$(llmlb key add ..)` stores
/// exactly the secret.
fn print_secret(secret: &NewSecret) -> Result<(), Failure> {
    output::data(secret.expose())
}

fn failure(error: &KeyFileError) -> Failure {
    server_keys::failure(error)
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

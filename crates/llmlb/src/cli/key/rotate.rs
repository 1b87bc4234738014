//! `llmlb key rotate`: replaces the secret of an API key. The key's name, rights and usage stay.

use jiff::Timestamp;

use super::args::Rotate;
use super::{Keys, failure, new_secret, print_secret};
use crate::cli::exit::{self, Failure};
use crate::cli::output;

pub(super) fn rotate(args: &Rotate, keys: &Keys, quiet: bool) -> Result<u8, Failure> {
    let name = &args.name;
    let secret = new_secret()?;
    let now = Timestamp::now();
    let until =
        match args.grace.filter(|grace| !grace.is_zero()) {
            Some(grace) => Some(now.checked_add(grace).map_err(|_| {
                Failure::new(exit::USAGE, "--grace: the end is too far in the future")
            })?),
            None => None,
        };
    let changed = keys.store.change("key rotate", |stored| {
        let hash = stored.hash(&secret);
        let key = stored.find_mut(name).ok_or(())?;
        key.rotate(hash, until);
        Ok::<(), ()>(())
    });
    if changed.map_err(|error| failure(&error))?.is_err() {
        keys.reject_declared(
            name,
            "change the secret in that file (sha256), or change the variable of key_env and restart the server",
        )?;
        return Err(keys.unknown(name));
    }
    print_secret(&secret)?;
    if !quiet {
        output::message(&format!(
            "replaced the secret of the API key `{name}`; the new one is shown only now"
        ));
        output::message(&match until {
            Some(until) => format!("the old secret works until {until:.0}"),
            None => "running servers reject the old secret within a second".to_owned(),
        });
    }
    Ok(exit::DONE)
}

//! `llmlb key revoke`: revokes an API key, so that clients that send its secret are rejected.

use super::args::Revoke;
use super::{Keys, failure, shown};
use crate::cli::exit::{self, Failure};
use crate::cli::output;

pub(super) fn revoke(args: &Revoke, keys: &Keys, quiet: bool) -> Result<u8, Failure> {
    let name = &args.name;
    let changed = keys.store.revoke("key revoke", name);
    let Some(is_last) = changed.map_err(|error| failure(&error))? else {
        keys.reject_declared(
            name,
            "remove the key from that file; running servers reload it",
        )?;
        return Err(keys.unknown(name));
    };
    if !quiet {
        output::message(&format!(
            "revoked the API key `{name}`; running servers reject it within a second"
        ));
        if is_last && keys.declared.is_empty() {
            let path = shown(&keys.store.path());
            output::message("no key is left: all clients are rejected");
            output::hint(&format!("create a key: {}", keys.command("add NAME")));
            output::hint(&format!(
                "or serve clients without keys: stop the servers, then `rm {path}`"
            ));
        }
    }
    Ok(exit::DONE)
}

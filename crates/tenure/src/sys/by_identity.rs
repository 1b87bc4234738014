//! Attesting where the system does not say who has a lock: the lock is held, and the process that
//! the record names lives and is the one that wrote it.

use crate::process::Identity;
use crate::record::Record;
use crate::sys::process;
use crate::sys::testimony::{Attested, Owner};

pub(crate) fn attest(record: &Record) -> Attested {
    if record.host.is_some() && record.host != process::host() {
        return Attested::NotVisible;
    }
    let owner = record
        .process
        .as_ref()
        .map(|identity| (record.pid, identity, false));
    let command = record.command.as_ref().and_then(|command| {
        command
            .process
            .as_ref()
            .map(|identity| (command.pid, identity, true))
    });
    for (pid, identity, command_only) in owner.into_iter().chain(command) {
        if Identity::of(pid).as_ref() == Some(identity) {
            let suspended = process::is_suspended(pid);
            return Attested::Owner(Owner {
                pid,
                suspended,
                command_only,
            });
        }
    }
    Attested::Unproven
}

//! Finding out: what the lock says, then what the server says.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::Duration;

use tenure::{Error, Holder, State as LockState, Status as LockStatus, Store};

use super::server::{Health, Running, Server, State};
use crate::cli::{port_conflict, status_client};
use crate::lock::{self, LockInfo};
use crate::sys;

/// How long a server may take to say how it is.
const PATIENCE: Duration = Duration::from_secs(2);

/// The server of one port.
pub(super) fn at(store: &Store, port: u16) -> Result<Server, Error> {
    Ok(look(port, &store.status(&lock::key(port))?))
}

/// Every server that has a lock file, by port.
pub(super) fn around(store: &Store) -> Result<Vec<Server>, Error> {
    // A port may have files in two directories; one that is held counts before one that is not.
    let mut found: BTreeMap<u16, LockStatus> = BTreeMap::new();
    for status in store.list()? {
        let Some(port) = status.key().port_number() else {
            continue;
        };
        let seen = found
            .get(&port)
            .is_some_and(|before| before.holder().is_some() || status.holder().is_none());
        if *status.key() == lock::key(port) && !seen {
            found.insert(port, status);
        }
    }
    // Asked all at once: a server that does not answer must not hold up the others.
    Ok(thread::scope(|scope| {
        let asked: Vec<_> = found
            .iter()
            .map(|(port, status)| scope.spawn(|| look(*port, status)))
            .collect();
        asked
            .into_iter()
            .filter_map(|server| server.join().ok())
            .collect()
    }))
}

fn look(port: u16, status: &LockStatus) -> Server {
    let state = match status.state() {
        LockState::Held(holder) => State::Running(Box::new(running(port, holder))),
        LockState::Stale(record) => State::Stale(LockInfo::of(record, port).ok().map(Box::new)),
        LockState::Unreadable(why) => State::Unreadable(why.clone()),
        LockState::OtherUser(user) => State::OtherUser(user.clone()),
        LockState::Unusable(why) => State::Unusable(why.clone()),
        LockState::Unknown { user, why } => State::Unknown {
            user: user.clone(),
            why: why.clone(),
        },
        _ => State::NotRunning,
    };
    let port_in_use_by = match &state {
        State::Running(running) => match running.health {
            Health::Answered(_) => None,
            _ => sys::port_owner(port).filter(|owner| owner.pid != running.pid),
        },
        _ => port_conflict::on_port(port),
    };
    Server {
        port,
        lock_path: status.path().to_owned(),
        state,
        port_in_use_by,
    }
}

fn running(port: u16, holder: &Holder) -> Running {
    let record = holder.record();
    let info = record.and_then(|record| LockInfo::of(record, port).ok());
    let address = info.as_ref().and_then(|info| info.address);
    let asked = if holder.is_suspended() {
        Err("it is suspended".to_owned())
    } else {
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        status_client::ask(address.unwrap_or(loopback), PATIENCE)
    };
    Running {
        proof: holder.proof(),
        pid: holder.pid(),
        user: record.and_then(|record| record.user().map(str::to_owned)),
        suspended: holder.is_suspended(),
        file_gone: holder.is_file_gone(),
        health: Health::judge(asked, info.as_ref()),
        info,
    }
}
